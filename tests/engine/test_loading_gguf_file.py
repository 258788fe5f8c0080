"""GGUF files: the built-in one, ones written from a known model, and broken ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from engine.config import ConfigError, RopeScaling
from engine.loading.checkpoint import Checkpoint, open_checkpoint
from engine.loading.gguf_file import hugging_face_name
from engine.loading.weights import load_weights
from engine.models.layers import TorchOps
from tests.support.gguf_files import Metadata, Tensors, gguf_parts, write_gguf
from tests.support.tiny_models import CPU, load, make_model, oracle_logits, random_tokens

TOKENS = random_tokens(60)
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_parameters": LLAMA3},
        {"tie_word_embeddings": True, "num_key_value_heads": 4},
        {"head_dim": 24, "num_key_value_heads": 1},
        {"attention_bias": True, "mlp_bias": True},
    ],
    ids=["plain", "rope factors", "tied", "head_dim", "biases"],
)
def test_a_file_gives_the_logits_of_the_model_it_came_from(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    oracle = make_model(**changes)
    path = write_gguf(tmp_path / "tiny.gguf", *gguf_parts(oracle))
    ours = load(path)
    assert (ours.config.rope_scaling.kind == "factors") == ("rope_parameters" in changes)
    torch.testing.assert_close(ours.logits(TOKENS), oracle_logits(oracle, TOKENS), rtol=1e-4, atol=1e-4)


def test_linear_rope_scaling(tmp_path: Path) -> None:
    oracle = make_model(rope_parameters=LINEAR)
    metadata, tensors = gguf_parts(oracle)
    metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    ours = load(write_gguf(tmp_path / "tiny.gguf", metadata, tensors))
    torch.testing.assert_close(ours.logits(TOKENS), oracle_logits(oracle, TOKENS), rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def built_in() -> Checkpoint:
    return open_checkpoint("", "auto", 0)


def test_what_the_built_in_file_says(built_in: Checkpoint) -> None:
    checkpoint = built_in
    config = checkpoint.config
    assert checkpoint.is_gguf
    assert checkpoint.name == "SmolLM2-135M-Instruct"
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (49152, 576, 1536)
    assert (config.max_position_embeddings, config.rope_theta) == (8192, 100000.0)
    assert config.rope_scaling == RopeScaling()
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert config.tie_word_embeddings and not config.attention_bias and not config.mlp_bias
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))


def test_quantized_tensors_are_decoded_to_float32(built_in: Checkpoint) -> None:
    tensors = built_in.tensors
    name = "model.layers.0.self_attn.q_proj.weight"
    weight = tensors.load(name)
    assert weight.dtype is torch.float32
    assert weight.shape == (576, 576)
    assert tensors.size_bytes(name) < weight.nbytes / 2


def test_names() -> None:
    assert hugging_face_name("blk.12.attn_q.weight") == "model.layers.12.self_attn.q_proj.weight"
    assert hugging_face_name("blk.0.ffn_down.bias") == "model.layers.0.mlp.down_proj.bias"
    assert hugging_face_name("output.weight") == "lm_head.weight"
    for unknown in ("blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "blk.0.attn_q"):
        assert hugging_face_name(unknown) == unknown


# ---- refusals --------------------------------------------------------------------------------------


def load_whole(path: Path) -> Checkpoint:
    checkpoint = open_checkpoint(str(path), "auto", 0)
    load_weights(checkpoint.config, checkpoint.tensors, TorchOps(torch.float32), CPU, lambda *_: None)
    return checkpoint


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_whole(path)
    message = str(caught.value)
    assert message.endswith(".") and not message.endswith("..") and "\n" not in message
    return message


@pytest.fixture(scope="module")
def parts() -> tuple[Metadata, Tensors]:
    return gguf_parts(make_model())


Parts = tuple[Metadata, Tensors]


def without(key: str) -> Callable[[Metadata, Tensors], object]:
    return lambda metadata, tensors: (metadata if key in metadata else tensors).pop(key)


def with_metadata(**values: object) -> Callable[[Metadata, Tensors], object]:
    return lambda metadata, _: metadata.update(
        {f"llama.{k.replace('__', '.')}": v for k, v in values.items()}
    )


def with_tensor(name: str, *shape: int) -> Callable[[Metadata, Tensors], object]:
    return lambda _, tensors: tensors.update({name: np.ones(shape, np.float32)})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (without("llama.block_count"), "llama.block_count"),
        (without("llama.embedding_length"), "llama.embedding_length"),
        (without("token_embd.weight"), "token embeddings"),
        (without("blk.1.ffn_up.weight"), "model.layers.1.mlp.up_proj.weight"),
        (without("output_norm.weight"), "model.norm.weight"),
        (with_metadata(block_count=0), "layers"),
        (with_metadata(block_count="two"), "metadata"),
        (with_metadata(block_count=3), "model.layers.2"),
        (with_metadata(attention__head_count=0), "head"),
        (with_metadata(attention__head_count=[4, 4]), "metadata"),
        (with_metadata(attention__head_count_kv=3), "3 key-value heads"),
        (
            with_metadata(attention__key_length=15, rope__dimension_count=15, attention__value_length=15),
            "even",
        ),
        (with_metadata(attention__value_length=8), "value_length"),
        (with_metadata(rope__dimension_count=8), "dimension_count"),
        (with_metadata(rope__freq_base=0.0), "RoPE"),
        (with_metadata(rope__scaling__type="yarn"), "yarn"),
        (with_metadata(rope__scaling__type="linear"), "llama.rope.scaling.factor"),
        (with_metadata(embedding_length=128), "shape"),
        (with_tensor("rope_freqs.weight", 4), "4 RoPE factors"),
        (with_tensor("token_embd.weight", 64), "token embeddings"),
        (with_tensor("blk.0.ffn_gate_exps.weight", 2, 96, 64), "blk.0.ffn_gate_exps.weight"),
        (with_tensor("blk.0.attn_q.weight", 63, 64), "(63, 64)"),
        (with_tensor("blk.0.attn_k.weight", 64, 64), "(64, 64)"),
        (with_tensor("blk.0.attn_k.weight", 32, 2, 32), "(32, 2, 32)"),
    ],
    ids=range(24),
)
def test_what_cannot_be_is_refused_by_name(
    tmp_path: Path, parts: Parts, change: Callable[[Metadata, Tensors], object], named: str
) -> None:
    metadata, tensors = dict(parts[0]), dict(parts[1])
    change(metadata, tensors)
    assert named in refusal(write_gguf(tmp_path / "tiny.gguf", metadata, tensors))


def test_another_architecture(tmp_path: Path, parts: Parts) -> None:
    message = refusal(write_gguf(tmp_path / "tiny.gguf", *parts, architecture="qwen2"))
    assert "qwen2" in message and "llama" in message


def test_end_tokens_outside_of_the_vocabulary_are_no_end_tokens(tmp_path: Path, parts: Parts) -> None:
    metadata = {**parts[0], "tokenizer.ggml.eos_token_id": 101, "tokenizer.ggml.eot_token_id": 7}
    checkpoint = load_whole(write_gguf(tmp_path / "tiny.gguf", metadata, parts[1]))
    assert checkpoint.config.eos_token_ids == (7,)


@pytest.mark.parametrize("kept", [0, 1, 4, 20, 100, 500, 1500, 20_000, -1])
def test_a_truncated_file(tmp_path: Path, parts: Parts, kept: int) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", *parts)
    content = path.read_bytes()
    assert len(content) > 21_000
    path.write_bytes(content[: kept if kept >= 0 else len(content) - 4096])
    assert "tiny.gguf" in refusal(path)


def test_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"PK\x03\x04" * 100)
    assert "cannot be read as a GGUF file" in refusal(path)


def test_a_type_that_cannot_be_decoded(tmp_path: Path, parts: Parts) -> None:
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    for key, value in parts[0].items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
    for name, values in parts[1].items():
        if name == "blk.0.ffn_up.weight":
            writer.add_tensor(name, np.ones(values.shape, np.int8))
        else:
            writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "blk.0.ffn_up.weight" in refusal(tmp_path / "tiny.gguf")


def test_dummy_weights_for_a_file(tmp_path: Path, parts: Parts) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", *parts)
    one, two = (open_checkpoint(str(path), "dummy", seed).tensors for seed in (1, 2))
    name = "model.embed_tokens.weight"
    assert one.load(name).shape == (101, 64)
    assert not torch.equal(one.load(name), two.load(name))
