"""Attention of sequences with any number of rows: prefills, their chunks, and what a dropped prefix costs.

Bound by arithmetic. A program has a block of one sequence's positions and one KV head; the heads of the
group and the positions are the rows of one product. K and V of the step's own rows are in the pool already,
so context and fresh tokens are one case, and where a chunk begins makes no difference.
Runs on: step thread; launches only.
"""

from __future__ import annotations

import torch
import triton.language as tl

from engine.attention.base import AttentionMetadata
from engine.attention.triton.configs import KernelShape, Tile, extend_launch, query_block
from engine.attention.triton.tiles import NEGATIVE_INFINITY, finish, fold_tiles
from engine.kernels.jit import jit


@jit()
def find_sequence(
    query_start: tl.tensor, first: tl.tensor, num_seqs: tl.tensor, base: tl.tensor, block: tl.tensor,
    QUERY_BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """The sequence that query block ``block`` belongs to, and its number in the sequence, by bisection.

    Sequence ``i`` has the blocks from ``rows before it // QUERY_BLOCK + i`` on: enough for its rows, and at
    most one too many, so the host knows the number of all without knowing the lengths.
    """
    low, high = first, first + num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        begins = (tl.load(query_start + middle) - base) // QUERY_BLOCK + middle - first
        is_before = begins <= block
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle)
    begins = (tl.load(query_start + low) - base) // QUERY_BLOCK + low - first
    return low, block - begins


@jit()
def token_ranges(
    first_position: tl.tensor, last_position: tl.tensor, length: tl.tensor,
    TILE: tl.constexpr, WINDOW: tl.constexpr, INVARIANT: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """What rows at these positions see: the tokens between the first bound and the last.

    Those between the second and the third are seen by all rows. All but the last are multiples of ``TILE``.
    """
    begin = 0
    seen_by_all = 0
    if WINDOW > 0:
        begin = tl.maximum(first_position - WINDOW + 1, 0) // TILE * TILE
        seen_by_all = tl.cdiv(tl.maximum(last_position - WINDOW + 1, 0), TILE) * TILE
    seen_to = tl.minimum(first_position + 1, length) // TILE * TILE
    if INVARIANT:  # then all tiles take the way of those that not all rows see
        seen_to = begin
    seen_to = tl.maximum(seen_to, begin)
    seen_by_all = tl.minimum(tl.maximum(seen_by_all, begin), seen_to)
    return begin, seen_by_all, seen_to, tl.minimum(last_position + 1, length)


_VARYING = (
    "query_start", "context_start", "seq_lens", "block_tables", "table_stride", "first_seq", "num_seqs",
)  # fmt: skip


@jit(varying=_VARYING)
def extend_kernel(
    query: tl.tensor, kv: tl.tensor, query_start: tl.tensor, context_start: tl.tensor, seq_lens: tl.tensor,
    block_tables: tl.tensor, table_stride: tl.tensor, first_seq: tl.tensor, num_seqs: tl.tensor,
    out: tl.tensor, lse: tl.tensor,
    HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, PART_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr, SLOT_STRIDE: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, QUERY_BLOCK: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, INVARIANT: tl.constexpr,
) -> None:  # fmt: skip
    """One KV head of one query block: the grid is all of them, for its first axis alone may be long."""
    kv_head, block = tl.program_id(0) % (HEADS // GROUP), tl.program_id(0) // (HEADS // GROUP)
    base = tl.load(query_start + first_seq)
    sequence, number = find_sequence(query_start, first_seq, num_seqs, base, block, QUERY_BLOCK)
    begin_row, end_row = tl.load(query_start + sequence), tl.load(query_start + sequence + 1)
    num_rows = end_row - begin_row
    num_blocks = tl.cdiv(num_rows, QUERY_BLOCK)
    if number >= num_blocks:
        return
    # The last rows see the most: first those, so that the short ones fill the end.
    first_row = (num_blocks - 1 - number) * QUERY_BLOCK
    context = tl.load(context_start + sequence)
    length = tl.load(seq_lens + sequence)

    rows, dims = tl.arange(0, ROWS), tl.arange(0, PADDED_DIM)
    row_in_seq = first_row + rows // GROUP
    is_row = (rows < QUERY_BLOCK * GROUP) & (row_in_seq < num_rows)
    heads = kv_head * GROUP + rows % GROUP
    places = (begin_row + row_in_seq).to(tl.int64) * HEADS + heads
    mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(query + places[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)

    positions = context + row_in_seq
    last = tl.where(is_row, tl.minimum(positions + 1, length), 0)
    first = tl.maximum(positions - WINDOW + 1, 0)
    top_position = context + tl.minimum(first_row + QUERY_BLOCK, num_rows) - 1
    begin, seen_by_all, seen_to, end = token_ranges(
        context + first_row, top_position, length, TILE, WINDOW, INVARIANT
    )

    best = tl.full([ROWS], NEGATIVE_INFINITY, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    layer = kv + kv_head * HEAD_STRIDE
    table = block_tables + sequence.to(tl.int64) * table_stride
    if WINDOW > 0:
        best, total, sums = fold_tiles(
            begin, seen_by_all, q, best, total, sums, layer, table, length, first, last, TILE, True, True,
            HEAD_DIM, PADDED_DIM, BLOCK_SIZE, BLOCK_STRIDE, PART_STRIDE, SLOT_STRIDE, SCALE,
        )  # fmt: skip
    if not INVARIANT:
        best, total, sums = fold_tiles(
            seen_by_all, seen_to, q, best, total, sums, layer, table, length, first, last, TILE, False, False,
            HEAD_DIM, PADDED_DIM, BLOCK_SIZE, BLOCK_STRIDE, PART_STRIDE, SLOT_STRIDE, SCALE,
        )  # fmt: skip
    best, total, sums = fold_tiles(
        seen_to, end, q, best, total, sums, layer, table, length, first, last, TILE, True, WINDOW > 0,
        HEAD_DIM, PADDED_DIM, BLOCK_SIZE, BLOCK_STRIDE, PART_STRIDE, SLOT_STRIDE, SCALE,
    )  # fmt: skip
    result, log_total = finish(best, total, sums)
    tl.store(out + places[:, None] * HEAD_DIM + dims[None, :], result.to(out.dtype.element_ty), mask=mask)
    if lse is not None:
        tl.store(lse + places, log_total, mask=is_row)


def extend(
    query: torch.Tensor,
    kv: torch.Tensor,
    metadata: AttentionMetadata,
    first_seq: int,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    shape: KernelShape,
    tile: Tile,
    *,
    batch_invariant: bool = False,
) -> None:
    """Attend the rows of all sequences from ``first_seq`` on; those before must have one row each.

    ``query`` and ``out`` are ``[T, Hq, D]``, ``lse`` float32 ``[T, Hq]``, base 2; rows of other sequences
    are left as they are. ``kv`` is a layer's view ``[N, 2, Hkv, block_size, D]``. A row sees the tokens up
    to its own position that are below its sequence's length: with rows placed behind it, all of a context.
    """
    num_seqs = metadata.seq_lens.shape[0] - first_seq
    num_rows = query.shape[0] - first_seq
    num_blocks = num_rows // query_block(shape, tile) + num_seqs
    tables = metadata.block_tables
    extend_kernel[(shape.num_kv_heads * num_blocks,)](
        query, kv, metadata.query_start, metadata.context_start, metadata.seq_lens,
        tables, tables.stride(0), first_seq, num_seqs, out, lse,
        **extend_launch(shape, tile, batch_invariant=batch_invariant).keywords(),
    )  # fmt: skip
