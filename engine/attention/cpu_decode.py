"""numba kernel of the CPU backend for decodes: one layer of sequences of one row each, in one call.

The arithmetic is that of ``engine.attention.cpu_prompt``, sum by sum and rounding by rounding, so a row has
the bits that ``attend`` gives it. What differs is who shares what: the heads of a group go through a tile
together, V is read where it lies, and a unit of work is (sequence, KV head, segment), so that one long
context keeps all cores busy.
Files of a directory may call each other's kernels (``engine.compiled.jit``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from engine.attention.cpu_rotate import rotate_head, store_head
from engine.attention.cpu_softmax import (
    NEGATIVE_INFINITY,
    PANEL,
    SEGMENT,
    TILE,
    add_segment,
    finish,
    soften,
)
from engine.compiled.jit import jit
from engine.compiled.vectors import LANES, add_products, load_transposed, prefetch


@jit(inline=True)
def _rotate_queries(row: Any, head: int, cos: Any, sin: Any, scale: Any, query: Any) -> None:
    """The queries ``[group, D]`` of one KV head, rotated, times ``scale``, from a row of ``qkv``."""
    group, head_dim = query.shape
    for g in range(group):
        first = (head * group + g) * head_dim
        rotate_head(row[first : first + head_dim], query[g], cos, sin, scale)


@jit()
def _prefetch(pool: Any, layer: int, part: int, head: int, table: Any, first: int, last: int) -> None:
    """Begin to read tokens ``[first, last)``, of K as ``part`` 0 or of V as 1."""
    block_size = pool.shape[4]
    for t in range(first, last, LANES):
        block, offset = table[t // block_size], t % block_size
        prefetch(pool[block, layer, part, head, offset : offset + LANES])


@jit(inline=True)
def _decode_tile(
    query: Any, base: int, low: int, high: int, end: int, head: int, table: Any, pool: Any, layer: int,
    keys: Any, scores: Any, state: Any, top: Any,
) -> None:  # fmt: skip
    """Fold tokens ``[low, high)`` of the tile at ``base`` into the running softmax of a group's rows.

    Beside K it asks for its V, and beside V for K of the next tile, up to ``end``: so much L1 can hold.
    """
    block_size, first = pool.shape[4], low // LANES * LANES
    for t in range(first, high, LANES):
        block, offset = table[(base + t) // block_size], (base + t) % block_size
        _prefetch(pool, layer, 1, head, table, base + t, base + t + LANES)
        load_transposed(pool[block, layer, 0, head, offset : offset + LANES], keys[:, t:])
    scores[:] = 0.0
    add_products(query, keys, scores)
    soften(scores, low, high, state, top)
    sums = state.reshape(state.shape[0], state.shape[1] * PANEL)
    for t in range(first, high, LANES):
        block, offset = table[(base + t) // block_size], (base + t) % block_size
        seen, last = max(low, t), min(high, t + LANES)
        values = pool[block, layer, 1, head, offset + seen - t : offset + last - t]
        _prefetch(pool, layer, 0, head, table, base + TILE + t, min(end, base + TILE + t + LANES))
        add_products(scores[:, seen:last], values, sums)


@jit(inline=True)
def _decode_segment(
    query: Any, start: int, stop: int, end: int, window: int, head: int, table: Any, pool: Any, layer: int,
    keys: Any, scores: Any, state: Any, top: Any,
) -> None:  # fmt: skip
    """Tokens ``[start, stop)``, all of one segment, for ``query`` at the last of ``end`` positions."""
    state[:] = 0.0
    top[:] = NEGATIVE_INFINITY
    for base in range(start, stop, TILE):
        low, high = max(0, end - window - base), min(TILE, stop - base)
        _decode_tile(query, base, low, high, end, head, table, pool, layer, keys, scores, state, top)


@jit(inline=True)
def _add_head(places: Any, tops: Any, first: int, last: int, total: Any, total_top: Any) -> None:
    """Add the segments in ``places[first:last]`` to those before them."""
    for place in range(first, last):
        for g in range(total.shape[0]):
            add_segment(places[place], tops[place], total, total_top, g)


@jit(inline=True)
def _finish_head(total: Any, total_top: Any, out: Any) -> None:
    """Into ``out`` ``[group, D]``; ``total`` is then that of no segments."""
    for g in range(out.shape[0]):
        finish(total[g], out[g])
    total[:] = 0.0
    total_top[:] = NEGATIVE_INFINITY


@jit(wrapped=False)
def _decode_runs(
    runs: Any, qkv: Any, cos: Any, sin: Any, slots: Any, tables: Any, positions: Any,
    pool: Any, layer: int, scale: Any, window: int, out: Any, places: Any, tops: Any,
) -> None:  # fmt: skip
    """``runs`` ``[W, 6]`` as ``decode`` has them, one after the other."""
    num_kv_heads, head_dim, group = pool.shape[3], pool.shape[5], places.shape[1]
    query = np.empty((group, head_dim), np.float32)
    keys = np.zeros((head_dim, TILE), np.float32)
    scores = np.empty((group, TILE), np.float32)
    total = np.zeros(places.shape[1:], np.float32)
    total_top = np.full(group, NEGATIVE_INFINITY, np.float32)
    for run in range(runs.shape[0]):
        row, head, start, stop, place, step = runs[run]
        end = positions[row] + 1
        _rotate_queries(qkv[row], head, cos[row], sin[row], scale, query)
        if stop == end:
            store_head(qkv[row], group * num_kv_heads, head, cos[row], sin[row], slots[row], pool, layer)
        while start < stop:
            after = min((start // SEGMENT + 1) * SEGMENT, stop)
            _decode_segment(
                query, start, after, end, window, head, tables[row], pool, layer,
                keys, scores, places[place], tops[place],
            )  # fmt: skip
            if step == 0:
                _add_head(places, tops, place, place + 1, total, total_top)
            start = after
            place += step
        if run + 1 < runs.shape[0]:
            row_after, head_after, start, stop, _, _ = runs[run + 1]
            _prefetch(pool, layer, 0, head_after, tables[row_after], start, min(start + TILE, stop))
        if step == 0:
            _finish_head(total, total_top, out[row, head * group : (head + 1) * group])


@jit(parallel=True)
def decode(
    qkv: Any, cos: Any, sin: Any, slots: Any, tables: Any, positions: Any, runs: Any, bounds: Any, split: Any,
    pool: Any, layer: int, scale: Any, window: int, out: Any, num_places: int,
) -> None:  # fmt: skip
    """Rotate Q and K, store K and V, attend: ``qkv`` ``[B, (Hq + 2 Hkv) * D]`` to ``out`` ``[B, Hq, D]``.

    Both are float32. Lane i has ``runs`` from ``bounds[i]`` to ``bounds[i + 1]``. A run ``[6]`` is a row, a
    KV head, tokens from the first to the last, where among ``num_places`` the sums of a segment go, and 1 if
    those of the next segment go to the next place, because lanes share the head, else 0. Of each shared head
    ``split`` ``[S, 4]`` has row, KV head, and places from the first to the last.
    D is a multiple of 16, and so is the size of a block. ``scale`` has log2(e) in it.
    """
    num_kv_heads, head_dim = pool.shape[3], pool.shape[5]
    group, panels = out.shape[1] // num_kv_heads, (head_dim + PANEL - 1) // PANEL
    places = np.empty((num_places, group, panels + 1, PANEL), np.float32)
    tops = np.empty((num_places, group), np.float32)
    for lane in prange(bounds.shape[0] - 1):
        _decode_runs(
            runs[bounds[lane] : bounds[lane + 1]], qkv, cos, sin, slots, tables, positions,
            pool, layer, scale, window, out, places, tops,
        )  # fmt: skip
    total = np.zeros(places.shape[1:], np.float32)
    total_top = np.full(group, NEGATIVE_INFINITY, np.float32)
    for index in range(split.shape[0]):
        row, head, first, last = split[index]
        _add_head(places, tops, first, last, total, total_top)
        _finish_head(total, total_top, out[row, head * group : (head + 1) * group])
