"""What the compiler makes of kernel variants for GPUs that are not there, and what it must not.

Kernels are compiled in a process of their own, once for all that a test module asks for.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from engine.kernels.launch import CAPABILITIES, Arithmetic, KernelVariant

ROOT = Path(__file__).parent.parent.parent
_SHARED_BYTES = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}  # of a multiprocessor
_RESERVED_BYTES = 1024  # of that, for each program on it
assert set(_SHARED_BYTES) == set(CAPABILITIES)
_MMA = {80: r"\bmma\.sync", 90: r"\bwgmma\.mma_async", 100: r"\btcgen05\.mma"}
_SYNCHRONOUS = _MMA[80]
_WIDE_LOAD = re.compile(r"\bcp\.async\.c[ag]\.shared\.global\S* \[[^\]]*\], \[[^\]]*\], (?:0x10|16)\b")
_ROWS_OF_WARPGROUP = 64  # from here on Hopper and Blackwell have instructions for whole warpgroups


@dataclass(frozen=True, slots=True)
class Compiled:
    """A binary: registers of a thread, bytes of its stack and local memory, shared bytes of a program.

    ``plain_products`` are matrix products in it that no tensor core computes.
    """

    registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    plain_products: int
    ptx: str

    @property
    def num_wide_loads(self) -> int:
        """Loads of 16 bytes, in the text, that a thread does not wait for where they begin."""
        return len(_WIDE_LOAD.findall(self.ptx))


Key = tuple[str, str, int]  # registry, name of the variant, capability
_done: dict[Key, Compiled] = {}


def compile_all(registry: str, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Compiled]:
    """Compile variants of ``registry`` (``module:function``), each (name, capability), once a process."""
    keys = [(registry, name, capability) for name, capability in wanted]
    missing = [key for key in keys if key not in _done]
    if missing:
        _done.update(zip(missing, run_compiler(missing), strict=True))
    return {key[1:]: _done[key] for key in keys}


def run_compiler(keys: list[Key], root: Path = ROOT) -> list[Compiled]:
    """Compile in a process that has the sources below ``root``, where kernels are not interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(root), "TRITON_CACHE_DIR": str(ROOT / ".pytest_cache" / "triton")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.compile_kernels"],
        input=json.dumps(keys),
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [Compiled(**result) for result in json.loads(done.stdout)]


def faults(variant: KernelVariant, capability: int, compiled: Compiled) -> list[str]:
    """What is wrong with a binary, in words: nothing, if it is as it was planned."""
    programs = max(variant.side_by_side, variant.launch.programs or 1)
    shared = programs * (compiled.shared_bytes + _RESERVED_BYTES)
    found = []
    if compiled.stack_bytes or compiled.local_bytes:
        found.append(f"spills: {compiled.stack_bytes} bytes of stack, {compiled.local_bytes} of local memory")
    if compiled.registers > variant.launch.registers(programs):
        found.append(f"{compiled.registers} registers are too many for {programs} programs")
    if shared > _SHARED_BYTES[capability]:
        found.append(f"{compiled.shared_bytes} shared bytes are too many for {programs} programs")
    return found + _arithmetic_faults(variant, capability, compiled)


def _arithmetic_faults(variant: KernelVariant, capability: int, compiled: Compiled) -> list[str]:
    if variant.arithmetic is Arithmetic.TENSOR_CORES:
        wanted = _MMA[capability] if variant.rows >= _ROWS_OF_WARPGROUP else _SYNCHRONOUS
        missing = [] if re.search(wanted, compiled.ptx) else [f"no {wanted} in it"]
        plain = compiled.plain_products
        return missing + ([f"{plain} products without tensor cores"] if plain else [])
    if variant.arithmetic is Arithmetic.IEEE_FLOAT32:
        found = sorted(set(re.findall("|".join([r"tf32", *_MMA.values()]), compiled.ptx)))
        return [f"{instruction} in float32" for instruction in found]
    return []
