"""The tensors that a Llama-family checkpoint must have, by Hugging Face name, and their shapes."""

from __future__ import annotations

import math
from pathlib import Path

from engine.config import ConfigError, ModelConfig

EMBEDDING, NORM, LM_HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
_LAYERS = "model.layers."

_COUNTS = {
    "vocab_size": "vocabulary size",
    "hidden_size": "hidden size",
    "intermediate_size": "intermediate size",
    "num_layers": "number of layers",
    "num_heads": "number of attention heads",
    "num_kv_heads": "number of key-value heads",
    "head_dim": "head size",
    "max_position_embeddings": "longest sequence",
}


def check_sizes(config: ModelConfig, path: Path) -> None:
    """Raise ConfigError for numbers that no model can have. ``path`` is for messages only."""
    for field, meaning in _COUNTS.items():
        value = getattr(config, field)
        if value < 1:
            raise ConfigError(f"{path} gives the {meaning} as {value}; it must be above zero.")
    if config.num_heads % config.num_kv_heads:
        raise ConfigError(
            f"{path} gives {config.num_heads} attention heads, which {config.num_kv_heads} key-value heads"
            f" cannot share evenly."
        )
    if config.head_dim % 2:
        raise ConfigError(f"{path} gives the head size as {config.head_dim}; RoPE needs an even one.")
    if config.sliding_window is not None and config.sliding_window < 1:
        raise ConfigError(f"{path} gives a sliding window of {config.sliding_window}; it must be above zero.")
    _check_rope(config, path)


def _check_rope(config: ModelConfig, path: Path) -> None:
    scaling = config.rope_scaling
    numbers = (config.rope_theta, scaling.factor, scaling.original_max_position_embeddings, *scaling.factors)
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ConfigError(f"{path} has a RoPE setting that is not above zero.")
    if scaling.kind == "llama3" and not 0 < scaling.low_freq_factor < scaling.high_freq_factor:
        raise ConfigError(f"{path} has a RoPE low_freq_factor that is not below its high_freq_factor.")
    if scaling.kind == "factors" and len(scaling.factors) != config.head_dim // 2:
        raise ConfigError(
            f"{path} has {len(scaling.factors)} RoPE factors for heads of {config.head_dim} dimensions."
        )
    if not (math.isfinite(config.rms_norm_eps) and config.rms_norm_eps >= 0):
        raise ConfigError(f"{path} gives the RMS norm epsilon as {config.rms_norm_eps}.")


def usable_token_ids(ids: list[int], vocab_size: int) -> tuple[int, ...]:
    """Each once, without those that no row of the vocabulary stands for (some configs say -1)."""
    return tuple(dict.fromkeys(token_id for token_id in ids if 0 <= token_id < vocab_size))


def layer_prefix(index: int) -> str:
    return f"{_LAYERS}{index}."


def num_parameters(config: ModelConfig) -> int:
    return sum(math.prod(shape) for shape in tensor_shapes(config).values())


def is_of_layer(name: str) -> bool:
    return name.startswith(_LAYERS)


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model. A tied ``lm_head`` is not among them."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        NORM: (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, config.hidden_size)
    for index in range(config.num_layers):
        prefix = layer_prefix(index)
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    attention = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
    }
    mlp = {
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for group, has_bias in ((attention, config.attention_bias), (mlp, config.mlp_bias)):
        for name, shape in group.items():
            shapes[f"{name}.weight"] = shape
            if has_bias:
                shapes[f"{name}.bias"] = shape[:1]
    return shapes
