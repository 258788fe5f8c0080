"""Random weights of any Llama, made on the device: the same for our model and for one of transformers.

A tensor depends on its name alone. Made on a CPU, as ``--load-format dummy`` does it, 8 billion of them would
take longer than everything that is measured with them.
"""

from __future__ import annotations

import hashlib
import math

import torch

from engine.config import ModelConfig
from engine.loading.shapes import tensor_shapes

_STANDARD_DEVIATION = 0.02


class DummyWeights:
    """A source of tensors for the loader. All in ``dtype`` on ``device``."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._shapes = tensor_shapes(config)
        self._dtype = dtype
        self._device = device

    def names(self) -> set[str]:
        return set(self._shapes)

    def size_bytes(self, name: str) -> int:
        return math.prod(self._shapes[name]) * self._dtype.itemsize

    def load(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        if len(shape) == 1:
            return tensor.fill_(1.0)
        digest = hashlib.blake2b(name.encode(), digest_size=7).digest()
        generator = torch.Generator(self._device).manual_seed(int.from_bytes(digest, "little"))
        return tensor.normal_(0.0, _STANDARD_DEVIATION, generator=generator)

    def quantized(self, name: str) -> None:
        """Nothing: they are drawn as they are."""
