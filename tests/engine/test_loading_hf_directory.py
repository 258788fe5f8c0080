"""Hugging Face directories: what is broken or missing in one is said in a plain sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import ConfigError
from engine.loading.checkpoint import open_checkpoint
from engine.loading.hf_directory import DummyWeights
from engine.loading.weights import load_weights
from engine.models.layers import TorchOps
from tests.support.tiny_models import CPU, make_model

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_model().save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    make_model().save_pretrained(tmp_path, max_shard_size="60KB")
    return tmp_path


def load(path: Path, load_format: str = "auto", seed: int = 0) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(str(path), load_format, seed)
    ops = TorchOps(torch.float32)
    weights = load_weights(checkpoint.config, checkpoint.tensors, ops, CPU, lambda *_: None)
    return {str(index): tensor for index, tensor in enumerate(weights.tensors())}


def refusal(path: Path, load_format: str = "auto") -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, load_format)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message
    return message


def rewrite(change: Callable[[dict[str, torch.Tensor]], object], path: Path) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_sound_directories_load(directory: Path) -> None:
    assert len(load(directory)) > 10


def test_no_weights(directory: Path) -> None:
    (directory / SINGLE).rename(directory / "pytorch_model.bin")
    assert "no safetensors weights" in refusal(directory)


def test_a_missing_shard(sharded: Path) -> None:
    victim = sorted(sharded.glob("model-*.safetensors"))[1]
    victim.unlink()
    assert f"lacks the weight file {victim.name}" in refusal(sharded)


@pytest.mark.parametrize(
    "index",
    ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": [1]}', '{"weight_map": {"a": ["b"]}}',
     '{"weight_map": {"a": 3}}', '{"weight_map": {"a": null}}'],
)  # fmt: skip
def test_a_broken_index(sharded: Path, index: str) -> None:
    (sharded / INDEX).write_text(index)
    assert str(sharded) in refusal(sharded)


def test_an_index_that_names_a_tensor_which_its_shard_lacks(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    name = next(name for name, file in index["weight_map"].items() if file == files[0])
    index["weight_map"][name] = files[1]
    (sharded / INDEX).write_text(json.dumps(index))
    message = refusal(sharded)
    assert name in message and files[1] in message


def test_a_missing_tensor(directory: Path) -> None:
    rewrite(lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"), directory / SINGLE)
    assert "model.layers.1.mlp.up_proj.weight" in refusal(directory)


def test_an_unknown_tensor(directory: Path) -> None:
    rewrite(lambda tensors: tensors.update({"model.layers.0.extra": torch.ones(1)}), directory / SINGLE)
    assert "model.layers.0.extra" in refusal(directory)


def test_old_rotary_buffers_are_no_matter(directory: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(lambda tensors: tensors.update({name: torch.ones(8)}), directory / SINGLE)
    load(directory)


@pytest.mark.parametrize("shape", [(96, 65), (64, 96), (96,), (96, 64, 1), (1, 64)], ids=str)
def test_a_misshapen_tensor(directory: Path, shape: tuple[int, ...]) -> None:
    name = "model.layers.0.mlp.gate_proj.weight"
    rewrite(lambda tensors: tensors.update({name: torch.ones(shape)}), directory / SINGLE)
    message = refusal(directory)
    assert name in message and str(shape) in message and "(96, 64)" in message


def test_integer_weights(directory: Path) -> None:
    name = "model.norm.weight"
    rewrite(lambda tensors: tensors.update({name: torch.ones(64, dtype=torch.int8)}), directory / SINGLE)
    assert "int8" in refusal(directory)


@pytest.mark.parametrize("kept", [0, 4, 100, 5000, -1])
def test_a_truncated_file(directory: Path, kept: int) -> None:
    content = (directory / SINGLE).read_bytes()
    (directory / SINGLE).write_bytes(content[:kept])
    assert SINGLE in refusal(directory)


def test_a_file_of_something_else(directory: Path) -> None:
    (directory / SINGLE).write_text("version https://git-lfs.github.com/spec/v1\n" * 3)
    assert SINGLE in refusal(directory)
    (directory / SINGLE).unlink()
    (directory / SINGLE).mkdir()
    assert SINGLE in refusal(directory)


# ---- dummy weights ---------------------------------------------------------------------------------


def test_dummy_weights_need_a_config_and_follow_the_seed(directory: Path) -> None:
    (directory / SINGLE).unlink()
    first, again, other = (load(directory, "dummy", seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["0"], other["0"])
    assert 0.015 < float(first["0"].std()) < 0.025


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**31, 2**32, 2**63, 2**64])
def test_any_seed_will_do(directory: Path, seed: int) -> None:
    config = open_checkpoint(str(directory), "dummy", 0).config
    name = "model.embed_tokens.weight"
    tensor = DummyWeights(config, seed).load(name)
    assert not torch.equal(tensor, DummyWeights(config, 0).load(name))


def test_dummy_tensors_differ_from_each_other_and_norms_are_one(directory: Path) -> None:
    weights = DummyWeights(open_checkpoint(str(directory), "dummy", 0).config, 0)
    prefix = "model.layers.{}.self_attn.q_proj.weight"
    assert not torch.equal(weights.load(prefix.format(0)), weights.load(prefix.format(1)))
    assert weights.load("model.norm.weight").tolist() == [1.0] * 64
    assert weights.size_bytes("model.norm.weight") == 256
