"""Attention of decodes: one row a sequence, its context split between programs.

Bound by memory, so every K and V is read once (Flash-Decoding, Dao et al. 2023). The heads of a group are
the rows of one product, padded to what tensor cores take. ``engine.attention.triton.splits`` says who reads
what; a sequence that is not split is written at once, the partial results of others are for
``engine.attention.triton.combine``. Runs on: step thread; launches only.
"""

from __future__ import annotations

import torch
import triton.language as tl

from engine.attention.triton.configs import KernelShape, decode_launch
from engine.attention.triton.splits import SplitPlan
from engine.attention.triton.tiles import NEGATIVE_INFINITY, finish, fold_tiles
from engine.kernels.jit import jit


@jit(varying=["block_tables", "table_stride"])
def decode_kernel(
    query: tl.tensor, kv: tl.tensor, block_tables: tl.tensor, table_stride: tl.tensor, work: tl.tensor,
    out: tl.tensor, lse: tl.tensor, partial_out: tl.tensor, partial_lse: tl.tensor,
    HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, PART_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr, SLOT_STRIDE: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """One KV head of one piece of work: the grid is (KV heads, pieces)."""
    kv_head, piece = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(work + piece * 4)
    begin = tl.load(work + piece * 4 + 1)
    end = tl.load(work + piece * 4 + 2)
    is_whole = tl.load(work + piece * 4 + 3)
    if sequence < 0:
        return
    rows, dims = tl.arange(0, ROWS), tl.arange(0, PADDED_DIM)
    heads = kv_head * GROUP + rows
    mask = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    places = (sequence.to(tl.int64) * HEADS + heads)[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(query + places, mask=mask, other=0.0)

    best = tl.full([ROWS], NEGATIVE_INFINITY, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    layer = kv + kv_head * HEAD_STRIDE
    table = block_tables + sequence.to(tl.int64) * table_stride
    first, last = tl.zeros([ROWS], tl.int32), tl.zeros([ROWS], tl.int32) + end
    whole_tiles = begin + (end - begin) // TILE * TILE
    best, total, sums = fold_tiles(
        begin, whole_tiles, q, best, total, sums, layer, table, end, first, last,
        TILE, False, False, HEAD_DIM, PADDED_DIM, BLOCK_SIZE, BLOCK_STRIDE, PART_STRIDE, SLOT_STRIDE, SCALE,
    )  # fmt: skip
    best, total, sums = fold_tiles(
        whole_tiles, end, q, best, total, sums, layer, table, end, first, last,
        TILE, True, False, HEAD_DIM, PADDED_DIM, BLOCK_SIZE, BLOCK_STRIDE, PART_STRIDE, SLOT_STRIDE, SCALE,
    )  # fmt: skip
    result, log_total = finish(best, total, sums)

    if is_whole != 0:
        tl.store(out + places, result.to(out.dtype.element_ty), mask=mask)
        if lse is not None:
            tl.store(lse + sequence * HEADS + heads, log_total, mask=rows < GROUP)
    else:
        part = piece.to(tl.int64) * HEADS + heads
        tl.store(partial_out + part[:, None] * HEAD_DIM + dims[None, :], result, mask=mask)
        tl.store(partial_lse + part, log_total, mask=rows < GROUP)


def decode(
    query: torch.Tensor,
    kv: torch.Tensor,
    block_tables: torch.Tensor,
    plan: SplitPlan,
    num_decodes: int,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    shape: KernelShape,
) -> None:
    """Attend the first ``num_decodes`` rows of ``query`` ``[T, Hq, D]``, which are as many sequences.

    Writes the rows of sequences that are not split to ``out`` and, base 2, to ``lse`` ``[T, Hq]``, and
    partial results of the others to the plan's buffers. ``kv`` is a layer's view ``[N, 2, Hkv, block_size,
    D]``.
    """
    decode_kernel[(shape.num_kv_heads, plan.num_pieces(num_decodes))](
        query, kv, block_tables, block_tables.stride(0), plan.work,
        out, lse, plan.partial_out, plan.partial_lse,
        **decode_launch(shape).keywords(),
    )  # fmt: skip
