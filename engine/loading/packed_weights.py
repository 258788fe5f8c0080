"""A checkpoint's quantized matrices, packed for the kernels that read them as they are.

Runs on: step thread, once.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence

import numpy as np

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
from engine.packed.layout import QuantizedMatrix, interleaved, stacked
from engine.packed.weights import Floats, PackedStack, PackedWeights

logger = logging.getLogger(__name__)


def pack_weights(config: ModelConfig, source: TensorSource, on_progress: Progress) -> PackedWeights | None:
    """A model's quantized matrices and its norms; None if a layer has a matrix that is not quantized so.

    The head may be of another type, as it is in most files; then there is none. Nor are there any for a model
    with biases. Beside the result a few copies of one matrix are in memory.

    Calls ``on_progress("quantized weights", done_bytes, total_bytes)``. Raises ConfigError for a tensor that
    is missing, unknown or of another shape.
    """
    if config.attention_bias or config.mlp_bias:
        return None
    head = EMBEDDING if config.tie_word_embeddings else LM_HEAD
    wanted = [name for name in tensor_shapes(config) if is_of_layer(name) or name in (NORM, head)]
    tensors = ExpectedTensors(config, source, wanted, "quantized weights", on_progress)
    try:
        return _Packer(config, tensors).pack(head)
    except _NotQuantizedError as error:
        logger.info("all steps take the weights in the model's dtype: %s", error)
        return None


class _NotQuantizedError(Exception):
    """A matrix is of a type without kernels, or of another one than those beside it."""


class _Packer:
    def __init__(self, config: ModelConfig, tensors: ExpectedTensors) -> None:
        self._config = config
        self._tensors = tensors

    def pack(self, head: str) -> PackedWeights:
        layers = [layer_prefix(index) for index in range(self._config.num_layers)]
        return PackedWeights(
            qkv=self._stack(QKV),
            output=self._stack(("self_attn.o_proj",)),
            gate_up=self._stack_gates(),
            down=self._stack(("mlp.down_proj",)),
            lm_head=self._head(head),
            input_norms=self._norms([f"{prefix}input_layernorm.weight" for prefix in layers]),
            post_attention_norms=self._norms(
                [f"{prefix}post_attention_layernorm.weight" for prefix in layers]
            ),
            norm=self._norms([NORM])[0],
            eps=self._config.rms_norm_eps,
        )

    def _head(self, name: str) -> PackedStack | None:
        head = self._tensors.quantized(name)
        return None if head is None else _packed(iter([head]), 1)

    def _norms(self, names: Sequence[str]) -> Floats:
        return np.stack([self._tensors.load(name).float().numpy() for name in names])

    def _stack(self, parts: Sequence[str]) -> PackedStack:
        """One matrix a layer: the parts' outputs, one after another."""
        layers = range(self._config.num_layers)
        matrices = (self._read([f"{layer_prefix(i)}{part}.weight" for part in parts]) for i in layers)
        return _packed(matrices, len(layers))

    def _stack_gates(self) -> PackedStack:
        layers = range(self._config.num_layers)
        matrices = (
            interleaved(*(self._read([f"{layer_prefix(i)}{part}.weight"]) for part in GATE_UP))
            for i in layers
        )
        return _packed(matrices, len(layers))

    def _read(self, names: Sequence[str]) -> QuantizedMatrix:
        parts = [self._tensors.quantized(name) for name in names]
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
