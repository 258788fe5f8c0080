"""numba kernels of the CPU backend: RoPE with the K/V write, and paged attention in place.

A bf16 pool is passed as its uint16 bits and widened to float32 in a tile that stays in L1; all
arithmetic is float32. One work item is (sequence, block of query rows, KV head). Its softmax is the
online one (Milakov and Gimelshein 2018) over fixed tiles of the context counted from position 0, so a
row's result does not depend on its neighbours, on how the prompt was chunked, or on block numbers.
The order of sums and the place of each rounding are those of this source (``engine.attention.jit``).
Keep all kernels in this file: numba's cache is invalidated by a change of the file a kernel is in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, prange

from engine.attention.jit import has_fma, intrinsic, jit, specialize

PANEL = 64  # width of the one inner product that everything is made of: four 512-bit registers
TILE = PANEL  # context tokens at a time: the K and V tiles take 2 * 64 * D * 4 bytes, 32 KiB for D 64
QUERY_BLOCK = 16  # positions of one sequence that share a pass over the context
NEGATIVE_INFINITY = np.float32(-np.inf)


def _widen(value: Any) -> Any:
    """A float32 as it is, or the float32 whose upper half are these bf16 bits."""
    raise NotImplementedError("compiled code only")


@specialize(_widen)
def _widen_overload(value: Any) -> Any:
    if str(value) == "uint16":

        def widen(value: Any) -> Any:
            return np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    else:

        def widen(value: Any) -> Any:
            return value

    return widen


@intrinsic
def _multiply_add(_: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` of float32, rounded once if the CPU has an instruction for it, else twice."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        a, b, c = values
        if has_fma(context):
            return builder.fma(a, b, c)
        return builder.fadd(builder.fmul(a, b), c)

    return float32(float32, float32, float32), emit


@jit()
def _bf16_bits(value: Any) -> Any:
    """Bits of the nearest bf16, ties to even."""
    bits = np.float32(value).view(np.uint32)
    rounded = np.uint32(bits + np.uint32(0x7FFF) + (np.uint32(bits >> np.uint32(16)) & np.uint32(1)))
    if value != value:  # rounding could carry a NaN's mantissa away
        rounded = np.uint32(0x7FC00000)
    return np.uint16(rounded >> np.uint32(16))


def _store(row: Any, index: Any, value: Any) -> None:
    """``row[index] = value`` in the row's own format (float32, or bf16 bits in uint16)."""
    raise NotImplementedError("compiled code only")


@specialize(_store)
def _store_overload(row: Any, index: Any, value: Any) -> Any:
    if str(row.dtype) == "uint16":

        def store(row: Any, index: Any, value: Any) -> None:
            row[index] = _bf16_bits(value)
    else:

        def store(row: Any, index: Any, value: Any) -> None:
            row[index] = value

    return store


# ---- rotate and store --------------------------------------------------------------------------


@jit()
def _rotate_head(source: Any, target: Any, cos: Any, sin: Any, scale: Any) -> None:
    """Rotate one head ``[D]``, halves paired as in Hugging Face's layout, times ``scale``."""
    half = cos.shape[0]
    for d in range(half):
        low, high = _widen(source[d]), _widen(source[d + half])
        _store(target, d, (low * cos[d] - high * sin[d]) * scale)
        _store(target, d + half, (high * cos[d] + low * sin[d]) * scale)


@jit()
def _rotate_rows(
    first: int, last: int, qkv: Any, cos: Any, sin: Any, slots: Any,
    pool: Any, layer: int, query: Any, scale: Any,
) -> None:  # fmt: skip
    num_heads, head_dim = query.shape[1], query.shape[2]
    num_kv_heads, block_size = pool.shape[3], pool.shape[4]
    for t in range(first, last):
        block, offset = slots[t] // block_size, slots[t] % block_size
        for h in range(num_heads):
            _rotate_head(qkv[t, h * head_dim : (h + 1) * head_dim], query[t, h], cos[t], sin[t], scale)
        for h in range(num_kv_heads):
            k = (num_heads + h) * head_dim
            v = k + num_kv_heads * head_dim
            key = pool[block, layer, 0, h, offset]
            value = pool[block, layer, 1, h, offset]
            _rotate_head(qkv[t, k : k + head_dim], key, cos[t], sin[t], np.float32(1.0))
            source = qkv[t, v : v + head_dim]
            for d in range(head_dim):  # a slice's assignment takes seconds longer to compile
                value[d] = source[d]


@jit(parallel=True)
def rotate_and_store(
    qkv: Any, cos: Any, sin: Any, slots: Any, pool: Any, layer: int,
    query: Any, scale: Any, lanes: int,
) -> None:  # fmt: skip
    """Rotate Q into ``query`` (float32 ``[T, Hq, D]``, times ``scale``), and K into the pool beside V."""
    num_rows = qkv.shape[0]
    for lane in prange(lanes):
        first, last = lane * num_rows // lanes, (lane + 1) * num_rows // lanes
        _rotate_rows(first, last, qkv, cos, sin, slots, pool, layer, query, scale)


# ---- attend ------------------------------------------------------------------------------------


@jit()
def _load_keys(source: Any, keys: Any, first: int) -> None:
    """Widen ``source`` ``[tokens, D]`` into ``keys[:, first : first + tokens]``, four tokens at a time.

    Unsigned indices spare the check for negative ones.
    """
    whole = source.shape[0] // 4 * 4
    for t in range(0, whole, 4):
        a, b, c, e = source[t], source[t + 1], source[t + 2], source[t + 3]
        column = np.uint64(first + t)
        for d in range(source.shape[1]):
            keys[d, column] = _widen(a[d])
            keys[d, column + np.uint64(1)] = _widen(b[d])
            keys[d, column + np.uint64(2)] = _widen(c[d])
            keys[d, column + np.uint64(3)] = _widen(e[d])
    for t in range(whole, source.shape[0]):
        for d in range(source.shape[1]):
            keys[d, np.uint64(first + t)] = _widen(source[t, d])


@jit()
def _load_values(source: Any, values: Any, first: int) -> None:
    """Widen ``source`` ``[tokens, D]`` into panels ``values[:, first : first + tokens]``."""
    head_dim = source.shape[1]
    for t in range(source.shape[0]):
        for p in range(values.shape[0]):
            piece = source[t, p * PANEL : min((p + 1) * PANEL, head_dim)]
            target = values[p, first + t]
            for d in range(piece.shape[0]):
                target[d] = _widen(piece[d])


@jit()
def _load_tile(
    pool: Any, layer: int, head: int, table: Any, base: int, count: int, keys: Any, values: Any
) -> None:
    """Widen tokens ``[base, base + count)`` of one KV head: keys transposed, values in panels."""
    block_size = pool.shape[4]
    done = 0
    while done < count:
        block, offset = table[(base + done) // block_size], (base + done) % block_size
        end = min(offset + count - done, block_size)
        _load_keys(pool[block, layer, 0, head, offset:end], keys, done)
        _load_values(pool[block, layer, 1, head, offset:end], values, done)
        done += end - offset


@jit()
def _add_row_times_panel(row: Any, panel: Any, out: Any) -> None:
    """``out[:PANEL] += row @ panel``; ``panel`` is ``[len(row), PANEL]``.

    The width is a constant, and the caller slices instead of passing bounds, because the compiler
    then needs no checks inside the loop and uses whole vector registers.
    """
    for i in range(row.shape[0]):
        weight = row[i]
        for j in range(PANEL):
            out[j] = _multiply_add(weight, panel[i, j], out[j])


@jit()
def _scale(row: Any, factor: Any) -> None:
    """``row[:PANEL] *= factor``."""
    for j in range(PANEL):
        row[j] *= factor


@jit(any_order=True)
def _maximum(scores: Any) -> Any:
    """Largest score. It may overlook a NaN, which then shows in the exponentials."""
    top = NEGATIVE_INFINITY
    for t in range(scores.shape[0]):
        top = max(top, scores[t])
    return top


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
        poly = _multiply_add(poly, f, np.float32(1.339887440266574e-3))
        poly = _multiply_add(poly, f, np.float32(9.618437357674640e-3))
        poly = _multiply_add(poly, f, np.float32(5.550332471162809e-2))
        poly = _multiply_add(poly, f, np.float32(2.402264791363012e-1))
        poly = _multiply_add(poly, f, np.float32(6.931472028550421e-1))
        poly = _multiply_add(poly, f, np.float32(1.0))
        power = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
        scores[t] = poly * power


@jit()
def _total(parts: Any) -> Any:
    """Sum of ``parts`` ``[TILE]``, which it overwrites: its halves are added until one number is left."""
    width = TILE // 2
    while width > 0:
        for t in range(width):
            parts[t] += parts[t + width]
        width //= 2
    return parts[0]


@jit()
def _attend_tile(
    query: Any, low: int, high: int, keys: Any, values: Any,
    scores: Any, acc: Any, row_max: Any, row_sums: Any, row: int,
) -> None:  # fmt: skip
    """Fold tokens ``[low, high)`` of one tile into the running softmax of one query row.

    The sum of its weights is kept as ``TILE`` sums, one for each place in a tile.
    """
    scores[:] = 0.0
    _add_row_times_panel(query, keys, scores)
    visible = scores[low:high]
    old = row_max[row]
    top = max(old, _maximum(visible))
    row_max[row] = top
    if old != top:
        decay = np.float32(np.exp2(old - top))
        _scale(row_sums[row], decay)
        for p in range(acc.shape[1]):
            _scale(acc[row, p], decay)
    _exp2_shifted(visible, top)
    sums = row_sums[row, low:high]
    for t in range(sums.shape[0]):
        sums[t] += visible[t]
    for p in range(acc.shape[1]):
        _add_row_times_panel(visible, values[p, low:high], acc[row, p])


@jit()
def _attend_item(
    first: int, count: int, position: int, window: int, head: int, table: Any,
    query: Any, pool: Any, layer: int, out: Any,
    keys: Any, values: Any, scores: Any, acc: Any, row_max: Any, row_sums: Any,
) -> None:  # fmt: skip
    """One KV head, ``count`` rows of one sequence from row ``first``, which is at ``position``."""
    head_dim, group = query.shape[2], query.shape[1] // pool.shape[3]
    num_rows = count * group
    acc[:num_rows] = 0.0
    row_max[:num_rows] = NEGATIVE_INFINITY
    row_sums[:num_rows] = 0.0
    end = position + count
    for base in range(max(0, position - window + 1) // TILE * TILE, end, TILE):
        _load_tile(pool, layer, head, table, base, min(TILE, end - base), keys, values)
        for r in range(num_rows):
            seen = position + r // group + 1 - base  # tokens of this tile up to the row's own
            low, high = max(0, seen - window), min(TILE, seen)
            if low < high:
                row_query = query[first + r // group, head * group + r % group]
                _attend_tile(
                    row_query, low, high, keys, values, scores, acc, row_max, row_sums, r
                )  # fmt: skip
    for r in range(num_rows):
        target = out[first + r // group, head * group + r % group]
        total = _total(row_sums[r])
        for d in range(head_dim):
            _store(target, d, acc[r, d // PANEL, d % PANEL] / total)


@jit(parallel=True)
def attend(
    query: Any, pool: Any, layer: int, tables: Any, work: Any, window: int, out: Any, lanes: int
) -> None:
    """Causal attention of ``query`` ``[T, Hq, D]`` into ``out`` ``[T, Hq, D]``.

    ``work`` ``[W, 4]``: sequence, first row, number of rows, position of the first row; longest first,
    dealt to the lanes like cards. Scores are in base 2: log2(e) is part of the query's scale.
    """
    num_kv_heads, head_dim = pool.shape[3], pool.shape[5]
    max_rows = QUERY_BLOCK * (query.shape[1] // num_kv_heads)
    panels = (head_dim + PANEL - 1) // PANEL
    for lane in prange(lanes):
        keys = np.zeros((head_dim, TILE), np.float32)
        values = np.zeros((panels, TILE, PANEL), np.float32)
        scores = np.empty(TILE, np.float32)
        acc = np.empty((max_rows, panels, PANEL), np.float32)
        row_max = np.empty(max_rows, np.float32)
        row_sums = np.empty((max_rows, TILE), np.float32)
        for item in range(lane, work.shape[0] * num_kv_heads, lanes):
            sequence, first, count, position = work[item // num_kv_heads]
            _attend_item(
                first, count, position, window, item % num_kv_heads, tables[sequence],
                query, pool, layer, out, keys, values, scores, acc, row_max, row_sums,
            )  # fmt: skip
