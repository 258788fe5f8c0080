"""numba kernels of the packed decoder: products with quantized tiles, and what lies between them.

A product widens no weight to memory: a tile's words go through registers, and each weight serves all rows
of a block of up to ``MAX_ROWS`` (``engine.packed.products``). A row's sums run over groups of inputs in
order, so its result depends neither on its neighbours nor on how many threads there are.

Runs on: step thread, plus numba's workers inside a call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from engine.compiled.jit import jit, specialize
from engine.packed.layout import GROUP, LANES, TILE
from engine.packed.products import has_wide_registers, product_of

# Rows that one pass over a tile serves: as many as registers hold the sums of a group of.
MAX_ROWS = 8 if has_wide_registers() else 2

# ---- a tile times rows ---------------------------------------------------------------------------

_product_1, _product_2, _product_4, _product_8 = (product_of(num_rows) for num_rows in (1, 2, 4, 8))


@jit()
def _times_tile(
    tiles: Any, tile: int, bits: int, x: Any, stats: Any, first: int, count: int, out: Any
) -> None:
    """``out[:count]`` = rows ``[first, first + count)`` times one tile; ``count`` is at most MAX_ROWS."""
    address, groups = tiles.ctypes.data + tile * tiles.strides[0], stats.shape[1]
    x_step, step = x.strides[0], stats.strides[0]
    done = 0
    for rows in (8, 4, 2, 1):
        if count & rows:
            x_at = x.ctypes.data + (first + done) * x_step
            stats_at = stats.ctypes.data + (first + done) * step
            out_at = out.ctypes.data + done * out.strides[0]
            if rows == 8:
                if MAX_ROWS >= 8:  # a constant to numba, which compiles no branch that cannot be taken
                    _product_8(x, bits, address, groups, x_at, x_step, stats_at, step, out_at)
            elif rows == 4:
                if MAX_ROWS >= 4:
                    _product_4(x, bits, address, groups, x_at, x_step, stats_at, step, out_at)
            elif rows == 2:
                _product_2(x, bits, address, groups, x_at, x_step, stats_at, step, out_at)
            else:
                _product_1(x, bits, address, groups, x_at, x_step, stats_at, step, out_at)
            done += rows


# ---- products ------------------------------------------------------------------------------------


@jit()
def _project(tiles: Any, bits: int, x: Any, stats: Any, out: Any, adds: bool, lane: int, lanes: int) -> None:
    """One lane's tiles of ``out`` ``[rows, outputs]``, which is overwritten or added to."""
    num_rows, num_outputs = out.shape
    block = np.empty((MAX_ROWS, TILE), np.float32)
    for tile in range(lane * tiles.shape[0] // lanes, (lane + 1) * tiles.shape[0] // lanes):
        start = tile * TILE
        width = min(TILE, num_outputs - start)
        for first in range(0, num_rows, MAX_ROWS):
            count = min(MAX_ROWS, num_rows - first)
            _times_tile(tiles, tile, bits, x, stats, first, count, block)
            for r in range(count):
                target = out[first + r, start : start + width]
                if adds:
                    for i in range(width):
                        target[i] += block[r, i]
                else:
                    for i in range(width):
                        target[i] = block[r, i]


@jit()
def _project_gates(tiles: Any, bits: int, x: Any, stats: Any, out: Any, lane: int, lanes: int) -> None:
    """One lane's tiles of ``out`` ``[rows, F]`` = SwiGLU of gates and ups that come in panels in turn."""
    num_rows, num_outputs = out.shape
    block = np.empty((MAX_ROWS, TILE), np.float32)
    for tile in range(lane * tiles.shape[0] // lanes, (lane + 1) * tiles.shape[0] // lanes):
        start = tile * LANES
        width = min(LANES, num_outputs - start)
        for first in range(0, num_rows, MAX_ROWS):
            count = min(MAX_ROWS, num_rows - first)
            _times_tile(tiles, tile, bits, x, stats, first, count, block)
            for r in range(count):
                _silu(block[r, :LANES])
                target = out[first + r, start : start + width]
                for i in range(width):
                    target[i] = block[r, i] * block[r, LANES + i]


@jit()
def _silu(gates: Any) -> None:
    """In place ``x / (1 + exp(-x))``, of ``LANES`` numbers.

    The exponential is a power of two, for numba has none that vectorises: Cephes exp2f, degree 6 on
    [-0.5, 0.5], 2 ulp; powers beyond 2**126 either way count as those.
    """
    for i in range(LANES):
        x = gates[i] * np.float32(-1.4426950408889634)
        x = min(max(x, np.float32(-126.0)), np.float32(126.0))
        whole = np.floor(x + np.float32(0.5))
        f = x - whole
        poly = np.float32(1.535336188319500e-4)
        poly = poly * f + np.float32(1.339887440266574e-3)
        poly = poly * f + np.float32(9.618437357674640e-3)
        poly = poly * f + np.float32(5.550332471162809e-2)
        poly = poly * f + np.float32(2.402264791363012e-1)
        poly = poly * f + np.float32(6.931472028550421e-1)
        poly = poly * f + np.float32(1.0)
        power = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
        gates[i] = gates[i] / (np.float32(1.0) + poly * power)


# ---- rows made ready for a product ---------------------------------------------------------------


@jit()
def _halved(parts: Any) -> Any:
    """Sum of ``LANES`` numbers, which it overwrites: halves are added until one is left."""
    width = LANES // 2
    while width > 0:
        for i in range(width):
            parts[i] += parts[i + width]
        width //= 2
    return parts[0]


def _make_ready(row: Any, scales: Any, x: Any, stats: Any, parts: Any) -> None:
    """``x`` = ``row`` as products take it; ``stats`` = of each group, an input's scale and the scaled sum."""
    raise NotImplementedError("compiled code only")


@specialize(_make_ready)
def _make_ready_overload(row: Any, scales: Any, x: Any, stats: Any, parts: Any) -> Any:
    return _quantize if str(x.dtype) == "int8" else _prescale


def _prescale(row: Any, scales: Any, x: Any, stats: Any, parts: Any) -> None:
    for g in range(stats.shape[0]):
        low = row[g * GROUP : g * GROUP + LANES]
        high = row[g * GROUP + LANES : (g + 1) * GROUP]
        x_low = x[g * GROUP : g * GROUP + LANES]
        x_high = x[g * GROUP + LANES : (g + 1) * GROUP]
        for i in range(LANES):
            x_low[i] = low[i] * scales[i]
            x_high[i] = high[i] * scales[LANES + i]
            parts[i] = low[i] + high[i]
        stats[g, 0] = np.float32(1.0)
        stats[g, 1] = _halved(parts)


def _quantize(row: Any, scales: Any, x: Any, stats: Any, parts: Any) -> None:
    """To the nearest of 255 steps between a group's largest and its negative."""
    for g in range(stats.shape[0]):
        low = row[g * GROUP : g * GROUP + LANES]
        high = row[g * GROUP + LANES : (g + 1) * GROUP]
        x_low = x[g * GROUP : g * GROUP + LANES]
        x_high = x[g * GROUP + LANES : (g + 1) * GROUP]
        for i in range(LANES):
            parts[i] = _larger(abs(low[i]), abs(high[i]))
        scale = _largest(parts) / np.float32(127.0)
        inverse = np.float32(0.0) if scale < np.float32(1e-30) else np.float32(1.0) / scale
        for i in range(LANES):
            a, b = np.rint(low[i] * inverse), np.rint(high[i] * inverse)
            x_low[i], x_high[i] = np.int8(a), np.int8(b)
            parts[i] = a + b
        stats[g, 0] = scale
        stats[g, 1] = scale * _halved(parts)


@jit()
def _larger(a: Any, b: Any) -> Any:
    """NaN if either is."""
    return b if b > a or b != b else a


@jit()
def _largest(parts: Any) -> Any:
    """Of ``LANES`` numbers, which it overwrites; NaN if one is."""
    width = LANES // 2
    while width > 0:
        for i in range(width):
            parts[i] = _larger(parts[i], parts[i + width])
        width //= 2
    return parts[0]


@jit()
def _normed(row: Any, weight: Any, eps: Any, out: Any, parts: Any) -> None:
    """Root mean square norm of one row."""
    parts[:] = 0.0
    for start in range(0, row.shape[0], LANES):
        piece = row[start : start + LANES]
        for i in range(LANES):
            parts[i] += piece[i] * piece[i]
    factor = np.float32(1.0) / np.sqrt(_halved(parts) / np.float32(row.shape[0]) + eps)
    for i in range(row.shape[0]):
        out[i] = row[i] * factor * weight[i]


@jit()
def _ready_rows(rows: Any, scales: Any, x: Any, stats: Any, lane: int, lanes: int) -> None:
    parts = np.empty(LANES, np.float32)
    for r in range(lane, rows.shape[0], lanes):
        _make_ready(rows[r], scales, x[r], stats[r], parts)


@jit()
def _ready_normed(
    rows: Any, weight: Any, eps: Any, scales: Any, x: Any, stats: Any, lane: int, lanes: int
) -> None:
    parts = np.empty(LANES, np.float32)
    normed = np.empty(rows.shape[1], np.float32)
    for r in range(lane, rows.shape[0], lanes):
        _normed(rows[r], weight, eps, normed, parts)
        _make_ready(normed, scales, x[r], stats[r], parts)


# ---- what a step calls ---------------------------------------------------------------------------


@jit(parallel=True)
def project_normed(
    rows: Any,
    norm: Any,
    eps: Any,
    tiles: Any,
    bits: int,
    scales: Any,
    x: Any,
    stats: Any,
    out: Any,
    lanes: int,
) -> None:
    """``out`` ``[T, O]`` = norm of ``rows`` ``[T, H]``, times ``tiles``."""
    for lane in prange(lanes):
        _ready_normed(rows, norm, eps, scales, x, stats, lane, lanes)
    for lane in prange(lanes):
        _project(tiles, bits, x, stats, out, False, lane, lanes)


@jit(parallel=True)
def add_projected(
    rows: Any, tiles: Any, bits: int, scales: Any, x: Any, stats: Any, hidden: Any, lanes: int
) -> None:
    """``hidden`` ``[T, H]`` += ``rows`` ``[T, I]`` times ``tiles``."""
    for lane in prange(lanes):
        _ready_rows(rows, scales, x, stats, lane, lanes)
    for lane in prange(lanes):
        _project(tiles, bits, x, stats, hidden, True, lane, lanes)


@jit(parallel=True)
def add_mlp(
    hidden: Any, norm: Any, eps: Any, gates: Any, gate_bits: int, gate_scales: Any, down: Any, down_bits: int,
    down_scales: Any, x: Any, stats: Any, activated: Any, x_wide: Any, stats_wide: Any, lanes: int,
) -> None:  # fmt: skip
    """``hidden`` ``[T, H]`` += the MLP of its norm: SwiGLU through ``activated`` ``[T, F]``."""
    for lane in prange(lanes):
        _ready_normed(hidden, norm, eps, gate_scales, x, stats, lane, lanes)
    for lane in prange(lanes):
        _project_gates(gates, gate_bits, x, stats, activated, lane, lanes)
    for lane in prange(lanes):
        _ready_rows(activated, down_scales, x_wide, stats_wide, lane, lanes)
    for lane in prange(lanes):
        _project(down, down_bits, x_wide, stats_wide, hidden, True, lane, lanes)
