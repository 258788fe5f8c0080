"""Hugging Face ``config.json`` to ``ModelConfig``, for the architectures of the Llama family.

Pure but for reading the files. Both spellings of the rotary settings are understood: ``rope_theta``
with ``rope_scaling``, and ``rope_parameters``. What the model file does not implement is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.config import ConfigError, ModelConfig, RopeScaling
from engine.loading.shapes import check_sizes, usable_token_ids
from engine.messages import SamplingDefaults

SUPPORTED = ("LlamaForCausalLM", "MistralForCausalLM")
_MISTRAL_WINDOW = 4096


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ConfigError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} does not hold a JSON object.")
    return value


def read_sampling_defaults(directory: Path) -> SamplingDefaults:
    """What ``generation_config.json`` recommends; plain sampling where it says nothing usable."""
    path = directory / "generation_config.json"
    raw = read_json(path) if path.exists() else {}
    recommended = {
        name: raw[name] for name in SamplingDefaults.__struct_fields__ if raw.get(name) is not None
    }
    try:
        defaults = msgspec.convert(recommended, SamplingDefaults)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} has a value that cannot be used: {error}.") from None
    if not _is_in_range(defaults):
        raise ConfigError(f"{path} recommends a sampling value that is out of range.")
    return defaults


def _is_in_range(defaults: SamplingDefaults) -> bool:
    """The ranges that the gateway holds requests to. A NaN is in none."""
    return (
        0 <= defaults.temperature <= 2
        and 0 < defaults.top_p <= 1
        and defaults.top_k >= -1
        and 0 <= defaults.min_p <= 1
        and 0.01 <= defaults.repetition_penalty <= 2
    )


def read_model_config(directory: Path) -> ModelConfig:
    """Read ``config.json`` and, for the tokens that end a text, ``generation_config.json``."""
    path = directory / "config.json"
    if not path.exists():
        raise ConfigError(f"{directory} has no config.json; name a Hugging Face directory or a .gguf file.")
    generation = directory / "generation_config.json"
    return parse_model_config(read_json(path), read_json(generation) if generation.exists() else {}, path)


def parse_model_config(raw: Mapping[str, Any], generation: Mapping[str, Any], path: Path) -> ModelConfig:
    """Check and convert. ``path`` is for messages only."""
    architecture = _check_supported(raw, path)
    try:
        config = _convert(raw, generation, architecture, path)
    except KeyError as error:
        raise ConfigError(f"{path} lacks {error.args[0]}.") from None
    except (TypeError, OverflowError) as error:
        raise ConfigError(f"{path} has a value that cannot be used: {error}.") from None
    check_sizes(config, path)
    return config


def _convert(
    raw: Mapping[str, Any], generation: Mapping[str, Any], architecture: str, path: Path
) -> ModelConfig:
    """Raises KeyError for what is missing and TypeError for what is of the wrong type."""
    num_heads = _integer(raw, "num_attention_heads")
    vocab_size = _integer(raw, "vocab_size")
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=_integer(raw, "hidden_size"),
        intermediate_size=_integer(raw, "intermediate_size"),
        num_layers=_integer(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_integer(raw, "num_key_value_heads", num_heads),
        head_dim=_head_dim(raw, num_heads, path),
        max_position_embeddings=_integer(raw, "max_position_embeddings", 2048),
        rms_norm_eps=_number(raw, "rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(raw),
        rope_scaling=_rope_scaling(raw, path),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        sliding_window=_sliding_window(raw, architecture),
        bos_token_id=None if raw.get("bos_token_id") is None else _integer(raw, "bos_token_id"),
        eos_token_ids=usable_token_ids([*_token_ids(raw), *_token_ids(generation)], vocab_size),
    )


def _integer(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number. One that is missing or null is ``default``, and a KeyError if there is none."""
    value = raw.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        raise KeyError(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is not a whole number")
    return value


def _number(raw: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """The same for any number."""
    value = raw.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        raise KeyError(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} is not a number")
    return float(value)


def _head_dim(raw: Mapping[str, Any], num_heads: int, path: Path) -> int:
    if raw.get("head_dim") is not None:
        return _integer(raw, "head_dim")
    hidden_size = _integer(raw, "hidden_size")
    if num_heads > 0 and hidden_size % num_heads:
        raise ConfigError(f"{path} divides a hidden size of {hidden_size} among {num_heads} attention heads.")
    return hidden_size // max(num_heads, 1)


def _check_supported(raw: Mapping[str, Any], path: Path) -> str:
    names = raw.get("architectures") or [raw.get("model_type", "unknown")]
    architecture = str(names[0]) if isinstance(names, list) else str(names)
    if architecture == "unknown":
        raise ConfigError(f"{path} names no architecture, so it is not clear what model this is.")
    if architecture not in SUPPORTED:
        raise ConfigError(f"{path} describes a {architecture}; supported are {', '.join(SUPPORTED)}.")
    if raw.get("quantization_config"):
        raise ConfigError(f"{path} describes quantized weights, which are not supported; use the full ones.")
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"{path} asks for the activation {activation}; only silu is supported.")
    return architecture


def _rope_settings(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(settings, Mapping):
        raise TypeError("the RoPE settings are not an object")
    return settings


def _rope_theta(raw: Mapping[str, Any]) -> float:
    return _number(raw, "rope_theta", _number(_rope_settings(raw), "rope_theta", 10000.0))


def _rope_scaling(raw: Mapping[str, Any], path: Path) -> RopeScaling:
    settings = _rope_settings(raw)
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if settings.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(f"{path} asks for a partial rotary embedding, which is not supported.")
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling(kind="linear", factor=_number(settings, "factor"))
    if kind != "llama3":
        raise ConfigError(
            f"{path} asks for the RoPE scaling {kind}; default, linear and llama3 are supported."
        )
    return RopeScaling(
        kind="llama3",
        factor=_number(settings, "factor"),
        low_freq_factor=_number(settings, "low_freq_factor"),
        high_freq_factor=_number(settings, "high_freq_factor"),
        original_max_position_embeddings=_integer(settings, "original_max_position_embeddings"),
    )


def _sliding_window(raw: Mapping[str, Any], architecture: str) -> int | None:
    """Only Mistral has one, and a null is its way to say none; Llama leaves the entry unread."""
    if architecture != "MistralForCausalLM" or raw.get("sliding_window", _MISTRAL_WINDOW) is None:
        return None
    return _integer(raw, "sliding_window", _MISTRAL_WINDOW)


def _token_ids(raw: Mapping[str, Any]) -> list[int]:
    value = raw.get("eos_token_id")
    values = value if isinstance(value, list) else [] if value is None else [value]
    return [_integer({"eos_token_id": item}, "eos_token_id") for item in values]
