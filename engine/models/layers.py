"""The small parts that decoder layers are made of. Plain functions over tensors, inference only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F

_UNCUT: Final = 32768  # elements that torch never divides between threads (its grain size)
DETERMINISTIC_ROW_TILE: Final = 16  # the fastest at batch 1 to 16 that keeps most of the prefill's speed


@dataclass(frozen=True, slots=True)
class Linear:
    """``x @ weight.T + bias``. ``weight`` is ``[out, in]``.

    With ``row_tile`` every product has exactly that many rows, padded with zeros where the input ends. A
    matrix product may sum in another order for another number of rows; so a row's result then depends on
    nothing but the row, be it one of a prompt or a single decode, and whatever its neighbours are.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    row_tile: int | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.row_tile is None:
            return F.linear(x, self.weight, self.bias)
        num_rows = x.shape[0]
        padded = F.pad(x, (0, 0, 0, -num_rows % self.row_tile))
        tiles = [F.linear(tile, self.weight, self.bias) for tile in padded.split(self.row_tile)]
        return torch.cat(tiles)[:num_rows]


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Root mean square norm (Zhang and Sennrich 2019) of float32 rows, rounded once, to ``dtype``."""

    weight: torch.Tensor  # float32
    eps: float
    dtype: torch.dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps).to(self.dtype)


def silu_and_mul(gate_up: torch.Tensor, *, by_row: bool = False) -> torch.Tensor:
    """SwiGLU of a fused projection: ``[T, 2 * F]`` to ``[T, F]``, the gate in the first half.

    With ``by_row`` a row's result depends on the row alone. Else it may not: torch cuts a large input into a
    piece a thread wherever that falls, and rounds the exponentials at a cut in another way.
    """
    num_gates = gate_up.shape[-1] // 2
    if by_row and gate_up.shape[0] * num_gates > _UNCUT:
        rows = max(1, _UNCUT // num_gates)
        return torch.cat([silu_and_mul(part) for part in gate_up.split(rows)])
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
