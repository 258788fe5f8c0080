"""How kernels are launched, as values: constants, warps and stages, and which binaries that makes.

Pure, and without triton: what launches a kernel and what checks its binary without a GPU take the same
``Launch`` from the same function. Runs on: any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

Constant = int | float | bool | None


CAPABILITIES = (80, 90, 100)  # A100, H100 and H200, B200
_REGISTERS = 65536  # of a multiprocessor, since Volta
_REGISTERS_OF_THREAD = 255
_WARP_SIZE = 32


def next_power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


@dataclass(frozen=True, slots=True)
class Launch:
    """What a kernel is compiled with.

    With ``programs``, which are to run on one multiprocessor side by side, the assembler is told what a
    thread may have of the registers; left to itself it may spill, to make room for more. ``fuse``: whether
    a product and a sum may be rounded once.
    """

    constants: Mapping[str, Constant]
    num_warps: int = 4
    num_stages: int = 1
    programs: int | None = None
    fuse: bool = True
    _keywords: dict[str, Constant] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_keywords", {**self.constants, **self.options()})

    def registers(self, programs: int) -> int:
        """What a thread may have of them if so many programs run side by side; they are granted by eights."""
        share = _REGISTERS // (self.num_warps * _WARP_SIZE * programs)
        return min(share // 8 * 8, _REGISTERS_OF_THREAD)

    def keywords(self) -> dict[str, Constant]:
        """For ``kernel[grid](...)``: made once, since steps without a graph launch hundreds of kernels."""
        return self._keywords

    def options(self) -> dict[str, Constant]:
        """For the compiler."""
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "maxnreg": None if self.programs is None else self.registers(self.programs),
            "enable_fp_fusion": self.fuse,
        }


class Arithmetic(Enum):
    """What a kernel's matrix products must be computed with."""

    NONE = "no matrix product"
    TENSOR_CORES = "tensor cores"
    IEEE_FLOAT32 = "float32 as IEEE 754 has it, not tf32"


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """One binary of a kernel, as it is launched somewhere.

    ``kernel`` is ``module:function``. ``arguments`` has the type of each run-time argument (``*bf16`` is a
    pointer, ``i32``, ``fp32``); None is one that is not passed. Pointers are 16-byte aligned unless the
    kernel says that they vary. ``side_by_side``: so many must fit a multiprocessor, whether the assembler is
    told so (``Launch.programs``) or left to itself.
    """

    name: str
    kernel: str
    arguments: Mapping[str, str | None]
    launch: Launch
    arithmetic: Arithmetic = Arithmetic.NONE
    rows: int = 0  # of the left factor of its products: what decides between the tensor-core instructions
    side_by_side: int = 1
    capabilities: tuple[int, ...] = CAPABILITIES  # of the devices that it is launched on
