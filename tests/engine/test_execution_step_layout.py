"""A step as words, read back by what the layout says."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from engine.execution.draws import Draws, of_every_row, of_rows_that_ask
from engine.execution.step_layout import StepCounts, StepLayout, Words, write_step
from engine.execution.table_rows import TableRows
from engine.fused.configs import RECORD_WORDS
from engine.messages import SamplingParams
from engine.schedule import SampleSpec, ScheduledChunk, SchedulerOutput
from tiering.types import BlockCopy, BlockId

WIDTH = 16
SEED = 2**64 - 3
SPEC = SampleSpec(
    SamplingParams(max_tokens=1, seed=0, temperature=0.25, top_p=0.5, min_p=0.125, top_k=9),
    (SEED,), 40, (1,), (), (),
)  # fmt: skip
PLAN = SchedulerOutput(
    (
        ScheduledChunk("a", (11,), 39, (7, 8, 9), SPEC),
        ScheduledChunk("b", (21,), 3, [5], None),
        ScheduledChunk("c", (31, 32, 33), 14, [2, 3], SPEC),
    ),
    (BlockCopy(BlockId(4), BlockId(9)), BlockCopy(BlockId(2**20), BlockId(3))),
)


def write(plan: SchedulerOutput, num_seqs: int, tables: TableRows) -> tuple[StepLayout, Words]:
    padding = num_seqs - len(plan.chunks)
    wanted = of_every_row(plan, num_seqs) if padding else of_rows_that_ask(plan)
    assert wanted is not None
    counts = StepCounts(
        num_seqs, plan.num_tokens + padding, len(wanted.logit_rows), len(wanted.draws), len(plan.copies)
    )
    layout = StepLayout.of(counts)
    words = np.full(1024, -77, dtype=np.int32)
    used = write_step(words, layout, plan.chunks, plan.copies, wanted.draws, wanted.logit_rows, tables)
    assert (words[used:] == -77).all()
    return layout, words


def read(words: Words, at: int, count: int, dtype: type[np.generic]) -> list[object]:
    size = count * np.dtype(dtype).itemsize // 4
    part: npt.NDArray[np.generic] = words[at : at + size].view(dtype)
    return part.tolist()  # type: ignore[no-any-return]


def test_everything_is_where_the_layout_says() -> None:
    layout, words = write(PLAN, 3, TableRows(6, WIDTH))
    assert read(words, layout.logit_rows, 2, np.int64) == [0, 4]
    assert read(words, layout.draw_rows, 2, np.int64) == [0, 1]
    assert read(words, layout.seeds, 2, np.uint64) == [SEED, SEED]
    assert read(words, layout.positions, 2, np.int64) == [40, 40]
    assert read(words, layout.temperatures, 2, np.float32) == [0.25, 0.25]
    assert read(words, layout.top_ps, 2, np.float32) == [0.5, 0.5]
    assert read(words, layout.min_ps, 2, np.float32) == [0.125, 0.125]
    assert read(words, layout.top_ks, 2, np.int32) == [9, 9]
    assert read(words, layout.token_ids, 5, np.int32) == [11, 21, 31, 32, 33]
    assert read(words, layout.copy_sources, 2, np.int64) == [4, 2**20]
    assert read(words, layout.copy_targets, 2, np.int64) == [9, 3]
    at = layout.changes
    records = words[layout.records : layout.records + 3 * RECORD_WORDS].reshape(3, RECORD_WORDS)
    assert records[:, :7].tolist() == [
        [0, 1, 39, 0, 0, 3, at],
        [1, 1, 3, 1, 0, 1, at + 3],
        [2, 3, 14, 2, 0, 2, at + 4],
    ]
    assert read(words, at, 6, np.int32) == [7, 8, 9, 5, 2, 3]


def test_padding_is_sequences_of_one_row_without_a_table() -> None:
    plan = dataclasses.replace(PLAN, chunks=PLAN.chunks[:2])
    layout, words = write(plan, 4, TableRows(6, WIDTH))
    assert read(words, layout.token_ids, 4, np.int32) == [11, 21, 0, 0]
    records = words[layout.records : layout.records + 4 * RECORD_WORDS].reshape(4, RECORD_WORDS)
    assert records[2:, :6].tolist() == [[2, 1, 0, -1, 0, 0], [3, 1, 0, -1, 0, 0]]


def test_what_a_graph_reads_does_not_move() -> None:
    """However many copies there are, and whatever has changed in tables."""
    tables = TableRows(6, WIDTH)
    first, _ = write(dataclasses.replace(PLAN, chunks=PLAN.chunks[:2]), 4, tables)
    second, _ = write(SchedulerOutput(PLAN.chunks[:1]), 4, tables)
    names = {field.name for field in dataclasses.fields(StepLayout)}
    for name in names - {"counts", "copy_sources", "copy_targets", "changes", "end"}:
        assert getattr(first, name) == getattr(second, name), name


def test_every_part_is_aligned() -> None:
    """To 16 bytes, so that no step's pointers are of another kind than those kernels were compiled for."""
    for counts in (StepCounts(1, 1, 1, 1, 1), StepCounts(5, 9, 3, 7, 2), StepCounts(4, 4, 0, 4, 0)):
        layout = StepLayout.of(counts)
        offsets = [getattr(layout, field.name) for field in dataclasses.fields(StepLayout)[1:]]
        assert all(offset % 4 == 0 for offset in offsets) and offsets == sorted(offsets)


def test_more_changes_than_there_is_room_for() -> None:
    layout = StepLayout.of(StepCounts(num_seqs=1, num_rows=1))
    words = np.zeros(layout.changes + 2, dtype=np.int32)
    chunks = (ScheduledChunk("a", (1,), 0, (1, 2, 3), None),)
    with pytest.raises(AssertionError):
        write_step(words, layout, chunks, (), Draws(), (), TableRows(2, WIDTH))
