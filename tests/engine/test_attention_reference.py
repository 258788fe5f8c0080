"""Gathering attention against the same float64 oracle, and against the CPU kernels."""

from __future__ import annotations

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
