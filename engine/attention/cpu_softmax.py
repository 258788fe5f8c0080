"""The online softmax of the CPU kernels (Milakov and Gimelshein 2018), in base 2.

Its tiles of the context are counted from position 0. It begins anew with every segment, also fixed, and the
segments are added up in their order.
The order of sums and the place of each rounding are those of this source (``engine.compiled.jit``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.compiled.jit import jit
from engine.compiled.vectors import largest, multiply_add

PANEL = 64  # width of what is done to a row at a time: four 512-bit registers
TILE = PANEL  # context tokens at a time: the K and V tiles take 2 * 64 * D * 4 bytes, 32 KiB for D 64
SEGMENT = 4 * TILE  # context tokens after which the softmax begins anew
NEGATIVE_INFINITY = np.float32(-np.inf)


@jit()
def _scale(row: Any, factor: Any) -> None:
    """``row[:PANEL] *= factor``."""
    for j in range(PANEL):
        row[j] *= factor


@jit()
def _exp2_shifted(scores: Any, top: Any) -> None:
    """In place 2**(score - top). Below 2**-126 counts as 2**-126. 2 ulp.

    numba has no vector exp of its own, and this one vectorises. Polynomial: Cephes exp2f, degree 6
    on [-0.5, 0.5].
    """
    for t in range(scores.shape[0]):
        x = scores[t] - top
        if x < np.float32(-126.0):
            x = np.float32(-126.0)
        whole = np.floor(x + np.float32(0.5))
        f = x - whole
        poly = np.float32(1.535336188319500e-4)
        poly = multiply_add(poly, f, np.float32(1.339887440266574e-3))
        poly = multiply_add(poly, f, np.float32(9.618437357674640e-3))
        poly = multiply_add(poly, f, np.float32(5.550332471162809e-2))
        poly = multiply_add(poly, f, np.float32(2.402264791363012e-1))
        poly = multiply_add(poly, f, np.float32(6.931472028550421e-1))
        poly = multiply_add(poly, f, np.float32(1.0))
        power = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
        scores[t] = poly * power


@jit()
def _total(parts: Any) -> Any:
    """Sum of ``parts`` ``[TILE]``, which it overwrites: its halves are added until one number is left."""
    for t in range(TILE // 2):
        parts[t] += parts[t + TILE // 2]
    for t in range(TILE // 4):
        parts[t] += parts[t + TILE // 4]
    width = TILE // 8
    while width > 0:
        for t in range(width):
            parts[t] += parts[t + width]
        width //= 2
    return parts[0]


@jit()
def soften(scores: Any, low: int, high: int, state: Any, top: Any) -> None:
    """Make ``scores`` ``[R, TILE]`` weights of their rows' running softmaxes, 0 outside ``[low, high)``.

    ``top`` has each row's largest score so far, ``state`` its weighted sums of V in panels and, as the last
    panel, the sum of its weights, kept as ``TILE`` sums, one for each place in a tile.
    """
    for r in range(scores.shape[0]):
        row = scores[r]
        for t in range(low):
            row[t] = NEGATIVE_INFINITY
        for t in range(high, TILE):
            row[t] = NEGATIVE_INFINITY
        old = top[r]
        new = max(old, largest(scores, r))
        top[r] = new
        if old != new and old != NEGATIVE_INFINITY:  # before its first score a row's sums are 0
            decay = np.float32(np.exp2(old - new))
            for p in range(state.shape[1]):
                _scale(state[r, p], decay)
        _exp2_shifted(row, new)
        for t in range(low):
            row[t] = 0.0
        for t in range(high, TILE):
            row[t] = 0.0
        sums = state[r, state.shape[1] - 1]
        for t in range(TILE):
            sums[t] += row[t]


@jit()
def add_segment(state: Any, top: Any, total: Any, total_top: Any, row: int) -> None:
    """Add what one segment gave for a row to what those before it gave, unless the row sees none of it."""
    if top[row] == NEGATIVE_INFINITY:
        return
    old, new = total_top[row], max(total_top[row], top[row])
    total_top[row] = new
    old_decay = decay = np.float32(1.0)
    if old != new:
        old_decay = np.float32(np.exp2(old - new))
    if top[row] != new:
        decay = np.float32(np.exp2(top[row] - new))
    for p in range(state.shape[1]):
        source, target = state[row, p], total[row, p]
        for j in range(PANEL):
            target[j] = multiply_add(source[j], decay, target[j] * old_decay)


@jit()
def finish(total: Any, out: Any) -> None:
    """One row's weighted sums ``[panels + 1, PANEL]`` by the sum of its weights, into ``out`` ``[D]``."""
    weights = _total(total[total.shape[0] - 1])
    for p in range(total.shape[0] - 1):
        sums, target = total[p], out[p * PANEL : (p + 1) * PANEL]
        for d in range(target.shape[0]):
            target[d] = sums[d] / weights
