"""What the attention kernels share: one tile of context folded into a running softmax.

The softmax is the online one (Milakov and Gimelshein 2018), in base 2, with state (best score, total
weight, weighted sum of V) in float32. A tile is read through the block table, each token by its own entry:
tile and block are independent of each other. Products of 16-bit factors go to the tensor cores and are
summed in float32; those of float32 factors are IEEE, never tf32.
"""

from __future__ import annotations

import triton.language as tl

from engine.kernels.jit import jit

NEGATIVE_INFINITY = tl.constexpr(float("-inf"))


@jit()
def fold_tiles(
    begin: tl.tensor, end: tl.tensor, query: tl.tensor, best: tl.tensor, total: tl.tensor, sums: tl.tensor,
    kv: tl.tensor, table: tl.tensor, limit: tl.tensor, first: tl.tensor, last: tl.tensor,
    TILE: tl.constexpr, MASKED: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, PART_STRIDE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr, SCALE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Fold the tiles from ``begin`` on that start before ``end`` into the state of ``query`` ``[M, D]``.

    ``kv`` is a layer's pool at this KV head, ``table`` the sequence's block table. Row ``m`` sees tokens
    ``first[m]`` to ``last[m] - 1``; none at or past ``limit`` is read. Unless ``MASKED`` every row sees
    every token of every tile.
    """
    dims = tl.arange(0, PADDED_DIM)
    for start in range(begin, end, TILE):
        tokens = start + tl.arange(0, TILE)
        known = tokens < limit
        if MASKED:
            blocks = tl.load(table + tokens // BLOCK_SIZE, mask=known, other=0)
        else:
            blocks = tl.load(table + tokens // BLOCK_SIZE)
        # A pool has more than 2^31 elements.
        offsets = blocks.to(tl.int64) * BLOCK_STRIDE + tokens % BLOCK_SIZE * SLOT_STRIDE
        pointers = kv + offsets[:, None] + dims[None, :]
        if MASKED:  # an unused slot may hold NaN, and so must not be read, not even to be weighted with 0
            readable = known[:, None] & (dims < HEAD_DIM)[None, :]
            keys = tl.load(pointers, mask=readable, other=0.0)
            values = tl.load(pointers + PART_STRIDE, mask=readable, other=0.0)
        elif PADDED_DIM != HEAD_DIM:
            readable = (dims < HEAD_DIM)[None, :]
            keys = tl.load(pointers, mask=readable, other=0.0)
            values = tl.load(pointers + PART_STRIDE, mask=readable, other=0.0)
        else:
            keys = tl.load(pointers)
            values = tl.load(pointers + PART_STRIDE)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * SCALE
        if MASKED:
            visible = tokens[None, :] < last[:, None]
            if HAS_WINDOW:
                visible = visible & (tokens[None, :] >= first[:, None])
            scores = tl.where(visible, scores, NEGATIVE_INFINITY)
        top = tl.maximum(best, tl.max(scores, 1))
        shift = top
        if MASKED:  # a row that has seen nothing yet must not come to inf - inf
            shift = tl.where(top == NEGATIVE_INFINITY, 0.0, top)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(best - shift)
        total = total * decay + tl.sum(weights, 1)
        sums = tl.dot(weights.to(values.dtype), values, sums * decay[:, None], input_precision="ieee")
        best = top
    return best, total, sums


@jit()
def finish(best: tl.tensor, total: tl.tensor, sums: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Output ``[M, D]`` and base-2 log of all weights ``[M]``: 0 and -inf for a row that saw nothing."""
    empty = total == 0.0
    out = sums / tl.where(empty, 1.0, total)[:, None]
    return out, tl.where(empty, NEGATIVE_INFINITY, best + tl.log2(tl.where(empty, 1.0, total)))
