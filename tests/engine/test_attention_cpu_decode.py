"""Decodes against a float64 oracle, and bit for bit against what the kernel of prompts gives their rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.attention.base import AttentionShape
from engine.attention.cpu import CpuAttention
from engine.attention.cpu_softmax import SEGMENT
from engine.attention.cpu_work import split_decodes
from tests.support.paged_attention import Batch, make_batch

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
# Contexts around blocks, tiles and segments, and one that lanes share.
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 127, 129, SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT, 600)
DECODES = tuple((length - 1, 1) for length in LENGTHS)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def unrounded(batch: Batch) -> Batch:
    """With float32 activations: rounding answers to bf16 would hide most differences."""
    return replace(batch, qkv=batch.qkv.float())


def attended(batch: Batch, lanes: int | None = None) -> torch.Tensor:
    """As decodes, on copies of the pool."""
    backend = CpuAttention(batch.pool.clone(), batch.shape, threads=2)
    backend.begin_step(batch.metadata, batch.cos, batch.sin)
    if lanes is not None:
        positions = batch.metadata.context_start.numpy()
        backend._decode_work = split_decodes(positions, batch.shape.num_kv_heads, backend._window, lanes)
    return backend.forward(1, batch.qkv)


def as_prompts(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel of prompts answers and stores: none of the sequences is said to be a decode."""
    pool = batch.pool.clone()
    backend = CpuAttention(pool, batch.shape, threads=2)
    backend.begin_step(replace(batch.metadata, num_decodes=0), batch.cos, batch.sin)
    return backend.forward(1, batch.qkv), pool


@DTYPES
@pytest.mark.parametrize("window", [None, 1, 20, 64, 300])
@pytest.mark.parametrize(
    ("head_dim", "group", "block_size"), [(64, 3, 32), (16, 1, 16), (80, 4, 128), (128, 7, 64)]
)
def test_decodes_agree_with_the_oracle_and_with_prompts(
    dtype: torch.dtype, head_dim: int, group: int, block_size: int, window: int | None
) -> None:
    shape = AttentionShape(2 * group, 2, head_dim, window)
    batch = unrounded(make_batch(DECODES, shape, dtype, block_size, seed=head_dim))
    out, (expected, pool) = batch.run(CpuAttention(batch.pool, shape, 2)), as_prompts(batch)
    torch.testing.assert_close(out.double(), batch.expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(out, expected)
    assert torch.equal(batch.pool.view(torch.uint8), pool.view(torch.uint8))


@DTYPES
def test_who_computes_a_segment_does_not_matter(dtype: torch.dtype) -> None:
    batch = unrounded(make_batch([(8, 1), (700, 1), (530, 1)], AttentionShape(6, 2, 32), dtype))
    alone = attended(batch, lanes=1)
    for lanes in (2, 3, 5, 20):
        assert torch.equal(attended(batch, lanes), alone)


@DTYPES
def test_block_numbers_do_not_matter(dtype: torch.dtype) -> None:
    batch = unrounded(make_batch(DECODES, AttentionShape(6, 2, 64), dtype))
    assert torch.equal(attended(batch.permuted(seed=5)), attended(batch))


def test_sizes_that_are_no_whole_vectors_are_left_to_the_other_kernel() -> None:
    for head_dim, block_size in ((24, 16), (16, 8)):
        batch = make_batch(DECODES, AttentionShape(4, 2, head_dim), torch.bfloat16, block_size)
        out, (expected, _) = batch.run(CpuAttention(batch.pool, batch.shape, 2)), as_prompts(batch)
        torch.testing.assert_close(out.double(), batch.expected, rtol=2e-2, atol=2e-2)
        assert torch.equal(out, expected)


@pytest.mark.parametrize(
    "spans", [DECODES, ((0, 20), (7, 3)), ((20, 1), (0, 70))], ids=["decodes", "prompts", "both"]
)
def test_float32_activations_over_a_bf16_pool(spans: tuple[tuple[int, int], ...]) -> None:
    """Answers are not rounded; K and V are, as torch rounds."""
    batch = make_batch(spans, AttentionShape(6, 2, 64), torch.bfloat16)
    rounded = attended(batch)
    exact = replace(batch, qkv=batch.qkv.float())
    out = attended(exact)
    assert (
        out.dtype is torch.float32 and torch.equal(out.bfloat16(), rounded) and not torch.equal(out, rounded)
    )
    exact.qkv.mul_(1.003)
    exact.run(CpuAttention(batch.pool, batch.shape, 2))
    _, values = exact.stored()
    first = (6 + 2) * 64
    assert torch.equal(values.reshape(len(exact.qkv), -1), exact.qkv[:, first:].bfloat16())
