"""Partial results of attention put together: the operator ⊕ over disjoint parts of a context.

A part is (output, log of its summed weights, base 2). ``a ⊕ b`` weights outputs by their sums; it is
associative, and its neutral element is (0, -inf). So a context may be cut anywhere: between the programs of
a decode (``combine``), or where a prefix ends that many sequences share (``merge``; Hydragen, Juravsky et
al. 2024). Runs on: step thread; launches only.
"""

from __future__ import annotations

import torch
import triton.language as tl

from engine.attention.triton.configs import KernelShape, combine_launch, merge_launch
from engine.attention.triton.splits import SplitPlan
from engine.attention.triton.tiles import NEGATIVE_INFINITY
from engine.kernels.jit import jit


@jit(varying=["lse"])
def combine_kernel(
    partial_out: tl.tensor, partial_lse: tl.tensor, starts: tl.tensor, out: tl.tensor, lse: tl.tensor,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, SPLITS: tl.constexpr,
) -> None:  # fmt: skip
    """⊕ over all pieces of one sequence and head: the grid is (heads, sequences)."""
    head, sequence = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    if end - begin == 1:  # written by who computed it
        return
    dims = tl.arange(0, PADDED_DIM)
    best = tl.full([1], NEGATIVE_INFINITY, tl.float32)
    total = tl.zeros([1], tl.float32)
    sums = tl.zeros([PADDED_DIM], tl.float32)
    for start in range(begin, end, SPLITS):
        pieces = start + tl.arange(0, SPLITS)
        known = pieces < end
        places = pieces.to(tl.int64) * HEADS + head
        logs = tl.load(partial_lse + places, mask=known, other=NEGATIVE_INFINITY)
        outs = tl.load(
            partial_out + places[:, None] * HEAD_DIM + dims[None, :],
            mask=known[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        top = tl.maximum(best, tl.max(logs, 0))
        shift = tl.where(top == NEGATIVE_INFINITY, 0.0, top)
        weights = tl.exp2(logs - shift)
        decay = tl.exp2(best - shift)
        total = total * decay + tl.sum(weights, 0)
        sums = sums * decay + tl.sum(outs * weights[:, None], 0)
        best = top
    row = sequence.to(tl.int64) * HEADS + head
    result = sums / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * HEAD_DIM + dims, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)
    if lse is not None:
        tl.store(lse + row + tl.arange(0, 1), best + tl.log2(total))


@jit()
def merge_kernel(
    out: tl.tensor, lse: tl.tensor, other_out: tl.tensor, other_lse: tl.tensor,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
) -> None:  # fmt: skip
    """``out ⊕= other`` of one row and head: the grid is (heads, rows)."""
    row = tl.program_id(1).to(tl.int64) * HEADS + tl.program_id(0)
    dims = tl.arange(0, PADDED_DIM)
    mask = dims < HEAD_DIM
    log, other_log = tl.load(lse + row), tl.load(other_lse + row)
    top = tl.maximum(log, other_log)
    shift = tl.where(top == NEGATIVE_INFINITY, 0.0, top)
    weight, other_weight = tl.exp2(log - shift), tl.exp2(other_log - shift)
    total = weight + other_weight
    scale = 1.0 / tl.where(total == 0.0, 1.0, total)
    places = row * HEAD_DIM + dims
    mine = tl.load(out + places, mask=mask, other=0.0).to(tl.float32)
    others = tl.load(other_out + places, mask=mask, other=0.0).to(tl.float32)
    merged = (mine * weight + others * other_weight) * scale
    tl.store(out + places, merged.to(out.dtype.element_ty), mask=mask)
    tl.store(lse + row, shift + tl.log2(total))


def combine(
    plan: SplitPlan, num_seqs: int, out: torch.Tensor, lse: torch.Tensor | None, shape: KernelShape
) -> None:
    """Put the partial results of the first ``num_seqs`` sequences of a plan into ``out`` ``[T, Hq, D]``.

    Rows of sequences that are not split are left as they are. ``lse``: ``[T, Hq]`` float32, base 2.
    """
    combine_kernel[(shape.num_heads, num_seqs)](
        plan.partial_out, plan.partial_lse, plan.starts, out, lse, **combine_launch(shape).keywords()
    )


def merge(
    out: torch.Tensor,
    lse: torch.Tensor,
    other_out: torch.Tensor,
    other_lse: torch.Tensor,
    shape: KernelShape,
) -> None:
    """``(out, lse) ⊕= (other_out, other_lse)``: ``[T, Hq, D]`` and float32 ``[T, Hq]``, in place, base 2.

    The two must be of the same rows over parts of the context that have no token in common.
    """
    assert out.shape == other_out.shape and lse.shape == other_lse.shape == out.shape[:2]
    if out.shape[0]:
        merge_kernel[(shape.num_heads, out.shape[0])](
            out, lse, other_out, other_lse, **merge_launch(shape).keywords()
        )
