"""numba kernel of the CPU backend for prompts: paged attention in place.

A bf16 pool is passed as its uint16 bits and widened to float32 in a tile that stays in L1; all
arithmetic is float32. One work item is (sequence, block of query rows, KV head). Tiles and segments are
fixed (``engine.attention.cpu_softmax``), and a row's sums have one order; so its result does not depend on
its neighbours, on how the prompt was chunked, on block numbers, or on who computed which segment
(``engine.attention.cpu_decode``).
The order of sums and the place of each rounding are those of this source (``engine.compiled.jit``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from engine.attention.cpu_softmax import (
    NEGATIVE_INFINITY,
    PANEL,
    SEGMENT,
    TILE,
    add_segment,
    finish,
    soften,
)
from engine.compiled.bf16 import widen
from engine.compiled.jit import jit
from engine.compiled.vectors import LANES, add_products, load_transposed

QUERY_BLOCK = 16  # positions of one sequence that share a pass over the context


@jit(inline=True)
def _load_keys(source: Any, keys: Any, first: int) -> None:
    """Widen ``source`` ``[tokens, D]`` into ``keys[:, first : first + tokens]``."""
    whole = 0
    if source.shape[1] % LANES == 0:
        whole = source.shape[0] // LANES * LANES
        for t in range(0, whole, LANES):
            load_transposed(source[t : t + LANES], keys[:, first + t :])
    for t in range(whole, source.shape[0]):
        for d in range(source.shape[1]):
            keys[d, first + t] = widen(source[t, d])


@jit(inline=True)
def _load_values(source: Any, values: Any, first: int) -> None:
    """Widen ``source`` ``[tokens, D]`` into ``values[first : first + tokens]``."""
    for t in range(source.shape[0]):
        row, target = source[t], values[first + t]
        for d in range(row.shape[0]):
            target[d] = widen(row[d])


@jit(inline=True)
def _load_tile(
    pool: Any, layer: int, head: int, table: Any, base: int, count: int, keys: Any, values: Any
) -> None:
    """Widen tokens ``[base, base + count)`` of one KV head, the keys transposed."""
    block_size = pool.shape[4]
    done = 0
    while done < count:
        block, offset = table[(base + done) // block_size], (base + done) % block_size
        end = min(offset + count - done, block_size)
        _load_keys(pool[block, layer, 0, head, offset:end], keys, done)
        _load_values(pool[block, layer, 1, head, offset:end], values, done)
        done += end - offset


@jit()
def _add_products(rows: Any, matrix: Any, out: Any) -> None:
    """``add_products``, compiled once for each way in which its arrays may lie."""
    add_products(rows, matrix, out)


@jit(inline=True)
def _attend_tile(
    query: Any, group: int, position: int, base: int, window: int,
    keys: Any, values: Any, scores: Any, state: Any, top: Any,
) -> None:  # fmt: skip
    """Fold the tile at ``base`` into the running softmax of ``query`` ``[count * group, D]``.

    Positions that see all of the tile go through it together, others one by one.
    """
    count = query.shape[0] // group
    first, last = max(0, base - position), min(count, base + TILE - 1 - position + window)
    step = 1
    if base + TILE <= position + first + 1 and position + last - window <= base:
        step = last - first
    sums = state.reshape(state.shape[0], state.shape[1] * PANEL)
    scores[first * group : last * group] = 0.0
    _add_products(query[first * group : last * group], keys, scores[first * group : last * group])
    for i in range(first, last, step):
        seen = position + i + 1 - base  # tokens of this tile up to the position's own
        low, high = max(0, seen - window), min(TILE, seen)
        start, stop = i * group, (i + step) * group
        soften(scores[start:stop], low, high, state[start:stop], top[start:stop])
        _add_products(scores[start:stop, low:high], values[low:high], sums[start:stop])


@jit(inline=True)
def _attend_segment(
    start: int, end: int, group: int, position: int, window: int, head: int, table: Any,
    query: Any, pool: Any, layer: int, keys: Any, values: Any, scores: Any, state: Any, top: Any,
) -> None:  # fmt: skip
    """Tokens ``[start, end)``, all of one segment, for ``[count * group, D]`` from ``position`` on."""
    state[: query.shape[0]] = 0.0
    top[: query.shape[0]] = NEGATIVE_INFINITY
    for base in range(start, end, TILE):
        _load_tile(pool, layer, head, table, base, min(TILE, end - base), keys, values)
        _attend_tile(query, group, position, base, window, keys, values, scores, state, top)


@jit(wrapped=False)
def _attend_item(
    first: int, count: int, position: int, window: int, head: int, table: Any,
    query: Any, pool: Any, layer: int, out: Any,
    keys: Any, values: Any, scores: Any, state: Any, top: Any, total: Any, total_top: Any,
) -> None:  # fmt: skip
    """One KV head, ``count`` rows of one sequence from row ``first``, which is at ``position``."""
    group = out.shape[1] // pool.shape[3]
    num_rows = count * group
    queries = query[head, first * group : first * group + num_rows]
    total[:num_rows] = 0.0
    total_top[:num_rows] = NEGATIVE_INFINITY
    start, end = max(0, position - window + 1) // TILE * TILE, position + count
    while start < end:
        stop = min((start // SEGMENT + 1) * SEGMENT, end)
        _attend_segment(
            start, stop, group, position, window, head, table,
            queries, pool, layer, keys, values, scores, state, top,
        )  # fmt: skip
        for r in range(num_rows):
            add_segment(state, top, total, total_top, r)
        start = stop
    for r in range(num_rows):
        finish(total[r], out[first + r // group, head * group + r % group])


@jit(parallel=True)
def attend(
    query: Any, pool: Any, layer: int, tables: Any, work: Any, window: int, out: Any, lanes: int
) -> None:
    """Causal attention of ``query`` ``[Hkv, T * group, D]`` into float32 ``out`` ``[T, Hq, D]``.

    ``work`` ``[W, 4]``: sequence, first row, number of rows, position of the first row; longest first,
    dealt to the lanes like cards. Scores are in base 2: log2(e) is part of the query's scale.
    """
    num_kv_heads, head_dim = pool.shape[3], pool.shape[5]
    max_rows = QUERY_BLOCK * (out.shape[1] // num_kv_heads)
    panels = (head_dim + PANEL - 1) // PANEL
    for lane in prange(lanes):
        keys = np.zeros((head_dim, TILE), np.float32)
        values = np.zeros((TILE, (head_dim + LANES - 1) // LANES * LANES), np.float32)
        scores = np.empty((max_rows, TILE), np.float32)
        state = np.empty((max_rows, panels + 1, PANEL), np.float32)
        top = np.empty(max_rows, np.float32)
        total = np.empty((max_rows, panels + 1, PANEL), np.float32)
        total_top = np.empty(max_rows, np.float32)
        for item in range(lane, work.shape[0] * num_kv_heads, lanes):
            sequence, first, count, position = work[item // num_kv_heads]
            _attend_item(
                first, count, position, window, item % num_kv_heads, tables[sequence],
                query, pool, layer, out, keys, values, scores, state, top, total, total_top,
            )  # fmt: skip
