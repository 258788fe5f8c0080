"""Reads a checkpoint's tensors into the model's fused, typed, placed weights.

Runs on: step thread, once. One source tensor is in memory at a time beside the result. A tensor that
is missing, unknown or of the wrong shape is a ConfigError that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.config import ConfigError, ModelConfig
from engine.loading.shapes import EMBEDDING, LM_HEAD, NORM, layer_prefix, tensor_shapes
from engine.loading.source import TensorSource
from engine.models.layers import Linear, Norm, Ops
from engine.models.llama import DecoderLayer, LlamaWeights

Progress = Callable[[str, int, int], None]
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


def load_weights(
    config: ModelConfig,
    source: TensorSource,
    ops: Ops,
    device: torch.device,
    on_progress: Progress,
) -> LlamaWeights:
    """All weights on ``device``, in the parts that ``ops`` makes of them.

    Calls ``on_progress("weights", done_bytes, total_bytes)``.
    """
    return _Loader(config, source, ops, device, on_progress).load()


class _Loader:
    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        ops: Ops,
        device: torch.device,
        on_progress: Progress,
    ) -> None:
        self._config = config
        self._source = source
        self._ops = ops
        self._device = device
        self._on_progress = on_progress
        self._shapes = tensor_shapes(config)
        self._check_names()
        self._total_bytes = sum(source.size_bytes(name) for name in self._shapes)
        self._done_bytes = 0

    def load(self) -> LlamaWeights:
        embedding = self._fused([EMBEDDING])
        layers = tuple(self._layer(layer_prefix(i)) for i in range(self._config.num_layers))
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
        weight = self._read(name, self._shapes[name]).to(device=self._device, dtype=torch.float32)
        return self._ops.norm(weight, self._config.rms_norm_eps)

    def _linear(self, prefix: str, parts: Sequence[str]) -> Linear:
        """The parts' output rows, one after another, as one projection."""
        weight = self._fused([f"{prefix}{part}.weight" for part in parts])
        if f"{prefix}{parts[0]}.bias" not in self._shapes:
            return self._ops.linear(weight)
        bias = self._fused([f"{prefix}{part}.bias" for part in parts])
        return self._ops.linear(weight, bias)

    def _fused(self, names: Sequence[str]) -> torch.Tensor:
        """Concatenation along the first dimension, filled tensor by tensor."""
        shapes = [self._shapes[name] for name in names]
        rows = sum(shape[0] for shape in shapes)
        result = torch.empty((rows, *shapes[0][1:]), dtype=self._ops.dtype, device=self._device)
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            result[start : start + shape[0]] = self._read(name, shape)
            start += shape[0]
        return result

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._source.load(name)
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"The weight {name} has the shape {tuple(tensor.shape)}; the config asks for {shape}."
            )
        self._done_bytes += self._source.size_bytes(name)
        self._on_progress("weights", self._done_bytes, self._total_bytes)
        return tensor

    def _check_names(self) -> None:
        present = self._source.names()
        missing = self._shapes.keys() - present
        if missing:
            raise ConfigError(f"The checkpoint lacks {len(missing)} weights, the first is {min(missing)}.")
        ignored = {LM_HEAD} if self._config.tie_word_embeddings else set()
        unknown = {
            name
            for name in present - self._shapes.keys() - ignored
            if not name.endswith("rotary_emb.inv_freq")
        }
        if unknown:
            raise ConfigError(
                f"The checkpoint has {len(unknown)} weights that this architecture does not use,"
                f" the first is {min(unknown)}; its config.json may be of another model."
            )
