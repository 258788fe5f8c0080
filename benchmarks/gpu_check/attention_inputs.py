"""Batches for the attention kernels as a server has them: random K/V in scattered blocks of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.scales import BLOCK_SIZE
from engine.attention.base import AttentionMetadata, AttentionShape
from engine.config import ModelConfig

_POOL_SHARE = 0.6  # of the free memory; what is left is for queries, outputs and what kernels keep
_FILLED_AT_A_TIME = 64  # blocks
_NUM_QUERY_SETS = 2


def attention_shape(model: ModelConfig) -> AttentionShape:
    return AttentionShape(model.num_heads, model.num_kv_heads, model.head_dim, model.sliding_window)


def make_pool(context: Context, num_tokens: int) -> torch.Tensor:
    """A pool with room for ``num_tokens``, or as much of that as fits, filled with random numbers."""
    layout = context.scale.layout(context.dtype.itemsize)
    num_blocks = 1 + -(-num_tokens // BLOCK_SIZE)
    if context.on_gpu:
        free, _ = torch.cuda.mem_get_info(context.device)
        num_blocks = min(num_blocks, int(_POOL_SHARE * free) // layout.block_bytes)
    pool = torch.empty((num_blocks, *layout.block_shape), dtype=context.dtype, device=context.device)
    for part in pool.split(_FILLED_AT_A_TIME):
        part.normal_()
    return pool


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's rows over a pool. ``queries``: several sets ``[T, (Hq + 2 Hkv) * D]``."""

    metadata: AttentionMetadata
    queries: tuple[torch.Tensor, ...]
    cos: torch.Tensor
    sin: torch.Tensor


def make_batch(
    context: Context, shape: AttentionShape, num_blocks: int, spans: Sequence[tuple[int, int]]
) -> Batch:
    """Of sequences given as (tokens of context, rows of this step), decodes first.

    Blocks are drawn at random. Where the pool has fewer than all sequences need, they share some, far apart
    in the batch: what one reads is out of the caches before another reads it, as with blocks of its own.
    """
    generator = torch.Generator(context.device).manual_seed(0)
    rows = sum(count for _, count in spans)
    half = shape.head_dim // 2
    angles = torch.rand((rows, half), generator=generator, device=context.device)
    queries = [
        torch.randn((rows, shape.qkv_size), generator=generator, device=context.device).to(context.dtype)
        for _ in range(_NUM_QUERY_SETS)
    ]
    metadata = _metadata(spans, _tables(spans, num_blocks, generator))
    return Batch(metadata, tuple(queries), angles.cos(), angles.sin())


def _tables(spans: Sequence[tuple[int, int]], num_blocks: int, generator: torch.Generator) -> torch.Tensor:
    """``[B, max_blocks]`` int32: scattered blocks, each used again only when all others have been."""
    width = max(-(-(context + rows) // BLOCK_SIZE) for context, rows in spans)
    scattered = torch.randperm(num_blocks, generator=generator, device=generator.device)
    places = torch.arange(len(spans) * width, device=generator.device) % num_blocks
    return scattered[places].view(len(spans), width).to(torch.int32)


def _metadata(spans: Sequence[tuple[int, int]], tables: torch.Tensor) -> AttentionMetadata:
    def ints(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=tables.device)

    starts = [0]
    for _, rows in spans:
        starts.append(starts[-1] + rows)
    owners = [index for index, (_, rows) in enumerate(spans) for _ in range(rows)]
    positions = ints([context + row for context, rows in spans for row in range(rows)])
    blocks = tables[torch.tensor(owners, device=tables.device), (positions // BLOCK_SIZE).long()]
    return AttentionMetadata(
        query_start=ints(starts),
        context_start=ints([context for context, _ in spans]),
        seq_lens=ints([context + rows for context, rows in spans]),
        block_tables=tables,
        slot_mapping=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
        num_decodes=_leading_decodes(spans),
    )


def _leading_decodes(spans: Sequence[tuple[int, int]]) -> int:
    for index, (_, rows) in enumerate(spans):
        if rows != 1:
            return index
    return len(spans)
