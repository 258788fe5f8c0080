"""Tokenizers: a directory's own files in place, anything else converted once into the cache."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine.config import ConfigError
from engine.loading.checkpoint import Checkpoint, find_builtin_model, open_checkpoint
from engine.loading.tokenizer import cache_root, prepare_tokenizer
from tests.support.tiny_models import make_model
from tests.support.tiny_tokenizers import byte_level, save

ROOT = Path(__file__).parent.parent.parent
PREPARE = """
import sys
from pathlib import Path
from types import SimpleNamespace
from engine.loading.tokenizer import prepare_tokenizer
files = prepare_tokenizer(SimpleNamespace(path=Path(sys.argv[1]), is_gguf=True))
print(files.directory, files.bos_token, files.eos_token, 'transformers' in sys.modules)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tidegate" / "tokenizers"


@pytest.fixture(scope="module")
def config_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model().config.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    return path


@pytest.fixture
def directory(config_only: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny"
    path.mkdir()
    (path / "config.json").write_text((config_only / "config.json").read_text())
    save(byte_level(), path)
    return path


def opened(path: Path) -> Checkpoint:
    return open_checkpoint(str(path), "dummy", 0)


def start_preparing() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PREPARE, str(find_builtin_model())]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return out.split()


def test_two_processes_convert_at_once_a_third_finds_the_result_and_a_fourth_mends_it(cache: Path) -> None:
    racing = [start_preparing(), start_preparing()]
    results = [finish(process) for process in racing]
    assert [result[1:] for result in results] == [["<|im_start|>", "<|im_end|>", "True"]] * 2
    (published,) = cache.iterdir()
    assert {result[0] for result in results} == {str(published)}
    assert {path.name for path in published.iterdir()} == {"tokenizer.json", "special.json"}
    assert "im_start" in json.loads((published / "special.json").read_text())["chat_template"]
    tokenizer = Tokenizer.from_file(str(published / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("Hello, wörld!").ids) == "Hello, wörld!"
    assert finish(start_preparing()) == [str(published), "<|im_start|>", "<|im_end|>", "False"]
    whole = (published / "tokenizer.json").read_bytes()
    (published / "tokenizer.json").write_bytes(whole[:1000])
    assert finish(start_preparing()) == [str(published), "<|im_start|>", "<|im_end|>", "True"]
    assert (published / "tokenizer.json").read_bytes() == whole


def test_a_cache_that_cannot_be_written(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    as_slow_files(directory)
    files = prepare_tokenizer(opened(directory))
    assert (files.directory / "tokenizer.json").exists()
    assert files.directory.parent == tmp_path / "temporary"
    assert (tmp_path / "file").read_text() == "in the way"


def test_the_cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", None):
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        if value is not None:
            monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_root() == tmp_path / ".cache" / "tidegate" / "tokenizers"


# ---- directories -----------------------------------------------------------------------------------


def as_slow_files(directory: Path) -> None:
    """The old spelling of a byte-level tokenizer: a vocabulary and merges, no tokenizer.json."""
    spec = json.loads((directory / "tokenizer.json").read_text())
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.json").write_text(json.dumps(spec["model"]["vocab"]))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": "!",
        "bos_token": "!",
        "eos_token": '"',
        "chat_template": [{"name": "default", "template": "chosen"}, {"name": "other", "template": "no"}],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def test_a_directory_is_used_in_place(directory: Path, cache: Path) -> None:
    files = prepare_tokenizer(opened(directory))
    assert files.directory == directory
    assert (files.chat_template, files.bos_token, files.eos_token) == (None, None, None)
    assert not cache.exists()


def test_a_directory_without_tokenizer_json_is_converted(directory: Path, cache: Path) -> None:
    as_slow_files(directory)
    files = prepare_tokenizer(opened(directory))
    assert files.directory.parent == cache
    assert (files.chat_template, files.bos_token, files.eos_token) == ("chosen", "!", '"')
    tokenizer = Tokenizer.from_file(str(files.directory / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("abc").ids) == "abc"
    assert prepare_tokenizer(opened(directory)) == files


def test_another_vocabulary_is_another_conversion(directory: Path, cache: Path) -> None:
    as_slow_files(directory)
    first = prepare_tokenizer(opened(directory))
    vocab = json.loads((directory / "vocab.json").read_text())
    (directory / "vocab.json").write_text(json.dumps({**vocab, "xyzzy": len(vocab)}))
    second = prepare_tokenizer(opened(directory))
    assert second.directory != first.directory
    vocabulary = Tokenizer.from_file(str(second.directory / "tokenizer.json")).get_vocab()
    assert "xyzzy" in vocabulary


def test_a_directory_without_any_tokenizer(directory: Path, cache: Path) -> None:
    (directory / "tokenizer.json").unlink()
    with pytest.raises(
        ConfigError, match=r"^The tokenizer of .* cannot be converted; .*tokenizer\.json\.$"
    ) as caught:
        prepare_tokenizer(opened(directory))
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == [], "a failed conversion left something behind"


TEMPLATE = "{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"chat_template": TEMPLATE}}, TEMPLATE),
        ({"tokenizer_config.json": {"chat_template": [
            {"name": "tool_use", "template": "no"}, {"name": "default", "template": TEMPLATE}]}}, TEMPLATE),
        ({"tokenizer_config.json": {"chat_template": [{"name": "tool_use", "template": "no"}]}}, None),
        ({"tokenizer_config.json": {"chat_template": [7, {}, {"name": []}]}}, None),
        ({"tokenizer_config.json": {"chat_template": 7}}, None),
        ({"tokenizer_config.json": {"chat_template": "no"}, "chat_template.jinja": TEMPLATE}, TEMPLATE),
        ({"chat_template.jinja": TEMPLATE}, TEMPLATE),
        ({"chat_template.json": {"chat_template": TEMPLATE}}, TEMPLATE),
        ({"tokenizer_config.json": {"chat_template": TEMPLATE},
          "chat_template.json": {"chat_template": "no"}}, TEMPLATE),
        ({}, None),
    ],
    ids=range(10),
)  # fmt: skip
def test_every_place_of_a_chat_template(directory: Path, files: dict[str, Any], expected: str | None) -> None:
    for name, content in files.items():
        (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))
    assert prepare_tokenizer(opened(directory)).chat_template == expected


@pytest.mark.parametrize(
    "written", ["</s>", {"content": "</s>", "lstrip": False}, None, 5, {"id": 2}], ids=str
)
def test_special_tokens_as_text_or_as_an_object(directory: Path, written: object) -> None:
    settings = {"bos_token": written, "eos_token": written}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    files = prepare_tokenizer(opened(directory))
    expected = "</s>" if "</s>" in str(written) else None
    assert (files.bos_token, files.eos_token) == (expected, expected)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.json", "chat_template.jinja"])
def test_a_broken_file_is_named(directory: Path, name: str) -> None:
    (directory / name).write_bytes(b"{\xff")
    with pytest.raises(ConfigError, match=rf"{name} cannot be read: .*\.$"):
        prepare_tokenizer(opened(directory))
