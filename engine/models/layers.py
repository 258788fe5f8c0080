"""The parts that decoder layers are made of, beside attention, and who makes them for a device.

Plain functions over tensors, inference only. ``Ops`` is the seam between the model and the machine: the model
says what is computed, an ``Ops`` how. ``TorchOps`` runs anywhere, and is what the others are tested against.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F

_UNCUT: Final = 32768  # elements that torch never divides between threads (its grain size)
DETERMINISTIC_ROW_TILE: Final = 16  # the fastest at batch 1 to 16 that keeps most of the prefill's speed

Activation = Callable[[torch.Tensor], torch.Tensor]


class Linear(ABC):
    """``x @ weight.T + bias`` for rows ``x`` ``[T, in]``."""

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The weights it holds, of the shapes given; of what is packed, copies."""


class Norm(ABC):
    """Root mean square norm (Zhang and Sennrich 2019) of float32 rows, rounded once, to the model's dtype."""

    @abstractmethod
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def after(self, hidden: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Add ``delta`` to ``hidden``, in place, and norm the sum."""

    @abstractmethod
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Its weight, float32."""


class Ops(ABC):
    """Makes a model's parts for one kind of device. ``dtype``: of weights and of what passes between."""

    dtype: torch.dtype

    @abstractmethod
    def linear(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, is_shared: bool = False
    ) -> Linear:
        """From ``weight`` ``[out, in]`` and ``bias`` ``[out]`` in ``dtype``, on the device.

        ``is_shared``: something else has the weight too, so that to pack it would take its memory again.
        """

    @abstractmethod
    def norm(self, weight: torch.Tensor, eps: float) -> Norm:
        """From ``weight`` ``[H]`` float32, on the device."""

    @abstractmethod
    def activation(self) -> Activation:
        """SwiGLU of a fused projection: ``[T, 2 * F]`` to ``[T, F]``, the gate in the first half."""


@dataclass(frozen=True, slots=True)
class TorchLinear(Linear):
    """torch's own product."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


class PrepackedLinear(Linear):
    """oneDNN's product by a bfloat16 weight in the layout that oneDNN wants.

    torch's own product on a CPU is oneDNN's too, but brings the weight into that layout at every call.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = _onednn()._reorder_linear_weight(weight)
        self._bias = bias
        self._product = _onednn()._linear_pointwise.default

    @staticmethod
    def is_possible(weight: torch.Tensor) -> bool:
        """Whether this torch and this CPU have it."""
        if weight.dtype != torch.bfloat16 or weight.device.type != "cpu":
            return False
        names = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
        has_all = torch.backends.mkldnn.is_available() and all(hasattr(_onednn(), name) for name in names)
        return has_all and bool(_onednn()._is_mkldnn_bf16_supported())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._product(x, self._packed, self._bias, "none", [], "")
        return result

    def tensors(self) -> tuple[torch.Tensor, ...]:
        weight = self._packed.to_dense()
        return (weight,) if self._bias is None else (weight, self._bias)


def _onednn() -> Any:
    return torch.ops.mkldnn


@dataclass(frozen=True, slots=True)
class RowTiledLinear(Linear):
    """A product whose every call of ``linear`` has exactly so many rows, padded with zeros at the end.

    A matrix product may sum in another order for another number of rows; so a row's result then depends on
    nothing but the row, be it one of a prompt or a single decode, and whatever its neighbours are.
    """

    linear: Linear
    row_tile: int = DETERMINISTIC_ROW_TILE

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[0]
        padded = F.pad(x, (0, 0, 0, -num_rows % self.row_tile))
        return torch.cat([self.linear(tile) for tile in padded.split(self.row_tile)])[:num_rows]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.linear.tensors()


@dataclass(frozen=True, slots=True)
class TorchNorm(Norm):
    """torch's own norm."""

    weight: torch.Tensor  # float32
    eps: float
    dtype: torch.dtype

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(hidden, self.weight.shape, self.weight, self.eps).to(self.dtype)

    def after(self, hidden: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        hidden += delta
        return self(hidden)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self.weight,)


def silu_and_mul(gate_up: torch.Tensor, *, by_row: bool = False) -> torch.Tensor:
    """SwiGLU in torch.

    With ``by_row`` a row's result depends on the row alone. Else it may not: torch cuts a large input into a
    piece a thread wherever that falls, and rounds the exponentials at a cut in another way.
    """
    num_gates = gate_up.shape[-1] // 2
    if by_row and gate_up.shape[0] * num_gates > _UNCUT:
        rows = max(1, _UNCUT // num_gates)
        return torch.cat([silu_and_mul(part) for part in gate_up.split(rows)])
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def _silu_and_mul_by_row(gate_up: torch.Tensor) -> torch.Tensor:
    return silu_and_mul(gate_up, by_row=True)


class TorchOps(Ops):
    """Everything by torch. ``deterministic``: a row's result depends on the row alone, bit for bit."""

    def __init__(self, dtype: torch.dtype, *, deterministic: bool = False) -> None:
        self.dtype = dtype
        self._deterministic = deterministic

    def linear(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, is_shared: bool = False
    ) -> Linear:
        packs = not is_shared and PrepackedLinear.is_possible(weight)
        linear = PrepackedLinear(weight, bias) if packs else TorchLinear(weight, bias)
        return RowTiledLinear(linear) if self._deterministic else linear

    def norm(self, weight: torch.Tensor, eps: float) -> Norm:
        return TorchNorm(weight, eps, self.dtype)

    def activation(self) -> Activation:
        return _silu_and_mul_by_row if self._deterministic else silu_and_mul
