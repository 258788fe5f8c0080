"""Ids to text for both families."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.detokenizer import (
    Detokenizer,
    TokenTable,
    UnsupportedTokenizerError,
    build_token_table,
    printable,
)
from tests.support.tiny_tokenizers import byte_level, sentence_pieces

FAMILIES = {"byte_level": byte_level(), "sentence_pieces": sentence_pieces()}
TABLES = {name: build_token_table(json.loads(t.to_str())) for name, t in FAMILIES.items()}
family = pytest.mark.parametrize("name", FAMILIES)


def decode(table: TokenTable, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(table)
    return [detokenizer.push(token_id) for token_id in ids]


@pytest.mark.case("A5")
@family
@given(text=st.text(max_size=30))
def test_deltas_join_to_what_was_encoded(name: str, text: str) -> None:
    tokenizer = FAMILIES[name]
    for added in TABLES[name].skipped.values():
        text = text.replace(added, "")
    text = text.replace("\u2581", "")  # SentencePiece cannot tell it from a space
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    deltas = decode(TABLES[name], ids)
    lead = " " if name == "sentence_pieces" and text else ""
    assert "".join(deltas) == lead + text
    for delta in deltas:
        delta.encode("utf-8")


@family
@given(data=st.data())
def test_any_ids_join_to_the_decode_of_their_bytes(name: str, data: st.DataObject) -> None:
    table = TABLES[name]
    ids = data.draw(st.lists(st.integers(0, len(table.pieces) + 3), max_size=20))
    raw = b"".join(table.piece(token_id) for token_id in ids)
    detokenizer = Detokenizer(table)
    text = "".join(detokenizer.push(token_id) for token_id in ids)
    tail = detokenizer.num_pending_bytes
    assert text == raw[: len(raw) - tail].decode("utf-8", errors="replace")
    assert tail < 4


@given(st.lists(st.sampled_from([*range(256), 256, 257, 258, 262, 263, 264, 267]), max_size=12))
def test_byte_level_agrees_with_the_library(ids: list[int]) -> None:
    table, tokenizer = TABLES["byte_level"], FAMILIES["byte_level"]
    detokenizer = Detokenizer(table)
    text = "".join(detokenizer.push(token_id) for token_id in ids)
    tail = "\ufffd" if detokenizer.num_pending_bytes else ""  # we drop what the library replaces
    assert text + tail == tokenizer.decode(ids)


@pytest.mark.case("A5")
def test_characters_split_over_tokens_are_held() -> None:
    assert decode(TABLES["byte_level"], list("😀é".encode())) == ["", "", "", "😀", "", "é"]


@pytest.mark.case("A8")
def test_bytes_that_are_never_utf8_are_replaced() -> None:
    assert "".join(decode(TABLES["byte_level"], [0xFF, ord("a"), 0xC3, ord("b"), 0xF0, 0x9F, ord("c")])) == (
        "\ufffda\ufffdb\ufffdc"
    )


@pytest.mark.case("A6")
def test_an_incomplete_tail_is_never_shown() -> None:
    assert decode(TABLES["byte_level"], [ord("a"), 0xF0, 0x9F]) == ["a", "", ""]


def test_special_tokens_are_skipped_and_other_added_tokens_shown() -> None:
    table = TABLES["byte_level"]
    ids = FAMILIES["byte_level"].encode("<|im_start|>a<tool><|im_end|>").ids
    assert "".join(decode(table, ids)) == "a<tool>"
    assert table.label(ids[0]) == ("<|im_start|>", b"<|im_start|>")


def test_ids_past_the_table_are_silent() -> None:
    table = TABLES["byte_level"]
    assert table.piece(10**6) == b""
    assert table.piece(-1) == b""


def test_a_metaspace_decoder_is_of_the_sentencepiece_family() -> None:
    spec = {
        "model": {"vocab": [["\u2581a", -1.0], ["b", -2.0]]},
        "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
    }
    table = build_token_table(spec)
    assert table.pieces == (b" a", b"b")


def test_a_byte_level_decoder_inside_a_sequence() -> None:
    spec = json.loads(byte_level().to_str())
    spec["decoder"] = {"type": "Sequence", "decoders": [spec["decoder"], {"type": "Fuse"}]}
    assert build_token_table(spec).pieces == TABLES["byte_level"].pieces


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece"},
        {"type": "CTC"},
        {"type": "Fuse"},
        {"type": "Sequence", "decoders": []},
        {"type": "Replace", "pattern": {"Regex": "x"}, "content": " "},
        {"type": "Replace", "pattern": {"String": "x"}, "content": "y"},
    ],
)
def test_an_unknown_decoder_is_refused_in_one_sentence(decoder: Any) -> None:
    with pytest.raises(UnsupportedTokenizerError, match=r"\.$"):
        build_token_table({"model": {"vocab": {"a": 0}}, "decoder": decoder})


def test_a_tokenizer_without_a_vocabulary_is_refused() -> None:
    with pytest.raises(UnsupportedTokenizerError, match="vocabulary"):
        build_token_table({"model": {}, "decoder": {"type": "ByteLevel"}})


def test_printable_shows_parts_of_characters_as_escapes() -> None:
    assert printable(b" \xe2\x80") == " \\xe2\\x80"
    assert printable("é".encode()) == "é"


def test_the_library_object_is_what_we_think() -> None:
    assert isinstance(FAMILIES["byte_level"], Tokenizer)
    assert TABLES["byte_level"].longest_piece == len(" world")
