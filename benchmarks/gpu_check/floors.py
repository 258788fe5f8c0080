"""The least that a computation costs: bytes that must be read, operations that must be done. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.config import ModelConfig
from engine.loading.shapes import EMBEDDING, tensor_shapes


def decode_bytes(num_tokens: int, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """K and V of ``num_tokens`` in one layer, each read once."""
    return 2 * num_tokens * num_kv_heads * head_dim * dtype_bytes


def extend_operations(num_new: int, context: int, num_heads: int, head_dim: int) -> int:
    """Multiplications and additions of one layer's causal attention: QK and PV of the pairs that are seen."""
    pairs = num_new * context + num_new * (num_new + 1) // 2
    return 4 * num_heads * head_dim * pairs


@dataclass(frozen=True, slots=True)
class StepFloor:
    """What one decode step of a model cannot be faster than, by the rates that the card was measured at.

    Every weight but the embedding is read once and used for each row, and the KV of every sequence is read
    once. Where products take longer than reading their weights does, that time counts.
    """

    num_weights: int
    dtype_bytes: int
    token_bytes: int  # of KV, over all layers

    @classmethod
    def of(cls, model: ModelConfig, dtype_bytes: int) -> StepFloor:
        count = sum(math.prod(shape) for name, shape in tensor_shapes(model).items() if name != EMBEDDING)
        if model.tie_word_embeddings:
            count += model.vocab_size * model.hidden_size
        token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype_bytes
        return cls(count, dtype_bytes, token)

    def seconds(self, batch: int, mean_len: float, bytes_per_s: float, operations_per_s: float) -> float:
        """Of a step of ``batch`` sequences with ``mean_len`` tokens each."""
        reading = self.num_weights * self.dtype_bytes / bytes_per_s
        computing = 2 * batch * self.num_weights / operations_per_s
        return max(reading, computing) + batch * mean_len * self.token_bytes / bytes_per_s
