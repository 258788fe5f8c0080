"""Stop strings: same cut for every split, nothing of one ever shown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stop_matcher import StopMatcher

TEXT = st.text(alphabet="abc", max_size=24)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=6), min_size=1, max_size=4)


def run(stops: Sequence[str], parts: Sequence[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown = [matcher.push(part) for part in parts]
    shown.append(matcher.flush())
    return shown, matcher.matched


def reference(stops: Sequence[str], text: str) -> tuple[str, str | None]:
    """The match that completes first, the longest of those; by trying every end."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.case("A1")
@pytest.mark.case("A2")
@pytest.mark.parametrize(
    ("stops", "parts", "shown"),
    [
        (["DEFGHIJ"], ["DEF", "G", "HI", "J"], ""),
        (["DE"], ["abDEF"], "ab"),
        (["DE"], ["abD", "x"], "abDx"),
        (["aab"], ["aaa", "b"], "a"),
        (["abcd", "bc"], ["abcd"], "a"),
        (["abc", "bc"], ["xabc"], "x"),
        (["ab"], ["a"], "a"),
        (["\n\n"], ["line\n", "\nmore"], "line"),
        (["漢字"], ["x漢", "字y"], "x"),
        (["ab"], ["", "", "a", "", "b"], ""),
    ],
)
def test_examples(stops: list[str], parts: list[str], shown: str) -> None:
    assert "".join(run(stops, parts)[0]) == shown


@pytest.mark.case("A1")
@pytest.mark.case("A2")
@pytest.mark.case("A3")
@given(STOPS, TEXT, st.data())
def test_every_split_gives_the_reference(stops: list[str], text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    parts = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    shown, matched = run(stops, parts)
    assert ("".join(shown), matched) == reference(stops, text)


@pytest.mark.case("A1")
@given(STOPS, TEXT)
def test_only_a_possible_beginning_is_held_back(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(char) for char in text)
    if matcher.matched is None:
        held = matcher.flush()
        assert shown + held == text
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(["b"])
    assert matcher.push("ab") == "a"
    assert matcher.push("more") == ""
    assert matcher.flush() == ""


@pytest.mark.case("C7")
def test_the_cost_does_not_depend_on_the_length_of_the_stop_string() -> None:
    """A stop string that almost matches everywhere is the worst case of a naive search."""
    stop = "a" * 1000 + "b"
    matcher = StopMatcher([stop] * 4)
    shown = sum(len(matcher.push("a" * 10)) for _ in range(2000))
    assert shown == 20_000 - 1000


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3))
def test_with_the_match_kept_the_text_ends_behind_it(text: str, stops: list[str]) -> None:
    without, within = StopMatcher(stops), StopMatcher(stops, keeps_match=True)
    cut = "".join(map(without.push, text)) + without.flush()
    kept = "".join(map(within.push, text)) + within.flush()
    assert within.matched == without.matched
    assert kept == cut + (without.matched or "")
