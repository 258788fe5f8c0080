"""Answers read apart: thoughts, calls and text, with log probabilities that stay with the text."""

from __future__ import annotations

import itertools
import json
from functools import partial
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.messages import TokenLogprobs
from gateway.answer import AnswerText, CallPiece, Piece
from gateway.detokenizer import build_token_table
from gateway.openai.answers import join
from gateway.reading import AnswerReader, Calls, Reading, Thoughts
from gateway.thoughts import FAMILIES
from gateway.tools.hermes import HermesParser
from tests.support.tiny_tokenizers import byte_level

TABLE = build_token_table(json.loads(byte_level().to_str()))
LOGPROBS = TokenLogprobs(-0.5)
CALL = '<tool_call>{"name":"f","arguments":{"x":"é"}}</tool_call>'


def reading(*, at_most_one: bool = False, are_shown: bool = True) -> Reading:
    numbers = itertools.count()
    calls = Calls(partial(HermesParser, {"f"}), lambda: f"id{next(numbers)}", at_most_one=at_most_one)
    return Reading(TABLE, Thoughts(FAMILIES["qwen3"], False, are_shown), calls)


def read(ids: list[int], cuts: list[int], how: Reading, logprobs: bool = False) -> list[Piece]:
    answer, reader = AnswerText(TABLE), AnswerReader(how)
    pieces = []
    for start, end in pairwise([0, *cuts, len(ids)]):
        for token_id in ids[start:end]:
            answer.push(token_id, LOGPROBS if logprobs else None)
        pieces.append(reader.read(answer.take()))
    return [*pieces, reader.read(answer.finish()), reader.finish()]


def test_an_answer_with_everything_in_it() -> None:
    text = f"<think>\nhm\n</think>\n\nWell:\n{CALL}\n{CALL}"
    piece = join(read(list(text.encode()), [], reading()))
    calls = (CallPiece(0, '{"x":"é"}', "f", "id0", 5), CallPiece(1, '{"x":"é"}', "f", "id1", 5))
    assert piece == Piece("Well:", (), "hm", calls)


def test_thoughts_are_hidden_on_request() -> None:
    assert join(read(list(b"<think>a</think>b"), [], reading(are_shown=False))) == Piece("b")


def test_a_second_call_that_is_not_wanted_ends_the_answer() -> None:
    reader = AnswerReader(reading(at_most_one=True))
    piece = reader.read(Piece(f"{CALL}\n{CALL} and more"))
    assert [call.index for call in piece.calls] == [0, 0]
    assert reader.is_done
    assert not reader.finish()


def test_calls_know_what_was_said_before_them() -> None:
    """However much of the answer comes at once."""
    text = f"Well:{CALL}And:{CALL}Done."
    for cuts in ([], list(range(1, len(text.encode())))):
        pieces = read(list(text.encode()), cuts, reading())
        said, found = "", list[tuple[int, str]]()
        for piece in pieces:
            found += [(call.index, said + piece.text[: call.text_before]) for call in piece.calls]
            said += piece.text
        assert set(found) == {(0, "Well:"), (1, "Well:And:")}
        assert said == "Well:And:Done."
        assert [call.text_before for call in join(pieces).calls] == [5, 9]


FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name":"f","arguments":', '{"x":1}', "}", " ",
    "\n",
    "a", "é", "漢", "<to", CALL,
]  # fmt: skip
IDS = st.lists(
    st.sampled_from([list(part.encode()) for part in FRAGMENTS] + [[256], [262], [265], [0xFF]]), max_size=8
)


@given(IDS, st.data())
def test_portions_and_logprobs_change_nothing(parts: list[list[int]], data: st.DataObject) -> None:
    ids = [token_id for part in parts for token_id in part]
    whole = join(read(ids, [], reading()))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)))))
    assert join(read(ids, cuts, reading())) == whole
    with_logprobs = read(ids, cuts, reading(), logprobs=True)
    joined = join(with_logprobs)
    assert (joined.text, joined.thought, joined.calls) == (whole.text, whole.thought, whole.calls)
    for piece in with_logprobs:
        assert "".join(entry.text for entry in piece.entries) == piece.text
        raw = b"".join(entry.raw for entry in piece.entries)
        assert raw.decode("utf-8", errors="replace") == piece.text


def test_a_token_across_the_end_of_a_thought_is_cut() -> None:
    spec = json.loads(byte_level().to_str())
    spec["added_tokens"].append({"id": 300, "content": "k>Hi", "special": False})
    table = build_token_table(spec)
    answer, reader = AnswerText(table), AnswerReader(Reading(table, Thoughts(FAMILIES["qwen3"], True)))
    for token_id in [*b"x</thin", 300]:
        answer.push(token_id, LOGPROBS)
    piece = reader.read(answer.take())
    assert (piece.thought, piece.text) == ("x", "Hi")
    assert [(entry.token_id, entry.text, entry.raw) for entry in piece.entries] == [(300, "Hi", b"Hi")]


def test_a_special_token_in_the_text_keeps_its_place() -> None:
    piece = join(read([97, 265, 98], [], reading(), logprobs=True))
    assert [(entry.token_id, entry.text) for entry in piece.entries] == [(97, "a"), (265, ""), (98, "b")]


def test_marks_that_are_special_tokens_are_shown() -> None:
    shown = TABLE.showing(["<|im_start|>"])
    assert shown.piece(265) == b"<|im_start|>"
    assert TABLE.piece(265) == b""
    assert 265 not in shown.skipped
    assert shown.skipped == {266: "<|im_end|>"}
    assert TABLE.showing(["<nothing>"]) is TABLE
