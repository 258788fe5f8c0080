"""Makes a step's inputs on the device, out of the few words a sequence that the host sends. One launch.

One program a sequence: it writes the sequence's lengths, the rows of its new tokens (ids, positions, slots in
the pool) and its block table, which is the one kept from earlier steps and what has changed of it. Changes
are read where they were sent and written to the kept table, never read back: nobody waits for anybody.
"""

from __future__ import annotations

import torch
import triton.language as tl

from engine.attention.base import AttentionMetadata
from engine.fused.configs import step_inputs_launch
from engine.kernels.jit import jit


@jit(varying=["records_at", "token_ids_at"])
def step_inputs_kernel(
    words: tl.tensor, kept_tables: tl.tensor,
    token_ids: tl.tensor, positions: tl.tensor, slot_mapping: tl.tensor,
    query_start: tl.tensor, context_start: tl.tensor, seq_lens: tl.tensor, block_tables: tl.tensor,
    records_at: tl.tensor, token_ids_at: tl.tensor,
    TABLE_WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, RECORD_WORDS: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """The grid is (sequences). Shapes are those of ``expand``."""
    sequence = tl.program_id(0)
    record = words + records_at + sequence * RECORD_WORDS
    first_row = tl.load(record)
    num_rows = tl.load(record + 1)
    start = tl.load(record + 2)
    table_row = tl.load(record + 3)
    first_changed = tl.load(record + 4)
    table_length = tl.load(record + 5)
    changed = words + tl.load(record + 6)
    is_there = table_row >= 0
    seq_len = tl.where(is_there, start + num_rows, 0)
    tl.store(context_start + sequence, start)
    tl.store(seq_lens + sequence, seq_len)
    tl.store(query_start + sequence, first_row)
    is_last = sequence == tl.num_programs(0) - 1
    tl.store(query_start + sequence + 1, first_row + num_rows, mask=is_last)

    kept = kept_tables + table_row.to(tl.int64) * TABLE_WIDTH
    table = block_tables + sequence.to(tl.int64) * TABLE_WIDTH
    for at in range(0, table_length, TILE):
        index = at + tl.arange(0, TILE)
        is_within = index < table_length
        is_changed = is_within & (index >= first_changed)
        new = tl.load(changed + (index - first_changed), mask=is_changed, other=0)
        old = tl.load(kept + index, mask=is_within & (index < first_changed), other=0)
        tl.store(kept + index, new, mask=is_changed)
        tl.store(table + index, tl.where(is_changed, new, old), mask=is_within)

    for at in range(0, num_rows, TILE):
        row = at + tl.arange(0, TILE)
        is_within = row < num_rows
        position = start + row
        index = position // BLOCK_SIZE
        is_changed = is_within & (index >= first_changed)
        is_kept = is_within & (index < first_changed)
        new = tl.load(changed + (index - first_changed), mask=is_changed & is_there, other=0)
        old = tl.load(kept + index, mask=is_kept & is_there, other=0)
        slot = tl.where(is_changed, new, old) * BLOCK_SIZE + position % BLOCK_SIZE
        out = first_row + row
        token_id = tl.load(words + token_ids_at + out, mask=is_within, other=0)
        tl.store(token_ids + out, token_id.to(tl.int64), mask=is_within)
        tl.store(positions + out, position.to(tl.int64), mask=is_within)
        tl.store(slot_mapping + out, tl.where(is_there, slot, -1), mask=is_within)


def expand(
    words: torch.Tensor,
    kept_tables: torch.Tensor,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    attention: AttentionMetadata,
    *,
    records_at: int,
    token_ids_at: int,
    block_size: int,
) -> None:
    """Fill ``token_ids`` and ``positions`` ``[T]`` (int64) and ``attention``, and update ``kept_tables``.

    ``words`` ``[W]`` (int32) has the sequences' records and the rows' tokens at these offsets, as
    ``engine.execution.step_layout`` writes them. A sequence without a table has length 0 and slots of -1.
    ``kept_tables`` ``[rows, width]`` is as wide as the block tables ``[S, width]``; what is past the end of a
    table stays as it is.
    """
    width, num_seqs = kept_tables.stride(0), attention.seq_lens.shape[0]
    assert attention.block_tables.stride(0) == width
    step_inputs_kernel[(num_seqs,)](
        words, kept_tables, token_ids, positions, attention.slot_mapping, attention.query_start,
        attention.context_start, attention.seq_lens, attention.block_tables, records_at, token_ids_at,
        **step_inputs_launch(block_size, width).keywords(),
    )  # fmt: skip
