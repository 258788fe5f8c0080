"""The operator ⊕: parts of a context attended apart and put together are the whole."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from engine.attention.base import AttentionShape
from engine.attention.triton.backend import kernel_shape
from engine.attention.triton.combine import combine, merge
from engine.attention.triton.configs import extend_tile
from engine.attention.triton.decode import decode
from engine.attention.triton.extend import extend
from engine.attention.triton.splits import SplitPlan
from engine.attention.triton.variants import shape_of
from tests.support.paged_attention import Batch, make_batch
from tests.support.triton_batches import TOLERANCE, backend

PREFIX = 48


def stored(batch: Batch) -> tuple[Batch, torch.Tensor]:
    """A batch whose rows are in the pool, and its rotated Q ``[T, Hq, D]``."""
    batch.run(backend(batch))
    heads = batch.qkv.view(len(batch.qkv), -1, batch.shape.head_dim)[:, : batch.shape.num_heads].float()
    low, high = heads.chunk(2, dim=-1)
    cos, sin = batch.cos[:, None], batch.sin[:, None]
    query = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
    return batch, query.to(batch.qkv.dtype)


def scores(batch: Batch, query: torch.Tensor, layer: int = 1) -> list[torch.Tensor]:
    """Base-2 scores ``[Hq, tokens]`` of each decode of a batch, float64."""
    found = []
    for index, (context, _) in enumerate(batch.spans):
        blocks = batch.pool[list(batch.tables[index]), layer, 0].double()  # [blocks, Hkv, block_size, D]
        keys = blocks.permute(1, 0, 2, 3).flatten(1, 2)[:, : context + 1]
        keys = keys.repeat_interleave(batch.shape.group_size, dim=0)
        product = (keys @ query[index].double()[:, :, None])[:, :, 0]
        found.append(product / math.sqrt(batch.shape.head_dim) / math.log(2))
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_the_log_of_all_weights_is_right_from_each_kernel(dtype: torch.dtype) -> None:
    batch, query = stored(make_batch([(400, 1), (20, 1), (0, 1)], AttentionShape(2, 1, 16), dtype))
    shape = kernel_shape(batch.pool, batch.shape)
    expected = torch.stack([part.exp2().sum(dim=1).log2() for part in scores(batch, query)])
    outs, logs = [], []
    for by_extend in (False, True):
        out, lse = torch.full_like(query, math.nan), torch.full(query.shape[:2], math.nan)
        if by_extend:
            extend(query, batch.pool[:, 1], batch.metadata, 0, out, lse, shape, extend_tile(shape, 1))
        else:
            plan = SplitPlan.allocate(shape, 3, 6, torch.device("cpu"))
            plan.make(batch.metadata.seq_lens, 3, shape)
            decode(query, batch.pool[:, 1], batch.metadata.block_tables, plan, 3, out, lse, shape)
            assert out[0].isnan().all() and not out[1:].isnan().any(), "who is split must be put together"
            combine(plan, 3, out, lse, shape)
        outs.append(out.double().flatten(1)), logs.append(lse.double())
    for out, lse in zip(outs, logs, strict=True):
        torch.testing.assert_close(lse, expected, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(out, batch.expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_a_shared_prefix_attended_once_for_all_is_the_same_attention(dtype: torch.dtype) -> None:
    """Two sequences with one prefix: their rows as one sequence over it, each over its own rest, and ⊕."""
    batch = make_batch([(60, 1), (95, 1)], AttentionShape(4, 2, 16), dtype)
    shared = PREFIX // batch.block_size
    batch.pool[list(batch.tables[1][:shared])] = batch.pool[list(batch.tables[0][:shared])]
    batch, query = stored(batch)
    shape, kv, whole = kernel_shape(batch.pool, batch.shape), batch.pool[:, 1], batch.metadata
    tile = extend_tile(shape, 1)
    expected = torch.empty_like(query)
    extend(query, kv, whole, 0, expected, None, shape, tile)

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    of_prefix = dataclasses.replace(
        whole, query_start=ints(0, 2), context_start=ints(PREFIX), seq_lens=ints(PREFIX)
    )
    of_rest = dataclasses.replace(
        whole,
        context_start=whole.context_start - PREFIX,
        seq_lens=whole.seq_lens - PREFIX,
        block_tables=whole.block_tables[:, shared:],
    )
    out, rest = torch.empty_like(query), torch.empty_like(query)
    lse, rest_lse = torch.empty(query.shape[:2]), torch.empty(query.shape[:2])
    extend(query, kv, of_prefix, 0, out, lse, shape, tile)
    extend(query, kv, of_rest, 0, rest, rest_lse, shape, tile)
    merge(out, lse, rest, rest_lse, shape)
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_nothing_is_neutral_and_order_does_not_matter() -> None:
    shape = shape_of("fp32", 80, 1)
    parts = [(torch.randn(3, 8, 80), torch.randn(3, 8) * 5) for _ in range(3)]
    nothing = (torch.zeros(3, 8, 80), torch.full((3, 8), -math.inf))

    def merged(*these: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = (part.clone() for part in these[0])
        for other in these[1:]:
            merge(out, lse, *other, shape)
        return out, lse

    for a, b in ((nothing, parts[0]), (parts[0], nothing)):
        assert all(map(torch.equal, merged(a, b), parts[0]))
    assert all(map(torch.equal, merged(nothing, nothing), nothing))
    one, two = merged(*parts), merged(merged(parts[2], parts[0]), parts[1])
    for found, expected in zip(one, two, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
