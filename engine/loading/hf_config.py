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
from engine.messages import SamplingDefaults

SUPPORTED = ("LlamaForCausalLM", "MistralForCausalLM")
_MISTRAL_WINDOW = 4096


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ConfigError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
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
        return msgspec.convert(recommended, SamplingDefaults)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} has a value of the wrong type: {error}.") from None


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
        num_heads = int(raw["num_attention_heads"])
        hidden_size = int(raw["hidden_size"])
        return ModelConfig(
            architecture=architecture,
            vocab_size=int(raw["vocab_size"]),
            hidden_size=hidden_size,
            intermediate_size=int(raw["intermediate_size"]),
            num_layers=int(raw["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
            head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
            max_position_embeddings=int(raw.get("max_position_embeddings") or 2048),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=_rope_theta(raw),
            rope_scaling=_rope_scaling(raw, path),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            attention_bias=bool(raw.get("attention_bias", False)),
            mlp_bias=bool(raw.get("mlp_bias", False)),
            sliding_window=_sliding_window(raw, architecture),
            bos_token_id=raw.get("bos_token_id"),
            eos_token_ids=tuple(dict.fromkeys([*_token_ids(raw), *_token_ids(generation)])),
        )
    except KeyError as error:
        raise ConfigError(f"{path} lacks {error.args[0]}.") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path} has a value of the wrong type: {error}.") from None


def _check_supported(raw: Mapping[str, Any], path: Path) -> str:
    names = raw.get("architectures") or [raw.get("model_type", "unknown")]
    architecture = str(names[0]) if isinstance(names, list) else str(names)
    if architecture not in SUPPORTED:
        raise ConfigError(f"{path} describes a {architecture}; supported are {', '.join(SUPPORTED)}.")
    if raw.get("quantization_config"):
        raise ConfigError(f"{path} describes quantized weights, which are not supported; use the full ones.")
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"{path} asks for the activation {activation}; only silu is supported.")
    return architecture


def _rope_settings(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _rope_theta(raw: Mapping[str, Any]) -> float:
    return float(raw.get("rope_theta") or _rope_settings(raw).get("rope_theta") or 10000.0)


def _rope_scaling(raw: Mapping[str, Any], path: Path) -> RopeScaling:
    settings = _rope_settings(raw)
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling(kind="linear", factor=float(settings["factor"]))
    if kind != "llama3":
        raise ConfigError(
            f"{path} asks for the RoPE scaling {kind}; default, linear and llama3 are supported."
        )
    return RopeScaling(
        kind="llama3",
        factor=float(settings["factor"]),
        low_freq_factor=float(settings["low_freq_factor"]),
        high_freq_factor=float(settings["high_freq_factor"]),
        original_max_position_embeddings=int(settings["original_max_position_embeddings"]),
    )


def _sliding_window(raw: Mapping[str, Any], architecture: str) -> int | None:
    default = _MISTRAL_WINDOW if architecture == "MistralForCausalLM" else None
    window = raw.get("sliding_window", default)
    return None if window is None else int(window)


def _token_ids(raw: Mapping[str, Any]) -> list[int]:
    value = raw.get("eos_token_id")
    if value is None:
        return []
    return [int(item) for item in value] if isinstance(value, list) else [int(value)]
