"""Gathering attention against the same float64 oracle, and against the CPU kernels."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.attention.base import AttentionShape
from engine.attention.cpu import CpuAttention
from engine.attention.reference import ReferenceAttention
from tests.engine.test_attention_cpu import DTYPES, MIXED
from tests.support.paged_attention import make_batch

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}


@DTYPES
@pytest.mark.parametrize("head_dim", [16, 80, 128])
@pytest.mark.parametrize("group", [1, 3, 4])
def test_a_ragged_batch_agrees_with_the_oracle(dtype: torch.dtype, head_dim: int, group: int) -> None:
    shape = AttentionShape(2 * group, 2, head_dim)
    batch = make_batch(MIXED, shape, dtype, 32 if group == 4 else 16, seed=group)
    out = batch.run(ReferenceAttention(batch.pool, shape))
    torch.testing.assert_close(out.double(), batch.expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@DTYPES
@pytest.mark.parametrize("window", [1, 20, 1000])
def test_a_sliding_window(dtype: torch.dtype, window: int) -> None:
    shape = AttentionShape(4, 2, 16, sliding_window=window)
    batch = make_batch(MIXED, shape, dtype)
    out = batch.run(ReferenceAttention(batch.pool, shape))
    torch.testing.assert_close(out.double(), batch.expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@DTYPES
def test_it_stores_the_same_pool_as_the_kernels(dtype: torch.dtype) -> None:
    shape = AttentionShape(6, 2, 64)
    gathered, in_place = make_batch(MIXED, shape, dtype), make_batch(MIXED, shape, dtype)
    gathered.run(ReferenceAttention(gathered.pool, shape))
    in_place.run(CpuAttention(in_place.pool, shape, 2))
    assert torch.equal(gathered.values, gathered.stored()[1])
    tolerance = 2**-7 if dtype is torch.bfloat16 else 1e-6  # one rounding of a rotated key
    torch.testing.assert_close(gathered.pool, in_place.pool, rtol=tolerance, atol=1e-6, equal_nan=True)


def test_block_numbers_do_not_matter() -> None:
    batch = make_batch(MIXED, AttentionShape(6, 2, 64))
    moved = batch.permuted(seed=3)
    before = batch.run(ReferenceAttention(batch.pool, batch.shape))
    assert torch.equal(moved.run(ReferenceAttention(moved.pool, moved.shape)), before)


def test_padding_reads_and_stores_nothing_and_gives_zeros() -> None:
    """A sequence of no length whose row has no slot, as a batch that is padded for a graph has them."""
    batch = make_batch([(20, 1), (5, 3)], AttentionShape(4, 2, 16))
    expected, stored = batch.run(ReferenceAttention(batch.pool, batch.shape)), batch.pool.clone()
    whole = batch.metadata
    padded = dataclasses.replace(
        whole,
        query_start=torch.cat([whole.query_start, whole.query_start[-1:] + 1]),
        context_start=torch.cat([whole.context_start, torch.zeros(1, dtype=torch.int32)]),
        seq_lens=torch.cat([whole.seq_lens, torch.zeros(1, dtype=torch.int32)]),
        block_tables=torch.cat([whole.block_tables, torch.zeros_like(whole.block_tables[:1])]),
        slot_mapping=torch.cat([whole.slot_mapping, torch.tensor([-1], dtype=torch.int32)]),
    )
    attention = ReferenceAttention(batch.pool, batch.shape)
    attention.begin_step(padded, *(torch.cat([part, part[:1]]) for part in (batch.cos, batch.sin)))
    out = attention.forward(1, torch.cat([batch.qkv, torch.full_like(batch.qkv[:1], 7.0)]))
    assert torch.equal(out[:-1], expected) and not out[-1].any()
    assert torch.equal(batch.pool.nan_to_num(9.0), stored.nan_to_num(9.0))
