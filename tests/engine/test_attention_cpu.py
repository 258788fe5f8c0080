"""CPU attention against a float64 oracle, and the bit-equalities that its kernels claim."""

from __future__ import annotations

import itertools

import pytest
import torch

from engine.attention.base import AttentionShape
from engine.attention.cpu import NO_WINDOW, CpuAttention, is_supported, split_work
from engine.attention.cpu_prompt import QUERY_BLOCK
from tests.support.paged_attention import Batch, make_batch, metadata

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
# decode, chunked prefill, a whole prompt, a prefix hit; lengths around blocks and tiles
MIXED = ((0, 1), (14, 1), (15, 1), (16, 1), (62, 1), (63, 1), (64, 1), (129, 1), (0, 17), (15, 2), (16, 49),
         (48, 16), (64, 66), (1, 64), (0, 65), (130, 5))  # fmt: skip
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def backend(batch: Batch, threads: int = 2) -> CpuAttention:
    return CpuAttention(batch.pool, batch.shape, threads)


def assert_right(batch: Batch, threads: int = 2) -> None:
    out = batch.run(backend(batch, threads))
    assert out.dtype is batch.pool.dtype
    torch.testing.assert_close(
        out.double(), batch.expected, rtol=TOLERANCE[out.dtype], atol=TOLERANCE[out.dtype]
    )


@DTYPES
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
@pytest.mark.parametrize("group", [1, 3, 4])
def test_a_ragged_batch_agrees_with_the_oracle(dtype: torch.dtype, head_dim: int, group: int) -> None:
    block_size = 16 if group % 2 else 32
    batch = make_batch(
        MIXED, AttentionShape(2 * group, 2, head_dim), dtype, block_size, seed=head_dim + group
    )
    assert_right(batch)


@DTYPES
@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 130])
@pytest.mark.parametrize("block_size", [16, 32])
def test_contexts_around_block_and_tile_boundaries(dtype: torch.dtype, length: int, block_size: int) -> None:
    """As one decode beside one whole prompt of the same length."""
    shape = AttentionShape(4, 2, 16)
    assert_right(make_batch([(length - 1, 1), (0, length)], shape, dtype, block_size, seed=length))


@DTYPES
@pytest.mark.parametrize("window", [1, 5, 16, 64, 70, 1000])
def test_a_sliding_window(dtype: torch.dtype, window: int) -> None:
    assert_right(make_batch(MIXED, AttentionShape(4, 2, 16, sliding_window=window), dtype, seed=window))


def test_one_head_and_many_sequences() -> None:
    spans = [(index % 40, 1) for index in range(90)]
    assert_right(make_batch(spans, AttentionShape(1, 1, 16)))


@DTYPES
def test_keys_and_values_land_where_slot_mapping_says(dtype: torch.dtype) -> None:
    batch = make_batch(MIXED, AttentionShape(6, 2, 64), dtype)
    before = batch.pool.clone()
    batch.run(backend(batch))
    keys, values = batch.stored()
    assert torch.equal(values, batch.values)
    torch.testing.assert_close(keys, batch.keys, rtol=2**-7 if dtype is torch.bfloat16 else 1e-6, atol=1e-6)
    written = torch.zeros(batch.pool.shape[0], batch.block_size, dtype=torch.bool)
    written.view(-1)[batch.metadata.slot_mapping.long()] = True
    assert batch.pool[:, 0].isnan().equal(before[:, 0].isnan()), "another layer was written"
    rest = ~written[:, None, None, :, None]
    changed = batch.pool[:, 1].view(torch.uint8) != before[:, 1].view(torch.uint8)
    assert not (changed & rest).any(), "a slot of another row was written"


@DTYPES
def test_block_numbers_do_not_matter(dtype: torch.dtype) -> None:
    batch = make_batch(MIXED, AttentionShape(6, 2, 64), dtype)
    moved = batch.permuted(seed=3)
    assert moved.tables != batch.tables
    assert torch.equal(moved.run(backend(moved)), batch.run(backend(batch)))


@DTYPES
def test_neighbours_do_not_matter(dtype: torch.dtype) -> None:
    """Every sequence alone gives the bits that it gives in the batch."""
    batch = make_batch(MIXED, AttentionShape(6, 2, 80), dtype)
    together = batch.run(backend(batch))
    starts = batch.metadata.query_start.tolist()
    for index, (first, last) in enumerate(itertools.pairwise(starts)):
        rows = slice(first, last)
        alone = CpuAttention(batch.pool, batch.shape, 1)
        alone.begin_step(
            metadata([batch.spans[index]], [batch.tables[index]], batch.block_size),
            batch.cos[rows],
            batch.sin[rows],
        )
        assert torch.equal(alone.forward(1, batch.qkv[rows]), together[rows])


@DTYPES
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(
    "sizes",
    [(1,) * 131, (16,) * 8 + (3,), (1, 15, 17, 31, 64, 3), (65, 66), (130, 1)],
    ids=lambda sizes: f"{len(sizes)} chunks",
)
def test_chunk_splits_do_not_matter(dtype: torch.dtype, sizes: tuple[int, ...], window: int | None) -> None:
    shape = AttentionShape(3, 1, 16, sliding_window=window)
    batch = make_batch([(7, 131)], shape, dtype, seed=9)
    steps = batch.split(sizes)
    whole = batch.run(backend(batch))
    assert torch.equal(torch.cat([step.run(backend(step, threads=1)) for step in steps]), whole)


@DTYPES
def test_thread_counts_do_not_matter(dtype: torch.dtype) -> None:
    batch = make_batch(MIXED, AttentionShape(6, 2, 64), dtype)
    one = batch.run(backend(batch, 1))
    assert torch.equal(batch.run(backend(batch, 2)), one)


def test_a_broken_row_shows_as_nan_and_stays_alone() -> None:
    batch = make_batch([(20, 1), (30, 1), (0, 3)], AttentionShape(4, 2, 16))
    sound = batch.run(backend(batch)).clone()
    for value in (float("nan"), float("inf")):
        batch.qkv[1] = value
        out = batch.run(backend(batch))
        assert out[1].isnan().all()
        assert torch.equal(out[[0, 2, 3, 4]], sound[[0, 2, 3, 4]])


@DTYPES
@pytest.mark.parametrize("window", [None, 20])
def test_a_broken_row_of_a_prompt_shows_only_where_it_is_seen(dtype: torch.dtype, window: int | None) -> None:
    batch = make_batch([(3, 150), (0, 70)], AttentionShape(6, 2, 64, window), dtype)
    sound = batch.run(backend(batch, 1)).clone()
    seen = slice(70, 150 if window is None else 70 + window)
    for value in (float("nan"), float("inf")):
        batch.qkv[70, 6 * 64 :] = value
        out = batch.run(backend(batch, 1))
        assert out[seen].isnan().all()
        assert torch.equal(out[: seen.start], sound[: seen.start])
        assert torch.equal(out[seen.stop :], sound[seen.stop :])


@DTYPES
def test_large_scores_do_not_overflow(dtype: torch.dtype) -> None:
    """One key far ahead of the others takes the whole weight."""
    shape = AttentionShape(1, 1, 16)
    batch = make_batch([(0, 70)], shape, dtype)
    batch.qkv.zero_()
    batch.qkv[:, :16], batch.qkv[3, 16:32] = 100.0, 100.0
    batch.cos.fill_(1.0), batch.sin.zero_()
    batch.qkv[3, 32:] = 5.0
    out = batch.run(backend(batch))
    assert (out[3:] == 5.0).all()
    assert (out[:3] == 0.0).all()


def test_split_work_covers_every_row_once_and_starts_with_the_costliest() -> None:
    spans = [(0, 1), (100, 1), (5, 40), (0, QUERY_BLOCK), (3, QUERY_BLOCK + 1)]
    tables = [[1] * 10] * len(spans)
    work = split_work(metadata(spans, tables, 16)).tolist()
    rows = sorted(row for _, first, count, _ in work for row in range(first, first + count))
    assert rows == list(range(sum(count for _, count in spans)))
    assert all(1 <= count <= QUERY_BLOCK for _, _, count, _ in work)
    starts = [0, 1, 2, 42, 42 + QUERY_BLOCK]
    for sequence, first, _, position in work:
        assert position == spans[sequence][0] + first - starts[sequence]
    costs = [(position + count) * count for _, _, count, position in work]
    assert costs == sorted(costs, reverse=True)


def test_supported_dtypes_and_the_window_sentinel() -> None:
    assert is_supported(torch.float32) and is_supported(torch.bfloat16)
    assert not is_supported(torch.float16)
    assert NO_WINDOW > 2**40
