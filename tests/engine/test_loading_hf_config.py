"""config.json: both spellings of what is supported, and one plain sentence for everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import ConfigError, ModelConfig, RopeScaling
from engine.loading.hf_config import read_json, read_model_config, read_sampling_defaults
from engine.messages import SamplingDefaults

GOOD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}
MISTRAL = {"architectures": ["MistralForCausalLM"]}
LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64
}  # fmt: skip


def parse(directory: Path, generation: object = None, without: str = "", **changes: object) -> ModelConfig:
    raw = {**GOOD, **changes}
    raw.pop(without, None)
    (directory / "config.json").write_text(json.dumps(raw))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return read_model_config(directory)


def refusal(directory: Path, **changes: object) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(directory, **changes)  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and "Traceback" not in message
    assert str(directory) in message
    return message


def test_what_is_written_is_read(tmp_path: Path) -> None:
    config = parse(tmp_path, bos_token_id=1, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)
    assert config == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        bos_token_id=1,
        eos_token_ids=(2,),
    )


def test_defaults_for_what_is_left_out_or_null(tmp_path: Path) -> None:
    nulls: dict[str, object] = dict.fromkeys(
        ("num_key_value_heads", "head_dim", "rope_scaling", "rope_theta")
    )
    config = parse(tmp_path, without="max_position_embeddings", **nulls)
    assert (config.num_kv_heads, config.head_dim, config.max_position_embeddings) == (4, 16, 2048)
    assert (config.rope_theta, config.rope_scaling) == (10000.0, RopeScaling())
    assert parse(tmp_path, head_dim=24).head_dim == 24


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 500000, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    ],
    ids=str,
)
def test_both_spellings_of_the_rope_settings(tmp_path: Path, changes: dict[str, object]) -> None:
    config = parse(tmp_path, **changes)  # type: ignore[arg-type]
    assert config.rope_theta == 5e5
    assert config.rope_scaling == RopeScaling(
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )


def test_linear_and_default_rope(tmp_path: Path) -> None:
    assert parse(tmp_path, rope_scaling={"rope_type": "default"}).rope_scaling == RopeScaling()
    linear = parse(tmp_path, rope_scaling={"type": "linear", "factor": 2}).rope_scaling
    assert linear == RopeScaling(kind="linear", factor=2.0)


def test_only_mistral_has_a_window(tmp_path: Path) -> None:
    assert parse(tmp_path, sliding_window=100).sliding_window is None
    assert parse(tmp_path, **MISTRAL).sliding_window == 4096
    assert parse(tmp_path, **MISTRAL, sliding_window=None).sliding_window is None
    assert parse(tmp_path, **MISTRAL, sliding_window=100).sliding_window == 100


def test_end_tokens_come_from_both_files_and_from_the_vocabulary(tmp_path: Path) -> None:
    config = parse(tmp_path, {"eos_token_id": [7, 2, 9]}, eos_token_id=2)
    assert config.eos_token_ids == (2, 7, 9)
    assert parse(tmp_path, {}, eos_token_id=[5]).eos_token_ids == (5,)
    assert parse(tmp_path, {}, eos_token_id=None).eos_token_ids == ()
    assert parse(tmp_path, {"eos_token_id": 100}, eos_token_id=-1).eos_token_ids == ()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": "big"}, "hidden_size"),
        ({"hidden_size": [64]}, "hidden_size"),
        ({"hidden_size": 64.5}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"without": "vocab_size"}, "vocab_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"vocab_size": 0}, "vocabulary size"),
        ({"hidden_size": 0}, "hidden size"),
        ({"hidden_size": -64}, "hidden size"),
        ({"intermediate_size": -1}, "intermediate size"),
        ({"num_hidden_layers": 0}, "layers"),
        ({"num_attention_heads": 0}, "attention heads"),
        ({"num_attention_heads": -4}, "heads"),
        ({"num_key_value_heads": 0}, "key-value heads"),
        ({"num_key_value_heads": 3}, "3 key-value heads"),
        ({"num_key_value_heads": 8}, "8 key-value heads"),
        ({"num_attention_heads": 6}, "6 attention heads"),
        ({"head_dim": 0}, "head size"),
        ({"head_dim": 15}, "even"),
        ({"max_position_embeddings": 0}, "longest sequence"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
        ({"rms_norm_eps": -1.0}, "epsilon"),
        ({"rms_norm_eps": float("nan")}, "epsilon"),
        ({"rope_theta": 0}, "RoPE"),
        ({"rope_theta": float("inf")}, "RoPE"),
        ({"rope_theta": 10**400}, "too large"),
        ({"rope_scaling": "linear"}, "RoPE"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "RoPE"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "yarn"),
        ({"rope_scaling": {"type": "llama3", "factor": 8}}, "low_freq_factor"),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"bos_token_id": "<s>"}, "bos_token_id"),
        ({**MISTRAL, "sliding_window": 0}, "sliding window"),
        ({**MISTRAL, "sliding_window": "wide"}, "sliding_window"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": []}, "names no architecture"),
        ({"architectures": None, "model_type": "gpt2"}, "gpt2"),
        ({"architectures": [["LlamaForCausalLM"]]}, "supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    assert named in refusal(tmp_path, **changes)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '"text"', "[" * 100_000, "\ud83d"])
def test_a_file_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match=r"config\.json .*\.$"):
        read_json(path)


def test_a_missing_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json; .*\.$"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be read"):
        read_model_config(tmp_path)


# ---- what a publisher recommends -------------------------------------------------------------------


def recommend(directory: Path, **values: object) -> SamplingDefaults:
    (directory / "generation_config.json").write_text(json.dumps(values))
    return read_sampling_defaults(directory)


def test_recommended_sampling(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) == SamplingDefaults()
    found = recommend(
        tmp_path, temperature=0.6, top_p=0.9, top_k=40, min_p=None, do_sample=True, eos_token_id=2
    )
    assert found == SamplingDefaults(temperature=0.6, top_p=0.9, top_k=40)
    assert recommend(tmp_path, temperature=1, top_k=-1) == SamplingDefaults(temperature=1.0, top_k=-1)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": "warm"}, {"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0},
        {"top_p": 1.5}, {"top_k": 2.5}, {"top_k": -7}, {"min_p": 2.0}, {"repetition_penalty": 0.0},
    ],
    ids=str,
)  # fmt: skip
def test_a_recommendation_that_cannot_be_followed(tmp_path: Path, values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"generation_config\.json .*\.$"):
        recommend(tmp_path, **values)
