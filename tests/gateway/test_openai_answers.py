"""Small parts that both endpoints use on the way out."""

from __future__ import annotations

from engine.messages import TokenLogprobs
from gateway.answer import Piece, TokenEntry
from gateway.openai.answers import finite, join, make_usage


def test_usage_adds_up() -> None:
    usage = make_usage(3, 4, 2)
    assert (usage.total_tokens, usage.prompt_tokens_details.cached_tokens) == (7, 2)


def test_pieces_join_in_order() -> None:
    entry = TokenEntry(1, b"a", "a", TokenLogprobs(-1.0))
    assert join([Piece("a", (entry,)), Piece(), Piece("b")]) == Piece("ab", (entry,))


def test_no_infinity_leaves() -> None:
    assert [finite(value) for value in (-1.5, float("-inf"), float("nan"))] == [-1.5, -9999.0, -9999.0]
