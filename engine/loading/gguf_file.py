"""GGUF files of the llama architecture: metadata to ``ModelConfig``, tensors decoded to float32.

Runs on: step thread, once. The file is memory-mapped. llama.cpp stores the rows of Q and K in the order
of its own rotary embedding (pairs side by side); they are put back into halves here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from engine.config import ConfigError, ModelConfig, RopeScaling
from engine.loading.gguf_blocks import quantized_matrix
from engine.loading.gguf_reader import LeanReader
from engine.loading.hf_directory import DummyWeights
from engine.loading.shapes import check_sizes, usable_token_ids
from engine.loading.source import TensorSource
from engine.packed.layout import QuantizedMatrix

_ROPE_FACTORS = "rope_freqs.weight"
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def open_file(path: Path, load_format: str, seed: int) -> tuple[ModelConfig, TensorSource]:
    """The shape of the model and its weights. Raises ConfigError."""
    try:
        reader = LeanReader(path)
    except Exception as error:  # the reader raises whatever numpy or struct do on a broken file
        raise ConfigError(f"{path} cannot be read as a GGUF file; it may be damaged or cut short.") from error
    try:
        config = _Metadata(reader, path).model_config()
    except (TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} has metadata that cannot be used: {error}.") from error
    check_sizes(config, path)
    if load_format == "dummy":
        return config, DummyWeights(config, seed)
    return config, GGUFWeights(reader, config, path)


def hugging_face_name(name: str) -> str:
    """``blk.3.attn_q.weight`` to ``model.layers.3.self_attn.q_proj.weight``; unknown names unchanged."""
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    return name


class GGUFWeights:
    """Tensors of one file, dequantized by the gguf library as they are asked for."""

    def __init__(self, reader: gguf.GGUFReader, config: ModelConfig, path: Path) -> None:
        self._config = config
        self._path = path
        self._tensors = {
            hugging_face_name(tensor.name): tensor
            for tensor in reader.tensors
            if tensor.name != _ROPE_FACTORS
        }

    def names(self) -> set[str]:
        return set(self._tensors)

    def size_bytes(self, name: str) -> int:
        return int(self._tensors[name].n_bytes)

    def load(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        data = np.asarray(tensor.data)  # a slice of a memory map costs several times one of an array
        try:
            values = gguf.quants.dequantize(data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise ConfigError(
                f"{tensor.name} in {self._path} is {tensor.tensor_type.name}, which cannot be decoded."
            ) from error
        weight = torch.from_numpy(np.require(values, np.float32, ("C", "W")))
        return weight[self._order(len(weight))] if _is_rotated(name) else weight

    def quantized(self, name: str) -> QuantizedMatrix | None:
        tensor = self._tensors[name]
        matrix = quantized_matrix(np.asarray(tensor.data), tensor.tensor_type)
        if matrix is None or not _is_rotated(name):
            return matrix
        return matrix.rows(self._order(matrix.num_outputs))

    def _order(self, num_rows: int) -> npt.NDArray[np.intp]:
        """Which rows of each head, stored as ``(x0, y0, x1, y1, ...)``, make ``(x0, x1, ..., y0, y1, ...)``.

        Leaves a weight that is not made of whole heads to the loader, which refuses its shape.
        """
        rows = np.arange(num_rows)
        head_dim = self._config.head_dim
        if num_rows % head_dim:
            return rows
        return rows.reshape(-1, head_dim // 2, 2).transpose(0, 2, 1).ravel()


def _is_rotated(name: str) -> bool:
    return ".q_proj." in name or ".k_proj." in name


class _Metadata:
    """Typed access to a file's key-value part."""

    def __init__(self, reader: gguf.GGUFReader, path: Path) -> None:
        self._reader = reader
        self._path = path

    def model_config(self) -> ModelConfig:
        architecture = self._get("general.architecture")
        if architecture != "llama":
            raise ConfigError(f"{self._path} holds a {architecture} model; only llama is supported.")
        hidden_size = int(self._need("llama.embedding_length"))
        num_heads = int(self._need("llama.attention.head_count"))
        head_dim = int(self._get("llama.attention.key_length", hidden_size // max(num_heads, 1)))
        self._check_heads(head_dim)
        shapes = {tensor.name: tensor.shape for tensor in self._reader.tensors}
        if len(shapes.get("token_embd.weight", ())) != 2:
            raise ConfigError(f"{self._path} has no token embeddings; it may be a part of a split file.")
        vocab_size = int(shapes["token_embd.weight"][1])
        return ModelConfig(
            architecture="LlamaForCausalLM",
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=int(self._need("llama.feed_forward_length")),
            num_layers=int(self._need("llama.block_count")),
            num_heads=num_heads,
            num_kv_heads=int(self._get("llama.attention.head_count_kv", num_heads)),
            head_dim=head_dim,
            max_position_embeddings=int(self._need("llama.context_length")),
            rms_norm_eps=float(self._need("llama.attention.layer_norm_rms_epsilon")),
            rope_theta=float(self._get("llama.rope.freq_base", 10000.0)),
            rope_scaling=self._rope_scaling(),
            tie_word_embeddings="output.weight" not in shapes,
            attention_bias="blk.0.attn_q.bias" in shapes,
            mlp_bias="blk.0.ffn_gate.bias" in shapes,
            bos_token_id=self._get("tokenizer.ggml.bos_token_id"),
            eos_token_ids=usable_token_ids(self._eos_token_ids(), vocab_size),
        )

    def _check_heads(self, head_dim: int) -> None:
        """The decoder rotates whole heads, and gives keys and values one size."""
        for key in ("llama.rope.dimension_count", "llama.attention.value_length"):
            if self._get(key, head_dim) != head_dim:
                raise ConfigError(
                    f"{self._path} gives {key} as {self._get(key)}; only the head size {head_dim} will do."
                )

    def _rope_scaling(self) -> RopeScaling:
        for tensor in self._reader.tensors:
            if tensor.name == _ROPE_FACTORS:
                return RopeScaling(kind="factors", factors=tuple(float(value) for value in tensor.data))
        kind = self._get("llama.rope.scaling.type", "none")
        if kind == "none":
            return RopeScaling()
        if kind == "linear":
            return RopeScaling(kind="linear", factor=float(self._need("llama.rope.scaling.factor")))
        raise ConfigError(f"{self._path} asks for the RoPE scaling {kind}, which is not supported.")

    def _eos_token_ids(self) -> list[int]:
        keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        return [int(value) for key in keys if (value := self._get(key)) is not None]

    def _need(self, key: str) -> Any:
        value = self._get(key)
        if value is None:
            raise ConfigError(f"{self._path} lacks the metadata {key}.")
        return value

    def _get(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        return default if field is None else field.contents()
