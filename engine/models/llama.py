"""The Llama family: Llama 2 and 3, Mistral, SmolLM2. One decoder, paged attention, inference only.

Runs on: step thread. Shapes: T rows of this step over all sequences, H hidden, Hq and Hkv heads, D head
size. Q, K and V come from one projection, and so do gate and up. The residual stream stays in float32,
whatever the weights are: rounding it in every layer costs more accuracy than all products together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.attention.base import AttentionBackend, AttentionMetadata
from engine.models.layers import Activation, Linear, Norm
from engine.models.rope import RopeTable


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One step's rows. ``logit_rows`` are those that need logits."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    logit_rows: torch.Tensor  # [R] int64
    attention: AttentionMetadata


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The parts of one layer."""

    input_norm: Norm
    qkv: Linear  # [(Hq + 2 Hkv) * D, H]
    output: Linear  # [H, Hq * D]
    post_attention_norm: Norm
    gate_up: Linear  # [2 * F, H]
    activation: Activation
    down: Linear  # [H, F]

    def __call__(
        self, index: int, hidden: torch.Tensor, delta: torch.Tensor | None, attention: AttentionBackend
    ) -> torch.Tensor:
        """What this layer's MLP adds to ``hidden``, ``[T, H]``.

        ``delta`` is what the layer before adds. It and the attention's part are added to ``hidden``
        (float32), in place and in one pass with the norm that follows.
        """
        normed = self.input_norm(hidden) if delta is None else self.input_norm.after(hidden, delta)
        attended = attention.forward(index, self.qkv(normed))
        normed = self.post_attention_norm.after(hidden, self.output(attended))
        return self.down(self.activation(self.gate_up(normed)))


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """The parts of a whole model, but for what another decoder reads alone: layers, head.

    ``lm_head`` may hold the embedding itself.
    """

    embedding: torch.Tensor  # [V, H]
    layers: tuple[DecoderLayer, ...]
    norm: Norm
    lm_head: Linear | None  # [V, H]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every distinct weight. One that is packed is unpacked for as long as it is looked at."""
        yield self.embedding
        yield from self.norm.tensors()
        head = () if self.lm_head is None else self.lm_head.tensors()
        yield from (tensor for tensor in head if tensor.data_ptr() != self.embedding.data_ptr())
        for layer in self.layers:
            for part in (
                layer.input_norm, layer.post_attention_norm,
                layer.qkv, layer.output, layer.gate_up, layer.down,
            ):  # fmt: skip
                yield from part.tensors()


class Decoder(Protocol):
    """A model as a runner drives it."""

    @property
    def vocab_size(self) -> int: ...

    def hidden(self, inputs: ModelInput) -> torch.Tensor:
        """The last layer's output ``[T, H]`` float32, of which ``logits`` may be taken."""
        ...

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits ``[R, V]`` float32 of rows ``[R, H]`` of the hidden state."""
        ...


class LlamaModel:
    """Rows in, logits out; keys and values go to the attention backend's pool."""

    def __init__(self, weights: LlamaWeights, rope: RopeTable, attention: AttentionBackend) -> None:
        self.weights = weights
        self.rope = rope
        self.attention = attention

    @property
    def vocab_size(self) -> int:
        return self.weights.embedding.shape[0]

    def forward(self, inputs: ModelInput) -> torch.Tensor:
        """Logits ``[R, V]`` float32 of the rows in ``logit_rows``."""
        return self.logits(self.hidden(inputs)[inputs.logit_rows])

    def hidden(self, inputs: ModelInput) -> torch.Tensor:
        """The last layer's output ``[T, H]`` float32, of which ``logits`` may be taken."""
        weights = self.weights
        self.attention.begin_step(inputs.attention, *self.rope.at(inputs.positions))
        hidden = weights.embedding[inputs.token_ids].float()
        delta = None
        for index, layer in enumerate(weights.layers):
            delta = layer(index, hidden, delta, self.attention)
        return hidden if delta is None else hidden.add_(delta)

    def logits(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Logits ``[R, V]`` float32 of rows ``[R, H]`` of the hidden state; ``out`` takes them, if given."""
        if not len(rows):
            return rows.new_empty((0, self.vocab_size), dtype=torch.float32)
        head = self.weights.lm_head
        assert head is not None
        logits = head(self.weights.norm(rows))
        return logits.float() if out is None else out.copy_(logits)
