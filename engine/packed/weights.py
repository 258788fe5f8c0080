"""A model's quantized matrices as tiles: what the packed decoder reads in every step.

numpy only. Runs on: step thread, once, at load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.packed.layout import Bytes, QuantizedMatrix, empty_tiles, pack_into, scales_of_inputs

Floats = npt.NDArray[np.float32]


class PackedStack:
    """The matrix that every layer has in one place, packed layer by layer."""

    def __init__(self, num_layers: int, like: QuantizedMatrix) -> None:
        self.bits = like.bits
        self.num_outputs = like.num_outputs
        self.num_inputs = like.num_inputs
        self.scales = scales_of_inputs(like.bits)
        self.tiles: Bytes = empty_tiles(num_layers, like)

    def put(self, layer: int, matrix: QuantizedMatrix) -> None:
        assert (matrix.bits, matrix.num_outputs, matrix.num_inputs) == (
            self.bits, self.num_outputs, self.num_inputs,
        )  # fmt: skip
        pack_into(self.tiles[layer], matrix)


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """All of a model but its embedding. Norms are float32 ``[layers, H]``."""

    input_norms: Floats
    qkv: PackedStack
    output: PackedStack
    post_attention_norms: Floats
    gate_up: PackedStack  # panels of gates and ups in turn
    down: PackedStack
    norm: Floats  # [H]
    lm_head: PackedStack | None  # of one layer; None: the file has it in a type without kernels
    eps: float

    @property
    def num_layers(self) -> int:
        return len(self.input_norms)

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> Iterator[npt.NDArray[Any]]:
        """All that there is of weights, each array once, in C order."""
        yield from (self.input_norms, self.post_attention_norms, self.norm)
        stacks = (self.qkv, self.output, self.gate_up, self.down, self.lm_head)
        yield from (stack.tiles for stack in stacks if stack is not None)
