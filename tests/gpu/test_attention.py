"""The Triton backend on a GPU, and what the interpreter cannot show: bf16, tensor cores, races, graphs."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from engine.attention.base import AttentionMetadata, AttentionShape
from tests.support.devices import GPU_MARKS
from tests.support.paged_attention import Batch, make_batch
from tests.support.triton_batches import assert_right, backend

pytestmark = GPU_MARKS
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"]
)
INVARIANT = pytest.mark.parametrize("batch_invariant", [False, True], ids=["split", "invariant"])
SPANS = (
    (0, 1),
    (15, 1),
    (16, 1),
    (63, 1),
    (64, 1),
    (300, 1),
    (800, 1),
    (0, 1),
    (0, 150),
    (127, 33),
    (250, 129),
)
REPEATS = 1000


def poison() -> None:
    """Fill what the allocator will hand out next with NaN, so that nothing unwritten passes for written."""
    for size in (2**14, 2**17, 2**20, 2**24):
        held = [torch.full((size,), math.nan, device="cuda") for _ in range(4)]
        del held


def batch_of(
    spans: tuple[tuple[int, int], ...], shape: AttentionShape, dtype: torch.dtype, block_size: int = 16
) -> Batch:
    batch = make_batch(spans, shape, dtype, block_size).to("cuda")
    poison()
    return batch


@INVARIANT
@pytest.mark.parametrize(
    ("dtype", "head_dim", "group", "block_size"),
    [  # few, for each compiles four kernels and more
        (torch.bfloat16, 64, 1, 16),
        (torch.bfloat16, 80, 1, 32),
        (torch.bfloat16, 96, 7, 128),
        (torch.bfloat16, 128, 4, 16),
        (torch.bfloat16, 128, 8, 64),
        (torch.bfloat16, 256, 4, 16),
        (torch.float16, 128, 4, 16),
        (torch.float32, 64, 4, 16),
        (torch.float32, 128, 4, 16),
    ],
)
def test_a_ragged_batch_agrees_with_the_oracle(
    dtype: torch.dtype, head_dim: int, group: int, block_size: int, batch_invariant: bool
) -> None:
    batch = batch_of(SPANS, AttentionShape(2 * group, 2, head_dim), dtype, block_size)
    assert_right(batch, batch.run(backend(batch, batch_invariant=batch_invariant, num_multiprocessors=132)))


@INVARIANT
@pytest.mark.parametrize("window", [1, 100])
def test_a_sliding_window(batch_invariant: bool, window: int) -> None:
    batch = batch_of(SPANS, AttentionShape(8, 2, 128, sliding_window=window), torch.bfloat16)
    assert_right(batch, batch.run(backend(batch, batch_invariant=batch_invariant, num_multiprocessors=132)))


@DTYPES
def test_chunk_splits_do_not_matter_to_the_batch_invariant(dtype: torch.dtype) -> None:
    batch = make_batch([(7, 301)], AttentionShape(8, 2, 128), dtype).to("cuda")
    splits = [
        batch.split(sizes) for sizes in ((1,) * 301, (64, 64, 64, 64, 45), (1, 15, 17, 31, 237), (300, 1))
    ]
    whole = batch.run(backend(batch, batch_invariant=True))
    for steps in splits:
        found = torch.cat([step.run(backend(step, batch_invariant=True)) for step in steps])
        assert torch.equal(found, whole)


@DTYPES
@INVARIANT
def test_block_numbers_do_not_matter(dtype: torch.dtype, batch_invariant: bool) -> None:
    batch = batch_of(SPANS, AttentionShape(8, 2, 128), dtype)
    moved = batch.permuted(seed=3)
    found = [one.run(backend(one, batch_invariant=batch_invariant)) for one in (moved, batch)]
    assert torch.equal(*found)


@INVARIANT
def test_a_captured_step_replays_over_other_lengths(batch_invariant: bool) -> None:
    """Captured at the bound, over padding alone; replayed with batches that it has never seen."""
    shape, width = AttentionShape(8, 2, 128), 128
    batches = [
        batch_of(spans, shape, torch.bfloat16) for spans in (((999, 1), (3, 1)), ((63, 1), (700, 1), (0, 1)))
    ]
    num_blocks = max(batch.pool.shape[0] for batch in batches)
    pool = torch.full((num_blocks, *batches[0].pool.shape[1:]), math.nan, dtype=torch.bfloat16, device="cuda")
    attention = backend(dataclasses.replace(batches[0], pool=pool), batch_invariant=batch_invariant)

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    held = AttentionMetadata(
        query_start=ints(0, 1, 2, 3, 4), context_start=ints(0, 0, 0, 0), seq_lens=ints(0, 0, 0, 0),
        block_tables=torch.zeros((4, width), dtype=torch.int32, device="cuda"),
        slot_mapping=ints(-1, -1, -1, -1), num_decodes=4,
    )  # fmt: skip
    qkv = torch.zeros((4, shape.qkv_size), dtype=torch.bfloat16, device="cuda")
    cos, sin = (torch.zeros((4, 64), device="cuda") for _ in range(2))

    def step() -> torch.Tensor:
        attention.begin_step(held, cos, sin)
        return attention.forward(1, qkv)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for batch in batches:
        count, found = len(batch.spans), batch.metadata
        pool.fill_(math.nan)
        pool[: batch.pool.shape[0]] = batch.pool
        held.seq_lens.zero_(), held.slot_mapping.fill_(-1)
        held.seq_lens[:count], held.context_start[:count] = found.seq_lens, found.context_start
        held.block_tables[:count, : found.block_tables.shape[1]] = found.block_tables
        held.slot_mapping[:count] = found.slot_mapping
        qkv[:count], cos[:count], sin[:count] = batch.qkv, batch.cos, batch.sin
        out.fill_(math.nan)
        graph.replay()
        assert_right(batch, out[:count])
        assert (out[count:] == 0).all()
