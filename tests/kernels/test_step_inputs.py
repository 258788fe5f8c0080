"""A step expanded on the device, against ``engine.execution.batch``, over many steps with the same tables."""

from __future__ import annotations

import dataclasses
import os

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.base import AttentionMetadata
from engine.execution.batch import build_model_input
from engine.execution.draws import of_every_row, of_rows_that_ask
from engine.execution.step_buffers import StepBuffers, StepLimits
from engine.messages import SamplingParams
from engine.models.llama import ModelInput
from engine.schedule import SampleSpec, ScheduledChunk, SchedulerOutput
from tests.support.repeated_graphs import spoil

CPU = torch.device("cpu")
EXAMPLES = 300 if os.environ.get("TIDEGATE_SLOW") == "1" else 15
LIMITS = StepLimits(max_num_seqs=4, max_num_rows=700, max_model_len=600)
SPEC = SampleSpec(SamplingParams(max_tokens=1, seed=0), (0,), 1, (1,), (), ())
EXPANDED = (
    "token_ids", "positions", "slot_mapping", "query_start", "context_start", "seq_lens", "block_tables",
)  # fmt: skip


def make(block_size: int = 16) -> StepBuffers:
    return StepBuffers(LIMITS, block_size, vocab_size=11, device=CPU)


def expand(buffers: StepBuffers, plan: SchedulerOutput, num_seqs: int | None = None) -> ModelInput:
    """Send a plan and expand it over tensors of which nothing is left."""
    wanted = of_rows_that_ask(plan) if num_seqs is None else of_every_row(plan, num_seqs)
    assert wanted is not None
    layout = buffers.send(plan, wanted.draws, wanted.logit_rows, num_seqs or len(plan.chunks))
    for name in EXPANDED:
        spoil(getattr(buffers, name))
    return buffers.expand(layout, plan.num_decodes)


def assert_same(found: ModelInput, expected: ModelInput, plan: SchedulerOutput) -> None:
    for name in ("token_ids", "positions", "logit_rows"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    for field in dataclasses.fields(AttentionMetadata):
        mine, other = getattr(found.attention, field.name), getattr(expected.attention, field.name)
        if field.name == "block_tables":
            for row, chunk in enumerate(plan.chunks):
                assert mine[row, : len(chunk.block_table)].tolist() == list(chunk.block_table)
        elif isinstance(mine, torch.Tensor):
            assert mine.dtype is other.dtype and torch.equal(mine, other), field.name
        else:
            assert mine == other, field.name


@st.composite
def chunks(draw: st.DrawFn, name: str) -> ScheduledChunk:
    start = draw(st.integers(0, 300))
    rows = draw(st.one_of(st.just(1), st.integers(1, 40), st.integers(250, 260)))
    tokens = draw(st.integers(0, 10**6))
    blocks = -(-(start + rows) // 16) + draw(st.integers(0, 3))
    first = draw(st.integers(0, 2**26))
    table = [(first + 977 * index) % 2**26 for index in range(blocks)]
    if draw(st.booleans()):
        table[draw(st.integers(0, blocks - 1))] = 5
    ids = [(tokens + index) % 10**6 for index in range(rows)]
    return ScheduledChunk(name, ids, start, table, draw(st.sampled_from([None, SPEC])))


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(st.data())
def test_every_step_is_what_the_host_would_have_made_of_it(data: st.DataObject) -> None:
    buffers = make()
    for _ in range(data.draw(st.integers(1, 5))):
        names = data.draw(st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=2, unique=True))
        plan = SchedulerOutput(tuple(data.draw(chunks(name)) for name in names))
        assert_same(expand(buffers, plan), build_model_input(plan, 16, CPU), plan)


def test_tables_that_grow_and_change_beyond_a_tile() -> None:
    buffers = make(block_size=2)
    table = list(range(300))
    for start, rows, change in ((0, 550, 10), (550, 1, 257), (551, 30, 0), (581, 1, 290)):
        plan = SchedulerOutput((ScheduledChunk("a", range(rows), start, table, SPEC),))
        assert_same(expand(buffers, plan), build_model_input(plan, 2, CPU), plan)
        table[change] += 1000


def test_padding_is_of_no_length_and_has_no_slots() -> None:
    buffers = make()
    decodes = [ScheduledChunk(name, (9,), 20, [3, 4 + i], SPEC) for i, name in enumerate("abc")]
    for count in (3, 1, 2):
        plan = SchedulerOutput(tuple(decodes[:count]))
        found = expand(buffers, plan, num_seqs=4)
        attention = found.attention
        assert attention.query_start.tolist() == [0, 1, 2, 3, 4]
        assert attention.seq_lens.tolist() == [21] * count + [0] * (4 - count)
        assert attention.context_start.tolist() == [20] * count + [0] * (4 - count)
        assert attention.slot_mapping.tolist() == [(4 + i) * 16 + 4 for i in range(count)] + [-1] * (
            4 - count
        )
        assert found.token_ids.tolist() == [9] * count + [0] * (4 - count)
        assert found.positions.tolist() == [20] * count + [0] * (4 - count)
