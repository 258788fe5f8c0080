"""A model's parts for a GPU: norms and SwiGLU in one pass each, and matrix products by torch.

Runs on: step thread. In deterministic mode products are ours too, for no library promises that a row's
result depends on the row alone; norms and SwiGLU always keep that promise.
"""

from __future__ import annotations

import torch

from engine.fused.activation import silu_and_mul
from engine.fused.matmul import FixedTileLinear
from engine.fused.norm import TritonNorm
from engine.models.layers import Activation, Linear, Norm, Ops, TorchLinear


class TritonOps(Ops):
    """Fused kernels. ``deterministic``: a row's result depends on the row alone, bit for bit."""

    def __init__(self, dtype: torch.dtype, *, deterministic: bool = False) -> None:
        self.dtype = dtype
        self._deterministic = deterministic

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        return FixedTileLinear(weight, bias) if self._deterministic else TorchLinear(weight, bias)

    def norm(self, weight: torch.Tensor, eps: float) -> Norm:
        return TritonNorm(weight, eps, self.dtype)

    def activation(self) -> Activation:
        return silu_and_mul
