"""A plan as tensors, checked by walking its chunks one token at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.execution.batch import build_model_input
from engine.messages import SamplingParams
from engine.schedule import SampleSpec, ScheduledChunk, SchedulerOutput

CPU = torch.device("cpu")
SPEC = SampleSpec(SamplingParams(max_tokens=1, seed=0), (0,), 1, (1,), (), ())


@st.composite
def chunks(draw: st.DrawFn) -> ScheduledChunk:
    start, rows = draw(st.integers(0, 70)), draw(st.integers(1, 40))
    tokens = draw(st.lists(st.integers(0, 10**6), min_size=rows, max_size=rows))
    blocks = -(-(start + rows) // 16) + draw(st.integers(0, 3))
    table = draw(st.lists(st.integers(0, 2**26), min_size=blocks, max_size=blocks))
    return ScheduledChunk("r", tokens, start, table, draw(st.sampled_from([None, SPEC])))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(chunks(), min_size=1, max_size=5).map(tuple))
def test_every_row_is_where_its_chunk_says(plan: tuple[ScheduledChunk, ...]) -> None:
    inputs = build_model_input(SchedulerOutput(plan), 16, CPU)
    attention = inputs.attention
    rows = [(chunk, i) for chunk in plan for i in range(len(chunk.token_ids))]
    assert inputs.token_ids.tolist() == [chunk.token_ids[i] for chunk, i in rows]
    assert inputs.positions.tolist() == [chunk.start + i for chunk, i in rows]
    positions = [(chunk, chunk.start + i) for chunk, i in rows]
    assert attention.slot_mapping.tolist() == [c.block_table[p // 16] * 16 + p % 16 for c, p in positions]
    ends = [i + 1 for i, (chunk, j) in enumerate(rows) if j == len(chunk.token_ids) - 1]
    assert attention.query_start.tolist() == [0, *ends]
    asked = [end - 1 for end, chunk in zip(ends, plan, strict=True) if chunk.sample is not None]
    assert inputs.logit_rows.tolist() == asked
    lengths = [chunk.start + len(chunk.token_ids) for chunk in plan]
    assert attention.context_start.tolist() == [chunk.start for chunk in plan]
    assert attention.seq_lens.tolist() == lengths
    single = [len(chunk.token_ids) == 1 for chunk in plan]
    assert attention.num_decodes == [*single, False].index(False)
    width = -(-max(lengths) // 16)
    for table, chunk, length in zip(attention.block_tables.tolist(), plan, lengths, strict=True):
        used = -(-length // 16)
        assert table == [*chunk.block_table[:used], *[0] * (width - used)]


def test_types() -> None:
    inputs = build_model_input(SchedulerOutput((ScheduledChunk("r", (1,), 0, (3,), None),)), 16, CPU)
    assert inputs.token_ids.dtype is inputs.positions.dtype is inputs.logit_rows.dtype is torch.int64
    attention = inputs.attention
    for tensor in (attention.query_start, attention.context_start, attention.seq_lens):
        assert tensor.dtype is torch.int32
    assert attention.block_tables.dtype is attention.slot_mapping.dtype is torch.int32
    assert attention.block_tables.is_contiguous()


def test_a_table_too_short_is_a_bug_of_ours() -> None:
    short = ScheduledChunk("r", tuple(range(17)), 0, (3, 4), None)
    build_model_input(SchedulerOutput((short,)), 16, CPU)
    with pytest.raises(ValueError, match="broadcast"):
        build_model_input(SchedulerOutput((ScheduledChunk("r", tuple(range(40)), 0, (3, 4), None),)), 16, CPU)
