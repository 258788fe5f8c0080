"""What the loader asks of a checkpoint's weights, whatever file they are in."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.packed.layout import QuantizedMatrix


class TensorSource(Protocol):
    """Weights by their Hugging Face name (``model.layers.0.self_attn.q_proj.weight`` and so on)."""

    def names(self) -> set[str]: ...

    def size_bytes(self, name: str) -> int:
        """Bytes that reading this tensor takes, for progress."""
        ...

    def load(self, name: str) -> torch.Tensor:
        """The tensor, on the CPU, in whatever floating type it is stored or decoded to."""
        ...

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """The matrix as it is stored, if that is in blocks for which there are kernels."""
        ...
