"""RMSNorm in one pass over the rows, alone or with the residual add before it.

A program has one row whole, in float32, and rounds once, when it stores. So a row's result depends on the
row alone, and the residual stream is read and written once a norm. Runs on: step thread; launches only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from engine.fused.configs import norm_launch
from engine.kernels.jit import jit
from engine.models.layers import Norm


@jit()
def norm_kernel(
    hidden: tl.tensor, delta: tl.tensor, weight: tl.tensor, out: tl.tensor, eps: tl.tensor,
    WIDTH: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """One row. ``delta``, if there is one, is added to ``hidden`` (float32) first, in place."""
    columns = tl.arange(0, TILE)
    inside = columns < WIDTH
    places = tl.program_id(0).to(tl.int64) * WIDTH + columns
    values = tl.load(hidden + places, mask=inside, other=0.0)
    if delta is not None:
        values += tl.load(delta + places, mask=inside, other=0.0).to(tl.float32)
        tl.store(hidden + places, values, mask=inside)
    scale = tl.rsqrt(tl.sum(values * values, 0) / WIDTH + eps)
    normed = values * scale * tl.load(weight + columns, mask=inside, other=0.0)
    tl.store(out + places, normed.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class TritonNorm(Norm):
    """The kernel as a part of the model."""

    weight: torch.Tensor  # float32
    eps: float
    dtype: torch.dtype

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._launch(hidden, None)

    def after(self, hidden: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        assert delta.shape == hidden.shape and delta.is_contiguous()
        return self._launch(hidden, delta)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self.weight,)

    def _launch(self, hidden: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        assert hidden.dtype is torch.float32 and hidden.is_contiguous()
        out = torch.empty_like(hidden, dtype=self.dtype)
        if len(hidden):
            norm_kernel[(len(hidden),)](
                hidden, delta, self.weight, out, self.eps, **norm_launch(hidden.shape[1]).keywords()
            )
        return out
