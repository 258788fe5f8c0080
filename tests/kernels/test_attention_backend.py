"""The Triton backend against a float64 oracle, and the bit-equalities it claims, in the interpreter."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.base import AttentionMetadata, AttentionShape
from engine.attention.triton import extend as extend_module
from engine.attention.triton.backend import is_supported, kernel_shape
from engine.attention.triton.configs import invariant_tile
from tests.support.paged_attention import Batch, make_batch, metadata
from tests.support.triton_batches import MIXED, assert_right, backend

DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
INVARIANT = pytest.mark.parametrize("batch_invariant", [False, True], ids=["split", "invariant"])
# Each of both, for what the interpreter takes seconds.
CASES = pytest.mark.parametrize(
    ("dtype", "window", "batch_invariant"), [(torch.float16, None, False), (torch.float32, 20, True)], ids=str
)
WINDOWS = pytest.mark.parametrize(
    ("dtype", "window"), [(torch.float16, None), (torch.float32, 20)], ids=["fp16", "fp32-window"]
)
EXAMPLES = 150 if os.environ.get("TIDEGATE_SLOW") else 5
EDGES = (0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65)  # of blocks and tiles


@DTYPES
@INVARIANT
def test_a_ragged_batch_agrees_with_the_oracle(dtype: torch.dtype, batch_invariant: bool) -> None:
    batch = make_batch(MIXED, AttentionShape(3, 1, 32), dtype)
    assert_right(batch, batch.run(backend(batch, batch_invariant=batch_invariant)))


@pytest.mark.parametrize(
    ("head_dim", "group", "block_size", "dtype"),
    [
        (64, 1, 16, torch.float16),
        (80, 2, 32, torch.float32),
        (96, 4, 64, torch.float16),
        (128, 7, 128, torch.float16),
        (256, 8, 16, torch.float16),
        (256, 1, 48, torch.float32),
    ],
)
def test_head_sizes_groups_and_block_sizes(
    head_dim: int, group: int, block_size: int, dtype: torch.dtype
) -> None:
    spans = ((0, 1), (16, 1), (47, 1), (30, 21))
    batch = make_batch(spans, AttentionShape(2 * group, 2, head_dim), dtype, block_size)
    assert_right(batch, batch.run(backend(batch)))


@INVARIANT
@pytest.mark.parametrize("window", [1, 16, 33])
def test_a_sliding_window(window: int, batch_invariant: bool) -> None:
    batch = make_batch(MIXED, AttentionShape(2, 1, 16, sliding_window=window), torch.float16, seed=window)
    assert_right(batch, batch.run(backend(batch, batch_invariant=batch_invariant)))


@settings(max_examples=EXAMPLES)
@given(
    spans=st.lists(
        st.tuples(st.sampled_from(EDGES), st.sampled_from((1, 1, 2, 16, 17, 33))), min_size=1, max_size=3
    ),
    window=st.sampled_from((None, 7, 40)),
    group=st.sampled_from((1, 3, 4)),
    dtype=st.sampled_from((torch.float16, torch.float32)),
    batch_invariant=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_batch_agrees_with_the_oracle(
    spans: list[tuple[int, int]], window: int | None, group: int, dtype: torch.dtype,
    batch_invariant: bool, seed: int,
) -> None:  # fmt: skip
    shape = AttentionShape(2 * group, 2, 16, sliding_window=window)
    batch = make_batch(spans, shape, dtype, seed=seed)
    assert_right(batch, batch.run(backend(batch, batch_invariant=batch_invariant)))


def test_long_contexts_are_split_and_put_together() -> None:
    batch = make_batch([(700, 1), (3, 1), (256, 1)], AttentionShape(4, 2, 16), torch.float16)
    attention = backend(batch, num_multiprocessors=8)
    assert_right(batch, batch.run(attention))
    assert attention._splits.starts[:4].tolist() == [0, 3, 4, 6]


@DTYPES
def test_keys_and_values_land_where_slot_mapping_says(dtype: torch.dtype) -> None:
    batch = make_batch(MIXED[-3:], AttentionShape(6, 2, 32), dtype)
    before = batch.pool.clone()
    batch.run(backend(batch))
    keys, values = batch.stored()
    assert torch.equal(values, batch.values)
    torch.testing.assert_close(keys, batch.keys, rtol=2**-10 if dtype is torch.float16 else 1e-6, atol=1e-6)
    written = torch.zeros(batch.pool.shape[0], batch.block_size, dtype=torch.bool)
    written.view(-1)[batch.metadata.slot_mapping.long()] = True
    assert batch.pool[:, 0].isnan().equal(before[:, 0].isnan()), "another layer was written"
    rest = ~written[:, None, None, :, None]
    changed = batch.pool[:, 1].view(torch.uint8) != before[:, 1].view(torch.uint8)
    rest = rest.expand_as(before[:, 1]).repeat_interleave(batch.pool.element_size(), dim=-1)
    assert not (changed & rest).any(), "a slot of another row was written"


@CASES
def test_block_numbers_do_not_matter(dtype: torch.dtype, window: int | None, batch_invariant: bool) -> None:
    batch = make_batch(((300, 1), *MIXED[-4:]), AttentionShape(3, 1, 16, sliding_window=window), dtype)
    moved = batch.permuted(seed=3)
    assert moved.tables != batch.tables
    found = [one.run(backend(one, batch_invariant=batch_invariant)) for one in (moved, batch)]
    assert torch.equal(*found)


@WINDOWS
@pytest.mark.usefixtures("rows_apart")
def test_neighbours_do_not_matter_to_the_batch_invariant(dtype: torch.dtype, window: int | None) -> None:
    batch = make_batch(MIXED, AttentionShape(3, 1, 16, sliding_window=window), dtype)
    together = batch.run(backend(batch, batch_invariant=True))
    starts = batch.metadata.query_start.tolist()
    for index, (first, last) in enumerate(itertools.pairwise(starts)):
        alone = backend(batch, batch_invariant=True, max_num_seqs=1)
        alone.begin_step(
            metadata([batch.spans[index]], [batch.tables[index]], batch.block_size),
            batch.cos[first:last],
            batch.sin[first:last],
        )
        assert torch.equal(alone.forward(1, batch.qkv[first:last]), together[first:last])


@WINDOWS
@pytest.mark.usefixtures("rows_apart")
def test_chunk_splits_do_not_matter_to_the_batch_invariant(dtype: torch.dtype, window: int | None) -> None:
    batch = make_batch([(47, 35)], AttentionShape(3, 1, 16, sliding_window=window), dtype, seed=9)
    splits = [batch.split(sizes) for sizes in ((1,) * 6 + (29,), (16, 1, 18), (3, 31, 1))]
    whole = batch.run(backend(batch, batch_invariant=True))
    for steps in splits:
        found = torch.cat([step.run(backend(step, batch_invariant=True)) for step in steps])
        assert torch.equal(found, whole)


def padded(batch: Batch, count: int) -> tuple[Batch, AttentionMetadata]:
    """With ``count`` more sequences as a captured graph has them: a row each, no length, nowhere to store."""
    rows, sequences = batch.qkv.shape[0], len(batch.spans)
    found = batch.metadata

    def more(tensor: torch.Tensor, value: int) -> torch.Tensor:
        return torch.cat([tensor, torch.full((count, *tensor.shape[1:]), value, dtype=tensor.dtype)])

    grown = dataclasses.replace(
        found,
        query_start=torch.cat(
            [found.query_start, torch.arange(rows + 1, rows + count + 1, dtype=torch.int32)]
        ),
        context_start=more(found.context_start, 0),
        seq_lens=more(found.seq_lens, 0),
        block_tables=more(found.block_tables, 0),
        slot_mapping=more(found.slot_mapping, -1),
        num_decodes=found.num_decodes + count if found.num_decodes == sequences else found.num_decodes,
    )
    rest = {name: F.pad(getattr(batch, name), (0, 0, 0, count), value=3.0) for name in ("qkv", "cos", "sin")}
    return dataclasses.replace(batch, **rest), grown


@pytest.mark.parametrize(
    ("spans", "batch_invariant"),
    [(MIXED[:6], False), (MIXED[3:], False), (MIXED[4:7], True)],
    ids=["decodes", "mixed", "invariant"],
)
def test_padding_reads_and_stores_nothing_and_gives_zeros(
    spans: tuple[tuple[int, int], ...], batch_invariant: bool
) -> None:
    batch = make_batch(spans, AttentionShape(6, 2, 16), torch.float16)
    alone = dataclasses.replace(batch, pool=batch.pool.clone())
    alone.run(backend(alone, batch_invariant=batch_invariant))
    larger, larger_metadata = padded(batch, 3)
    attention = backend(batch, batch_invariant=batch_invariant)
    attention.begin_step(larger_metadata, larger.cos, larger.sin)
    out = attention.forward(1, larger.qkv)
    assert_right(batch, out[:-3])
    assert (out[-3:] == 0).all()
    assert torch.equal(batch.pool.view(torch.uint8), alone.pool.view(torch.uint8)), "padding was stored"


def test_a_broken_row_shows_as_nan_and_stays_alone() -> None:
    batch = make_batch([(20, 1), (30, 1), (0, 3)], AttentionShape(4, 2, 16))
    sound = batch.run(backend(batch)).clone()
    for value in (math.nan, math.inf):
        batch.qkv[1] = value
        out = batch.run(backend(batch))
        assert out[1].isnan().all()
        assert torch.equal(out[[0, 2, 3, 4]], sound[[0, 2, 3, 4]])


@INVARIANT
def test_large_scores_do_not_overflow(batch_invariant: bool) -> None:
    """One key far ahead of the others takes the whole weight."""
    batch = make_batch([(0, 70)], AttentionShape(1, 1, 16), torch.float16)
    batch.qkv.zero_()
    batch.qkv[:, :16], batch.qkv[3, 16:32] = 100.0, 100.0
    batch.cos.fill_(1.0), batch.sin.zero_()
    batch.qkv[3, 32:] = 5.0
    out = batch.run(backend(batch, batch_invariant=batch_invariant))
    assert (out[3:] == 5.0).all()
    assert (out[:3] == 0.0).all()


def test_supported_models() -> None:
    assert is_supported(AttentionShape(32, 8, 128), torch.bfloat16)
    assert not is_supported(AttentionShape(32, 8, 72), torch.bfloat16)
    assert not is_supported(AttentionShape(32, 8, 128), torch.float64)


class Launches:
    """In a kernel's place: notes the grid."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.grid = grid
        return lambda *arguments, **constants: None


def test_a_step_may_have_more_rows_than_an_axis_of_a_grid_but_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In deterministic mode with large groups a program has one row, and other axes end at 65,535."""
    launches, num_rows = Launches(), 70_000
    monkeypatch.setattr(extend_module, "extend_kernel", launches)
    batch = make_batch(((0, 1), (3, 2)), AttentionShape(32, 2, 16))
    shape = kernel_shape(batch.pool, batch.shape)
    query = torch.empty(1).expand(num_rows, 32, 16)
    extend_module.extend(
        query, batch.pool[:, 0], batch.metadata, 0, query, None, shape, invariant_tile(shape)
    )
    assert launches.grid == (2 * (num_rows + 2),)
