"""Text, stop strings and log probabilities in step."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import TokenLogprobs
from gateway.answer import AnswerText, Piece
from gateway.detokenizer import build_token_table
from gateway.openai.answers import join
from tests.support.tiny_tokenizers import byte_level

TABLE = build_token_table(json.loads(byte_level().to_str()))
LOGPROBS = TokenLogprobs(-0.5, ((1, -0.5),))
IDS = st.lists(st.sampled_from([97, 98, 99, 0xC3, 0xA9, 0xF0, 0x9F, 0xFF, 256, 262, 264, 265]), max_size=16)
STOPS = st.lists(
    st.sampled_from(["a", "ab", "bca", "é", "lo", "c\u00e9", "\ufffda"]), max_size=3, unique=True
)


def run(
    ids: list[int], stops: list[str], cuts: list[int], logprobs: bool, min_tokens: int = 0
) -> list[Piece]:
    """Push the ids in the given portions, taking after each."""
    answer = AnswerText(TABLE, stops, min_tokens)
    pieces = []
    for start, end in pairwise([0, *cuts, len(ids)]):
        for token_id in ids[start:end]:
            if not answer.stopped:
                answer.push(token_id, LOGPROBS if logprobs else None)
        if not answer.stopped:
            pieces.append(answer.take())
    return [*pieces, answer.finish()]


@pytest.mark.case("A3")
@given(IDS, STOPS, st.integers(0, 4), st.data())
def test_the_text_depends_on_neither_portions_nor_logprobs(
    ids: list[int], stops: list[str], min_tokens: int, data: st.DataObject
) -> None:
    whole = join(run(ids, stops, [], False, min_tokens)).text
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)))))
    for logprobs in (False, True):
        pieces = run(ids, stops, cuts, logprobs, min_tokens)
        assert join(pieces).text == whole


@pytest.mark.case("B8")
@given(IDS, STOPS, st.data())
def test_tokens_join_to_the_text_in_every_piece(
    ids: list[int], stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)))))
    for piece in run(ids, stops, cuts, True):
        assert "".join(entry.text for entry in piece.entries) == piece.text
        raw = b"".join(entry.raw for entry in piece.entries)
        assert raw.decode("utf-8", errors="replace") == piece.text


@given(IDS)
def test_without_a_stop_every_token_that_is_shown_has_one_entry(ids: list[int]) -> None:
    shown = [entry.token_id for entry in join(run(ids, [], [], True)).entries]
    assert shown == ids[: len(shown)]
    dropped = b"".join(TABLE.piece(token_id) for token_id in ids[len(shown) :])
    assert len(dropped) < 4  # an incomplete character at the end


def test_the_token_in_which_a_stop_string_begins_is_cut() -> None:
    hello = 256
    piece = join(run([hello, 33], ["lo"], [], True))
    assert piece.text == "Hel"
    assert [(entry.text, entry.raw) for entry in piece.entries] == [("Hel", b"Hel")]


@pytest.mark.case("A6")
def test_a_character_cut_by_the_end_is_dropped_with_its_tokens() -> None:
    piece = join(run([97, 0xF0, 0x9F], [], [], True))
    assert piece.text == "a"
    assert [entry.raw for entry in piece.entries] == [b"a"]


def test_text_without_logprobs_is_not_held_for_whole_tokens() -> None:
    answer = AnswerText(TABLE, ["lox"])
    answer.push(256)
    assert answer.take().text == "Hel"


def test_min_tokens_hides_early_text_from_the_stop_strings() -> None:
    ids = [97, 98, 97, 98]
    assert join(run(ids, ["ab"], [], False, 0)).text == ""
    assert join(run(ids, ["ab"], [], False, 1)).text == "ab"
    assert join(run(ids, ["ab"], [], False, 2)).text == "ab"
    assert join(run(ids, ["ab"], [], False, 3)).text == "abab"


def test_a_skipped_special_token_keeps_its_place() -> None:
    piece = join(run([97, 265, 98], [], [], True))
    assert [(entry.token_id, entry.text) for entry in piece.entries] == [(97, "a"), (265, ""), (98, "b")]


@given(IDS, STOPS, st.data())
def test_every_token_may_be_told(ids: list[int], stops: list[str], data: st.DataObject) -> None:
    """Also those of which nothing is shown, and the one that ended the sequence; not what a stop cut."""
    plain = join(run(ids, stops, [], True))
    answer = AnswerText(TABLE, stops, tells_all=True)
    cuts = data.draw(st.sets(st.integers(0, len(ids))))
    pieces = []
    for i, token_id in enumerate(ids):
        if not answer.stopped:
            pieces.append(answer.take() if i in cuts else Piece())
            answer.push(token_id, LOGPROBS)
    if not answer.stopped:
        answer.end(265, LOGPROBS)
    piece = join([*pieces, answer.finish()])
    assert piece.text == plain.text == "".join(entry.text for entry in piece.entries)
    if answer.stopped:
        assert piece.entries == plain.entries
    else:
        assert [entry.token_id for entry in piece.entries] == [*ids, 265]


def test_special_tokens_by_name() -> None:
    answer = AnswerText(TABLE, ["start"], names_special=True)
    for token_id in (97, 266, 265):
        answer.push(token_id, LOGPROBS)
    piece = answer.finish()
    assert (piece.text, answer.stopped) == ("a<|im_end|><|im_", True)
    assert [entry.raw for entry in piece.entries] == [b"a", b"<|im_end|>", b"<|im_"]
