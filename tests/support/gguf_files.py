"""Writes a transformers Llama model as a GGUF file, the way llama.cpp's converter does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
Metadata = dict[str, Any]
Tensors = dict[str, npt.NDArray[np.float32]]


def gguf_parts(model: Any) -> tuple[Metadata, Tensors]:
    """Metadata and tensors of a ``LlamaForCausalLM``; the caller may change them before writing."""
    config = model.config
    metadata: Metadata = {
        "llama.vocab_size": config.vocab_size,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "llama.rope.dimension_count": config.head_dim,
        "llama.attention.key_length": config.head_dim,
        "llama.attention.value_length": config.head_dim,
        "tokenizer.ggml.bos_token_id": config.bos_token_id,
        "tokenizer.ggml.eos_token_id": config.eos_token_id,
    }
    tied = config.tie_word_embeddings
    tensors = {
        _name(name): _value(name, parameter.detach().float().numpy(), config)
        for name, parameter in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    if config.rope_parameters["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(config)
    return metadata, tensors


def write_gguf(path: Path, metadata: Metadata, tensors: Tensors, architecture: str = "llama") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}.get(type(value))
        (add or writer.add_array)(key, value)
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama3_factors(config: Any) -> npt.NDArray[np.float32]:
    """Divisor of each frequency, as the converter computes it."""
    rope = config.rope_parameters
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    factors = []
    for i in range(0, config.head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / config.head_dim)
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def _name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_LAYER[rest]}.{kind}"


def _value(name: str, values: npt.NDArray[np.float32], config: Any) -> npt.NDArray[np.float32]:
    if ".q_proj." in name:
        return _interleaved(values, config.num_attention_heads)
    return _interleaved(values, config.num_key_value_heads) if ".k_proj." in name else values


def _interleaved(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """``LlamaModel.permute`` of convert_hf_to_gguf.py."""
    halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)
