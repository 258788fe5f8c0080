"""A model's parts for a GPU: norms and SwiGLU in one pass each, and matrix products by torch.

Runs on: step thread. In deterministic mode products are ours too, for no library promises that a row's
result depends on the row alone; norms and SwiGLU always keep that promise.
"""

from __future__ import annotations

import torch

from engine.config import ConfigError
from engine.fused.activation import silu_and_mul
from engine.fused.configs import WIDEST_ROW
from engine.fused.matmul import FixedTileLinear
from engine.fused.norm import TritonNorm
from engine.models.layers import Activation, Linear, Norm, Ops, TorchLinear, TorchNorm


class TritonOps(Ops):
    """Fused kernels. ``deterministic``: a row's result depends on the row alone, bit for bit."""

    def __init__(self, dtype: torch.dtype, *, deterministic: bool = False) -> None:
        self.dtype = dtype
        self._deterministic = deterministic

    def linear(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, is_shared: bool = False
    ) -> Linear:
        return FixedTileLinear(weight, bias) if self._deterministic else TorchLinear(weight, bias)

    def norm(self, weight: torch.Tensor, eps: float) -> Norm:
        """torch's own of rows that no program can hold. Raises ConfigError if the deterministic need one."""
        if len(weight) <= WIDEST_ROW:
            return TritonNorm(weight, eps, self.dtype)
        if self._deterministic:
            raise ConfigError(f"--deterministic knows no hidden states of size {len(weight)} on a GPU.")
        return TorchNorm(weight, eps, self.dtype)

    def activation(self) -> Activation:
        return silu_and_mul
