"""A checkpoint's quantized matrices, packed for the kernels that read them as they are.

Runs on: step thread, once.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence

import numpy as np

from engine.config import ModelConfig
from engine.loading.shapes import EMBEDDING, LM_HEAD, layer_prefix
from engine.loading.source import TensorSource
from engine.models.layers import Norm
from engine.models.llama import LlamaWeights
from engine.packed.layout import QuantizedMatrix, interleaved, stacked
from engine.packed.weights import Floats, PackedStack, PackedWeights

logger = logging.getLogger(__name__)

_GATE_UP = ("gate_proj", "up_proj")
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def pack_weights(config: ModelConfig, source: TensorSource, weights: LlamaWeights) -> PackedWeights | None:
    """The weights that ``weights`` were decoded from; None if a layer has a matrix that is not quantized so.

    The head may be of another type, as it is in most files; then there is none. Nor are there any for a model
    with biases. Beside the result one layer is in memory.
    """
    if config.attention_bias or config.mlp_bias:
        return None
    try:
        return _Packer(config, source, weights).pack()
    except _NotQuantizedError as error:
        logger.info("all steps take the weights in the model's dtype: %s", error)
        return None


class _NotQuantizedError(Exception):
    """A matrix is of a type without kernels, or of another one than those beside it."""


class _Packer:
    def __init__(self, config: ModelConfig, source: TensorSource, weights: LlamaWeights) -> None:
        self._config = config
        self._source = source
        self._weights = weights

    def pack(self) -> PackedWeights:
        layers = self._weights.layers
        return PackedWeights(
            input_norms=_stacked_norms([layer.input_norm for layer in layers]),
            qkv=self._stack(_QKV),
            output=self._stack(("self_attn.o_proj",)),
            post_attention_norms=_stacked_norms([layer.post_attention_norm for layer in layers]),
            gate_up=self._stack_gates(),
            down=self._stack(("mlp.down_proj",)),
            norm=_stacked_norms([self._weights.norm])[0],
            lm_head=self._head(),
            eps=self._config.rms_norm_eps,
        )

    def _head(self) -> PackedStack | None:
        name = EMBEDDING if self._config.tie_word_embeddings else LM_HEAD
        head = self._source.quantized(name)
        return None if head is None else _packed(iter([head]), 1)

    def _stack(self, parts: Sequence[str]) -> PackedStack:
        """One matrix a layer: the parts' outputs, one after another."""
        layers = range(self._config.num_layers)
        matrices = (self._read([f"{layer_prefix(i)}{part}.weight" for part in parts]) for i in layers)
        return _packed(matrices, len(layers))

    def _stack_gates(self) -> PackedStack:
        layers = range(self._config.num_layers)
        matrices = (
            interleaved(*(self._read([f"{layer_prefix(i)}mlp.{part}.weight"]) for part in _GATE_UP))
            for i in layers
        )
        return _packed(matrices, len(layers))

    def _read(self, names: Sequence[str]) -> QuantizedMatrix:
        parts = [self._source.quantized(name) for name in names]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts) or len({part.bits for part in found}) > 1:
            raise _NotQuantizedError(f"no kernel multiplies by {' and '.join(names)} as they are stored.")
        return stacked(found)


def _packed(matrices: Iterator[QuantizedMatrix], count: int) -> PackedStack:
    """``count`` matrices, each read when the one before it is packed."""
    first = next(matrices)
    stack = PackedStack(count, first)
    for layer, matrix in enumerate(itertools.chain([first], matrices)):
        if matrix.bits != stack.bits:
            raise _NotQuantizedError(f"layer {layer} has weights of {matrix.bits} bits, not {stack.bits}.")
        stack.put(layer, matrix)
    return stack


def _stacked_norms(norms: Sequence[Norm]) -> Floats:
    return np.stack([norm.tensors()[0].numpy() for norm in norms])
