"""How the contexts of a step's decodes are split between programs, decided on the device.

A decode's cost is its context. So the contexts of a step are cut into about as many pieces together as the
device runs at once, none longer than the others need be; short ones stay whole. The host has no part in it,
so a captured graph holds for other lengths. The number of pieces is bounded by the budget and the number of
sequences alone: that is the grid. Runs on: step thread; launches only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from engine.attention.triton.configs import KernelShape, max_pieces, split_budget, splits_launch
from engine.kernels.jit import jit


@jit(varying=["seq_lens", "num_seqs", "budget"])
def splits_kernel(
    seq_lens: tl.tensor, num_seqs: tl.tensor, budget: tl.tensor, work: tl.tensor, starts: tl.tensor,
    MAX_SEQS: tl.constexpr, CAPACITY: tl.constexpr, LEAST: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr,
) -> None:  # fmt: skip
    """One program. Pieces of ``chunk`` tokens would be as many as there is room for; then each sequence's
    own are made equal.
    """
    index = tl.arange(0, MAX_SEQS)
    is_there = index < num_seqs
    lengths = tl.load(seq_lens + index, mask=is_there, other=0)
    first = tl.zeros_like(lengths)
    if WINDOW > 0:
        first = tl.maximum(lengths - WINDOW, 0)
    visible = lengths - first
    chunk = tl.maximum(tl.cdiv(tl.sum(visible, 0), budget), LEAST)
    pieces = tl.maximum(tl.cdiv(visible, chunk), 1)
    size = tl.maximum(tl.cdiv(tl.cdiv(visible, pieces), TILE) * TILE, TILE)
    pieces = tl.where(is_there, tl.maximum(tl.cdiv(visible, size), 1), 0)
    ends = tl.cumsum(pieces, 0)
    begins = ends - pieces
    tl.store(starts + index, begins, mask=is_there)
    tl.store(starts + index + 1, ends, mask=is_there)
    for part in range(tl.max(pieces, 0)):
        place = work + (begins + part) * 4
        mask = part < pieces
        begin = first + part * size
        tl.store(place, index, mask=mask)
        tl.store(place + 1, begin, mask=mask)
        tl.store(place + 2, tl.minimum(begin + size, lengths), mask=mask)
        tl.store(place + 3, (pieces == 1).to(tl.int32), mask=mask)
    rest = tl.arange(0, CAPACITY)
    idle = (rest >= tl.sum(pieces, 0)) & (rest < budget + num_seqs)
    tl.store(work + rest * 4, tl.full([CAPACITY], -1, tl.int32), mask=idle)


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The pieces of a step, and room for what is computed of them. Made once; contents change each step."""

    at_once: int  # programs that the device runs side by side for a KV head
    work: torch.Tensor  # [W, 4] int32: sequence (-1: none), first token, last token + 1, whether it is all
    starts: torch.Tensor  # [S + 1] int32 a sequence's first piece
    partial_out: torch.Tensor  # [W, Hq, D] float32
    partial_lse: torch.Tensor  # [W, Hq] float32

    @classmethod
    def allocate(cls, shape: KernelShape, max_num_seqs: int, at_once: int, device: torch.device) -> SplitPlan:
        capacity = max_pieces(at_once, max_num_seqs)
        return cls(
            at_once=at_once,
            work=torch.full((capacity, 4), -1, dtype=torch.int32, device=device),
            starts=torch.zeros(max_num_seqs + 1, dtype=torch.int32, device=device),
            partial_out=torch.empty((capacity, shape.num_heads, shape.head_dim), device=device),
            partial_lse=torch.empty((capacity, shape.num_heads), device=device),
        )

    @property
    def max_num_seqs(self) -> int:
        return self.starts.shape[0] - 1

    def num_pieces(self, num_seqs: int) -> int:
        """How many pieces there can be: what the host knows, be the lengths what they may."""
        return split_budget(self.at_once, num_seqs) + num_seqs

    def make(self, seq_lens: torch.Tensor, num_seqs: int, shape: KernelShape) -> None:
        """Plan for the first ``num_seqs`` of ``seq_lens`` (int32)."""
        assert num_seqs <= self.max_num_seqs
        splits_kernel[(1,)](
            seq_lens, num_seqs, split_budget(self.at_once, num_seqs), self.work, self.starts,
            **splits_launch(shape, self.max_num_seqs, self.at_once).keywords(),
        )  # fmt: skip
