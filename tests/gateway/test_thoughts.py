"""Thoughts told from what is said, at any split; families by name and by their chat templates."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.thoughts import FAMILIES, ReasoningParserError, ThoughtMarks, ThoughtSplitter, marks_of

MARKS = FAMILIES["qwen3"]


def split(text: str, cuts: list[int], begins_inside: bool = False) -> tuple[str, str]:
    splitter = ThoughtSplitter(MARKS, begins_inside=begins_inside)
    thought = said = ""
    for start, end in pairwise([0, *cuts, len(text)]):
        part = splitter.push(text[start:end])
        thought, said = thought + part.thought, said + part.said
    last = splitter.finish()
    said += last.said
    if said:
        assert splitter.said_from is not None
        assert text[splitter.said_from :] == said
    return thought + last.thought, said


@pytest.mark.parametrize(
    ("text", "inside", "expected"),
    [
        ("<think>\nSo.\n</think>\n\nHi", False, ("So.", "Hi")),
        ("So.</think>Hi", True, ("So.", "Hi")),
        ("<think>So.</think>Hi", True, ("So.", "Hi")),
        ("<think>\n\n</think>\n\nHi", False, ("", "Hi")),
        ("<think>never done", False, ("never done", "")),
        ("never done </th", True, ("never done </th", "")),
        ("<think>", False, ("", "")),
        ("Hi <think>no</think>", False, ("", "Hi <think>no</think>")),
        ("  Hi", False, ("", "  Hi")),
        ("<thin", False, ("", "<thin")),
        ("<think>a</think>b</think><think>c", False, ("a", "b</think><think>c")),
        ("<think>a </think", False, ("a </think", "")),
        ("", True, ("", "")),
    ],
)
def test_what_is_thought_and_what_is_said(text: str, inside: bool, expected: tuple[str, str]) -> None:
    assert split(text, [], inside) == expected
    for cut in range(len(text)):
        assert split(text, [cut], inside) == expected
    assert split(text, list(range(len(text))), inside) == expected


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<th", "</th", "ink>", " ", "\n", "a", "é"]), max_size=12
    ),
    st.booleans(),
    st.data(),
)
def test_no_split_changes_it(parts: list[str], inside: bool, data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    assert split(text, cuts, inside) == split(text, [], inside)


@pytest.mark.parametrize(
    ("spec", "template", "name"),
    [
        ("auto", "{{ content.split('</think>')[-1] }}", "qwen3"), ("auto", "[THINK]x[/THINK]", "mistral"),
        ("auto", "<seed:think></seed:think>", "seed_oss"), ("auto", "{{ messages }}", None),
        ("auto", None, None),
        ("none", "</think>", None), ("deepseek_r1", "{{ messages }}", "deepseek_r1"),
    ],
)  # fmt: skip
def test_the_family_is_chosen(spec: str, template: str | None, name: str | None) -> None:
    marks = marks_of(spec, template)
    assert (marks and marks.name) == name


def test_an_unknown_family_is_refused_with_those_there_are() -> None:
    with pytest.raises(ReasoningParserError, match=r"'nobody'; there are auto, none, .*qwen3"):
        marks_of("nobody", None)


def test_whether_a_prompt_opens_a_thought() -> None:
    implied = ThoughtMarks("x", "<think>", "</think>", is_implied=True)
    assert MARKS.is_open_at_end_of("assistant\n<think>\n")
    assert not MARKS.is_open_at_end_of("<think> assistant\n")
    assert not MARKS.is_open_at_end_of("assistant\n<think>\n\n</think>\n\n")
    assert implied.is_open_at_end_of("assistant\n")
    assert not implied.is_open_at_end_of("assistant\n<think>\n\n</think>\n\n")
    assert MARKS.is_left_open_in("<think>a</think>b<think>c")
    assert not MARKS.is_left_open_in("<think>a</think>b")
