"""Batches for the Triton kernels: a backend over their pool, and how far from the oracle it may be."""

from __future__ import annotations

import torch

from engine.attention.triton.backend import TritonAttention
from tests.support.paged_attention import Batch

# 16-bit results are rounded once, and before them the weights that V is summed with.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# Decodes first, as a step has them: lengths around blocks and tiles, then chunks, prompts and prefix hits.
MIXED = ((0, 1), (15, 1), (16, 1), (63, 1), (64, 1), (90, 1), (0, 17), (62, 3), (64, 1), (31, 9))


def backend(
    batch: Batch, *, batch_invariant: bool = False, num_multiprocessors: int = 4, max_num_seqs: int = 16
) -> TritonAttention:
    """A few multiprocessors, so that contexts of few hundred tokens are split, but not all of them."""
    return TritonAttention(
        batch.pool,
        batch.shape,
        max_num_seqs=max_num_seqs,
        batch_invariant=batch_invariant,
        num_multiprocessors=num_multiprocessors,
    )


def assert_right(batch: Batch, out: torch.Tensor) -> None:
    assert out.dtype is batch.pool.dtype
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double(), batch.expected, rtol=tolerance, atol=tolerance)
