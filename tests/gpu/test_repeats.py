"""Races: what is computed a thousand times from the same input must have the same bits each time.

Programs that run side by side on a GPU show a missing barrier or two writers of one place as results that
move. Each run starts from memory that is poisoned, so that what is never written shows too. Without a GPU
programs run one after the other and this only shows that the tests themselves work.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.attention.base import AttentionShape
from engine.attention.triton.backend import TritonAttention, kernel_shape
from engine.attention.triton.combine import merge
from engine.fused.block_copy import copy_blocks
from engine.fused.ops import TritonOps
from engine.fused.sampling import draw
from tests.support.devices import HAS_GPU, ON_ANY_DEVICE
from tests.support.paged_attention import make_batch

REPEATS = 1000 if HAS_GPU else 2
DTYPE = torch.bfloat16 if HAS_GPU else torch.float32
# Decodes long enough to be split, then chunks: (context, rows).
SPANS = (
    ((1, 1), (300, 1), (4000, 1), (40, 1), (0, 70), (500, 33), (63, 1), (9, 200))
    if HAS_GPU
    else ((1, 1), (300, 1), (0, 9), (15, 2))
)
HEAD_DIM = 128 if HAS_GPU else 16


def assert_always_the_same(compute: Callable[[], torch.Tensor], *kept: torch.Tensor) -> None:
    """``kept``: memory that is there from one computation to the next, but with nothing in it that counts."""
    first = compute().clone()
    assert not first.is_floating_point() or torch.isfinite(first).all()
    for _ in range(REPEATS):
        poison(first)
        for memory in kept:
            memory.fill_(garbage(memory.dtype))
        assert torch.equal(compute(), first)


def garbage(dtype: torch.dtype) -> float:
    return torch.nan if dtype.is_floating_point else torch.iinfo(dtype).min // 2


def poison(like: torch.Tensor) -> None:
    """Leave garbage where the allocator is about to find room for results like this one.

    In several places at once: the last result's own is free as well, and is still right.
    """
    held = [torch.full_like(like, garbage(like.dtype)) for _ in range(4)]
    del held


def test_what_is_never_written_shows() -> None:
    """By the tests' own means: half of a result, or of what is kept, is left as it is found."""
    kept = torch.zeros(8)
    made = iter([torch.zeros(8), *(torch.empty(8).fill_(torch.nan) for _ in range(REPEATS))])

    def half(out: torch.Tensor) -> torch.Tensor:
        out[:4] = 1.0
        return out

    with pytest.raises(AssertionError):
        assert_always_the_same(lambda: half(next(made)))
    with pytest.raises(AssertionError):
        assert_always_the_same(lambda: half(kept).clone(), kept)
    assert_always_the_same(lambda: torch.ones(8), kept)


@ON_ANY_DEVICE
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32] if HAS_GPU else [DTYPE])
def test_attention(device: str, dtype: torch.dtype, batch_invariant: bool) -> None:
    batch = make_batch(SPANS, AttentionShape(8, 2, HEAD_DIM), dtype).to(device)
    backend = TritonAttention(
        batch.pool,
        batch.shape,
        max_num_seqs=len(SPANS),
        batch_invariant=batch_invariant,
        num_multiprocessors=132,
    )
    metadata = batch.metadata

    def attend() -> torch.Tensor:
        backend.begin_step(metadata, batch.cos, batch.sin)
        return backend.forward(1, batch.qkv)

    splits = backend._splits
    assert_always_the_same(attend, splits.partial_out, splits.partial_lse)

    def store() -> torch.Tensor:  # what this step computes of K and V, and nothing else
        slots = metadata.slot_mapping.long()
        blocks, places = slots // batch.pool.shape[4], slots % batch.pool.shape[4]
        batch.pool[blocks, 1, :, :, places] = torch.nan
        attend()
        return batch.pool.view(torch.uint8).clone()

    assert_always_the_same(store)

    def split() -> torch.Tensor:
        splits.work.fill_(garbage(torch.int32))
        backend.begin_step(metadata, batch.cos, batch.sin)
        return torch.cat([splits.work.flatten(), splits.starts])

    assert_always_the_same(split)


@ON_ANY_DEVICE
def test_merges(device: str) -> None:
    """Of partial results with those of the rest of a context, in place."""
    rows, num_heads = (300, 32) if HAS_GPU else (5, 4)
    batch = make_batch(SPANS, AttentionShape(num_heads, 2, HEAD_DIM), DTYPE)
    shape = kernel_shape(batch.pool, batch.shape)
    generator = torch.Generator().manual_seed(0)
    out, other = (
        torch.randn((rows, num_heads, HEAD_DIM), generator=generator).to(device=device, dtype=DTYPE)
        for _ in range(2)
    )
    lse, other_lse = (torch.randn((rows, num_heads), generator=generator).to(device) for _ in range(2))

    def both() -> torch.Tensor:
        merged, merged_lse = out.clone(), lse.clone()
        merge(merged, merged_lse, other, other_lse, shape)
        return torch.cat([merged.float().flatten(), merged_lse.flatten()])

    assert_always_the_same(both)


@ON_ANY_DEVICE
def test_copies_of_blocks(device: str) -> None:
    block = (32, 2, 8, 16, 128) if HAS_GPU else (2, 2, 1, 4, 8)
    pool = torch.randn((24, *block), generator=torch.Generator().manual_seed(0)).to(
        device=device, dtype=DTYPE
    )
    sources, targets = (torch.tensor(pairs, device=device) for pairs in (range(8), range(23, 15, -1)))

    def copies() -> torch.Tensor:
        pool[targets] = torch.nan
        copy_blocks(pool, sources, targets)
        assert torch.equal(pool[targets], pool[sources])
        return pool.clone()

    assert_always_the_same(copies)


@ON_ANY_DEVICE
@pytest.mark.parametrize("deterministic", [False, True])
def test_parts_of_a_layer(device: str, deterministic: bool) -> None:
    rows, width = (300, 4096) if HAS_GPU else (3, 64)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)

    ops = TritonOps(DTYPE, deterministic=deterministic)
    linear, activation = ops.linear(random(width, width) / width**0.5), ops.activation()
    norm = ops.norm(random(width, dtype=torch.float32), 1e-5)
    hidden, delta = random(rows, width, dtype=torch.float32), random(rows, width)
    gate_up = random(rows, 2 * width)
    assert_always_the_same(lambda: norm(hidden))
    assert_always_the_same(lambda: norm.after(hidden.clone(), delta))
    assert_always_the_same(lambda: activation(gate_up))
    if deterministic:  # else the product is the library's
        assert_always_the_same(lambda: linear(delta))


@ON_ANY_DEVICE
def test_draws(device: str) -> None:
    rows, vocab_size = (64, 128_256) if HAS_GPU else (4, 300)
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn((rows, vocab_size), generator=generator)).to(device)

    def column(values: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor((values * rows)[:rows], dtype=dtype, device=device)

    temperature = column([0.0, 1.0, 0.7, 1.3], torch.float32)
    top_k = column([0, 50, 1, 0], torch.int32)
    top_p = column([1.0, 0.9, 1.0, 0.5], torch.float32)
    min_p = column([0.0, 0.0, 0.05, 0.0], torch.float32)
    seeds = torch.arange(rows, dtype=torch.int64, device=device)
    positions = torch.arange(rows, dtype=torch.int64, device=device) + 100
    assert_always_the_same(lambda: draw(logits, temperature, top_k, top_p, min_p, seeds, positions))
