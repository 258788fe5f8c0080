"""Quantized matrices as the packed kernels read them: tiles of outputs, one run of bytes each.

Pure, numpy only. A quantized weight is ``scale * q + minimum``, with ``q`` of 4 or 8 bits, and a scale and
a minimum in float16 for every ``GROUP`` inputs: what GGUF calls Q4_0, Q4_1 and Q8_0. Its values are kept as
they are; only their order changes.

A tile is ``TILE`` outputs. For each group of inputs it holds words of 32 bits, as many per output as a weight
has bits, with the outputs of a panel side by side in vector lanes, then the panels' scales and minima::

    words    [PANELS, bits, LANES] uint32
    scales   [PANELS, LANES] float16
    minima   [PANELS, LANES] float16

So one pass reads a tile's bytes in order, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

GROUP: Final = 32  # inputs that share a scale and a minimum
LANES: Final = 16  # outputs of a panel: float32 lanes of a 512-bit register
PANELS: Final = 2  # panels of a tile: as many sums run at once, which hides how long each addition takes
TILE: Final = LANES * PANELS
_ALIGNMENT = 64

Words = npt.NDArray[np.uint32]
Halves = npt.NDArray[np.float16]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """``[out, in]``, for inputs in groups of 32. ``words`` are in the order of ``input_of``."""

    bits: int  # 4 or 8
    words: Words  # [out, in / GROUP, bits]
    scales: Halves  # [out, in / GROUP]
    minima: Halves  # [out, in / GROUP]

    @property
    def num_outputs(self) -> int:
        return int(self.words.shape[0])

    @property
    def num_inputs(self) -> int:
        return int(self.words.shape[1]) * GROUP

    def rows(self, order: npt.NDArray[np.intp]) -> QuantizedMatrix:
        """These outputs, in this order."""
        return QuantizedMatrix(self.bits, self.words[order], self.scales[order], self.minima[order])

    def values(self) -> npt.NDArray[np.float32]:
        """``[out, in]``."""
        q = np.empty((*self.scales.shape, GROUP), np.float32)
        for word, place in np.ndindex(self.bits, GROUP // self.bits):
            shifted = self.words[:, :, word] >> np.uint32(self.bits * place)
            q[:, :, input_of(self.bits, word, place)] = shifted & np.uint32(2**self.bits - 1)
        scaled = self.scales.astype(np.float32)[:, :, None] * q + self.minima.astype(np.float32)[:, :, None]
        return scaled.reshape(self.num_outputs, self.num_inputs)


def input_of(bits: int, word: int, place: int) -> int:
    """Which input of its group the weight at ``place`` of a word is of, counted from the lowest bits.

    As GGUF stores them: a byte holds one weight of 8 bits, or two of 4 that are half a group apart.
    """
    if bits == 8:
        return 4 * word + place
    return 4 * word + place // 2 + GROUP // 2 * (place % 2)


def scales_of_inputs(bits: int) -> npt.NDArray[np.float32]:
    """By what the inputs of a group are multiplied before a product with weights of ``bits`` bits."""
    scales = np.ones(GROUP, np.float32)
    num_places = GROUP // bits
    for word in range(bits):
        for place in range(num_places - 1):  # the last of a word is shifted: masked, it would be negative
            scales[input_of(bits, word, place)] = 2.0 ** -(bits * place)
    return scales


def stacked(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """The outputs of all, one matrix after another. Their inputs and bits must be the same."""
    return QuantizedMatrix(
        matrices[0].bits,
        np.concatenate([matrix.words for matrix in matrices]),
        np.concatenate([matrix.scales for matrix in matrices]),
        np.concatenate([matrix.minima for matrix in matrices]),
    )


def interleaved(gate: QuantizedMatrix, up: QuantizedMatrix) -> QuantizedMatrix:
    """Panels of ``gate`` and ``up`` in turn, so that a tile has both halves of its outputs' SwiGLU.

    A last panel that is not full is filled up with outputs that occur twice; nobody reads them.
    """
    places = np.arange(-(-gate.num_outputs // LANES) * LANES)
    order = np.minimum(places, gate.num_outputs - 1).reshape(-1, 1, LANES)
    both = np.concatenate([order, order + gate.num_outputs], axis=1)
    return stacked([gate, up]).rows(both.ravel())


def num_tiles(num_outputs: int) -> int:
    return -(-num_outputs // TILE)


def tile_bytes(bits: int, num_inputs: int) -> int:
    return num_inputs // GROUP * PANELS * LANES * (4 * bits + 4)


def empty_tiles(num_layers: int, matrix: QuantizedMatrix) -> Bytes:
    """Room for ``num_layers`` matrices like this one, ``[layers, tiles, tile_bytes]``, aligned to vectors."""
    shape = (num_layers, num_tiles(matrix.num_outputs), tile_bytes(matrix.bits, matrix.num_inputs))
    size = int(np.prod(shape))
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size].reshape(shape)


def pack_into(tiles: Bytes, matrix: QuantizedMatrix) -> None:
    """Write ``matrix`` as ``tiles`` ``[tiles, tile_bytes]``; outputs that fill up the last tile are zero."""
    count, groups = tiles.shape[0], matrix.num_inputs // GROUP
    rows = tiles.reshape(count, groups, -1)
    words_end = PANELS * LANES * 4 * matrix.bits
    scales_end = words_end + PANELS * LANES * 2

    def by_tile(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """``[out, groups, ...]`` to ``[tiles, groups, PANELS, ..., LANES]``."""
        missing = count * TILE - len(values)
        if missing:
            values = np.concatenate([values, np.zeros((missing, *values.shape[1:]), values.dtype)])
        split = values.reshape(count, PANELS, LANES, groups, -1)
        return np.ascontiguousarray(split.transpose(0, 3, 1, 4, 2))

    def put(start: int, end: int, values: npt.NDArray[np.generic]) -> None:
        rows[:, :, start:end] = by_tile(values).view(np.uint8).reshape(count, groups, -1)

    put(0, words_end, matrix.words)
    put(words_end, scales_end, matrix.scales)
    put(scales_end, rows.shape[2], matrix.minima)
