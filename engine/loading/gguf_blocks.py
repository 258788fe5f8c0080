"""Quantized blocks of GGUF files as they are, for kernels that read them without decoding.

Pure, numpy only. Each block is 32 weights of one row: a scale in float16, in Q4_1 a minimum too, then the
weights' bits. What Q4_0 and Q8_0 subtract from each weight goes with the name; here it is a minimum as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from engine.packed.layout import QuantizedMatrix


@dataclass(frozen=True, slots=True)
class _Format:
    """Where the weights of a block start, and how many scales below a weight's zero its bits' zero is."""

    bits: int
    weights_start: int  # bytes
    offset: int | None  # None: the block has a minimum, after its scale

    @property
    def block_bytes(self) -> int:
        return self.weights_start + 4 * self.bits


_FORMATS = {
    Type.Q4_0: _Format(bits=4, weights_start=2, offset=8),
    Type.Q4_1: _Format(bits=4, weights_start=4, offset=None),
    Type.Q8_0: _Format(bits=8, weights_start=2, offset=128),
}
_SIGN_BITS = np.uint32(0x80808080)


def quantized_matrix(data: npt.NDArray[np.uint8], kind: Any) -> QuantizedMatrix | None:
    """The matrix of rows of blocks ``[out, bytes]``; None for a type that has no kernel."""
    form = _FORMATS.get(kind)
    if form is None or data.ndim != 2:
        return None
    blocks = np.ascontiguousarray(data).reshape(len(data), -1, form.block_bytes)
    words = np.ascontiguousarray(blocks[:, :, form.weights_start :]).view("<u4")
    if form.bits == 8:  # signed: -128 becomes 0
        words = words ^ _SIGN_BITS
    scales = _half(blocks, 0)
    minima = _half(blocks, 2) if form.offset is None else np.float16(-form.offset) * scales
    return QuantizedMatrix(form.bits, words, scales, minima)


def _half(blocks: npt.NDArray[np.uint8], start: int) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view("<f2")[:, :, 0]
