"""Reads a checkpoint's tensors into the model's fused, typed, placed weights.

Runs on: step thread, once. One source tensor is in memory at a time beside the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.config import ModelConfig
from engine.loading.expected import ExpectedTensors, Progress
from engine.loading.shapes import (
    EMBEDDING,
    GATE_UP,
    LM_HEAD,
    NORM,
    QKV,
    is_of_layer,
    layer_prefix,
    tensor_shapes,
)
from engine.loading.source import TensorSource
from engine.models.layers import Linear, Norm, Ops
from engine.models.llama import DecoderLayer, LlamaWeights
from engine.packed.weights import PackedWeights


def load_weights(
    config: ModelConfig,
    source: TensorSource,
    ops: Ops,
    device: torch.device,
    on_progress: Progress,
    *,
    beside: PackedWeights | None = None,
) -> LlamaWeights:
    """All weights on ``device``, in the parts that ``ops`` makes of them.

    But for those that no step reads so, since they are ``beside``: the layers, and a head that is packed.
    Calls ``on_progress("weights", done_bytes, total_bytes)``. Raises ConfigError for a tensor that is
    missing, unknown or of the wrong shape.
    """
    has_layers = beside is None
    has_head = beside is None or beside.lm_head is None
    left_out = () if has_head else (LM_HEAD,)
    names = [name for name in tensor_shapes(config) if name not in left_out]
    wanted = [name for name in names if has_layers or not is_of_layer(name)]
    tensors = ExpectedTensors(config, source, wanted, "weights", on_progress)
    return _Loader(config, tensors, ops, device).load(
        config.num_layers if has_layers else 0, has_head=has_head
    )


class _Loader:
    def __init__(self, config: ModelConfig, tensors: ExpectedTensors, ops: Ops, device: torch.device) -> None:
        self._config = config
        self._tensors = tensors
        self._ops = ops
        self._device = device

    def load(self, num_layers: int, *, has_head: bool) -> LlamaWeights:
        embedding = self._fused([EMBEDDING])
        layers = tuple(self._layer(layer_prefix(index)) for index in range(num_layers))
        head = self._head(embedding) if has_head else None
        return LlamaWeights(embedding, layers, self._norm(NORM), head)

    def _head(self, embedding: torch.Tensor) -> Linear:
        is_tied = self._config.tie_word_embeddings
        return self._ops.linear(embedding if is_tied else self._fused([LM_HEAD]), is_shared=is_tied)

    def _layer(self, prefix: str) -> DecoderLayer:
        return DecoderLayer(
            input_norm=self._norm(f"{prefix}input_layernorm.weight"),
            qkv=self._linear(prefix, QKV),
            output=self._linear(prefix, ("self_attn.o_proj",)),
            post_attention_norm=self._norm(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._linear(prefix, GATE_UP),
            activation=self._ops.activation(),
            down=self._linear(prefix, ("mlp.down_proj",)),
        )

    def _norm(self, name: str) -> Norm:
        weight = self._tensors.load(name).to(device=self._device, dtype=torch.float32)
        return self._ops.norm(weight, self._config.rms_norm_eps)

    def _linear(self, prefix: str, parts: Sequence[str]) -> Linear:
        """The parts' output rows, one after another, as one projection."""
        weight = self._fused([f"{prefix}{part}.weight" for part in parts])
        if f"{prefix}{parts[0]}.bias" not in self._tensors.shapes:
            return self._ops.linear(weight)
        bias = self._fused([f"{prefix}{part}.bias" for part in parts])
        return self._ops.linear(weight, bias)

    def _fused(self, names: Sequence[str]) -> torch.Tensor:
        """Concatenation along the first dimension, filled tensor by tensor."""
        shapes = [self._tensors.shapes[name] for name in names]
        rows = sum(shape[0] for shape in shapes)
        result = torch.empty((rows, *shapes[0][1:]), dtype=self._ops.dtype, device=self._device)
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            result[start : start + shape[0]] = self._tensors.load(name)
            start += shape[0]
        return result
