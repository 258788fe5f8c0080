"""Python's literals as values of JSON: right ones as Python reads them, others refused."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.python_values import NoLiteralError, keyword_arguments

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["a", "b", "c_1"]), VALUES, max_size=3))
def test_what_python_writes_is_read_as_python_reads_it(values: dict[str, object]) -> None:
    text = "(" + ", ".join(f"{name}={value!r}" for name, value in values.items()) + ")"
    assert keyword_arguments(text) == values


@pytest.mark.parametrize(
    "literal",
    [r"'a\'b'", r'"\n\x41\u00e9\101"', r"'\d'", "'a' 'b'", "(1, 2)", "(1)", "(1,)", "[1, 2]", "{'a': 1,}",
     "()", "-1", "+1.5e3", ".5", r"'\\'", "{}"],
)  # fmt: skip
def test_literals_of_python(literal: str) -> None:
    try:
        expected = ast.literal_eval(literal)
    except SyntaxError:  # a warning made an error: an escape that Python does not know
        expected = literal[1:-1]
    expected = list(expected) if isinstance(expected, tuple) else expected
    assert keyword_arguments(f"(x={literal})") == {"x": expected}


def test_constants_of_json_are_taken_too() -> None:
    assert keyword_arguments("(a=true, b=false, c=null)") == {"a": True, "b": False, "c": None}


@pytest.mark.parametrize(
    "text",
    ["(1)", "(a)", "(a=b)", "(a=f())", "(a=1 b=2)", "(a=[1)", "(a={1: 2})", "(a=1", "(**x)", "(a='x",
     "a=1", "",
     "(a=1)x", "(a=" + "[" * 500, "(a=" + "9" * 5000 + ")", r"(a='\ud800')", r"(a='\U00110000')",
     "(a=1+2)", "(a=1e999)"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(NoLiteralError):
        keyword_arguments(text)
