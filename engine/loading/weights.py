"""Reads a checkpoint's tensors into the model's fused, typed, placed weights.

Runs on: step thread, once. One source tensor is in memory at a time beside the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.config import ModelConfig
from engine.loading.expected import ExpectedTensors, Progress
from engine.loading.shapes import EMBEDDING, LM_HEAD, NORM, is_of_layer, layer_prefix, tensor_shapes
from engine.loading.source import TensorSource
from engine.models.layers import Linear, Norm, Ops
from engine.models.llama import DecoderLayer, LlamaWeights

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


def load_weights(
    config: ModelConfig,
    source: TensorSource,
    ops: Ops,
    device: torch.device,
    on_progress: Progress,
    *,
    with_layers: bool = True,
) -> LlamaWeights:
    """All weights on ``device``, in the parts that ``ops`` makes of them; or what is around the layers.

    Calls ``on_progress("weights", done_bytes, total_bytes)``. Raises ConfigError for a tensor that is
    missing, unknown or of the wrong shape.
    """
    wanted = [name for name in tensor_shapes(config) if with_layers or not is_of_layer(name)]
    tensors = ExpectedTensors(config, source, wanted, "weights", on_progress)
    return _Loader(config, tensors, ops, device).load(config.num_layers if with_layers else 0)


class _Loader:
    def __init__(self, config: ModelConfig, tensors: ExpectedTensors, ops: Ops, device: torch.device) -> None:
        self._config = config
        self._tensors = tensors
        self._ops = ops
        self._device = device

    def load(self, num_layers: int) -> LlamaWeights:
        embedding = self._fused([EMBEDDING])
        layers = tuple(self._layer(layer_prefix(index)) for index in range(num_layers))
        is_tied = self._config.tie_word_embeddings
        head = self._ops.linear(embedding if is_tied else self._fused([LM_HEAD]), is_shared=is_tied)
        return LlamaWeights(embedding, layers, self._norm(NORM), head)

    def _layer(self, prefix: str) -> DecoderLayer:
        return DecoderLayer(
            input_norm=self._norm(f"{prefix}input_layernorm.weight"),
            qkv=self._linear(prefix, _QKV),
            output=self._linear(prefix, ("self_attn.o_proj",)),
            post_attention_norm=self._norm(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._linear(prefix, _GATE_UP),
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
