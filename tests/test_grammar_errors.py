"""What is said of a bad grammar is plain, and never an echo of it."""

from __future__ import annotations

import pytest

from engine.grammar_errors import IMPOSSIBLE, TOO_LARGE, explain


@pytest.mark.parametrize(
    ("kind", "message", "sentence"),
    [
        (
            "json_schema",
            'Unimplemented keys: ["uniqueItems", "if"]',
            "The JSON schema uses keywords that are not supported: uniqueItems, if.",
        ),
        ("json_schema", "Invalid type: secret", "The JSON schema has a 'type' that does not exist."),
        ("json_schema", "recursion limit exceeded at line 1", "The JSON schema is nested too deeply."),
        ("json_schema", "Unsatisfiable schema: schema is false", IMPOSSIBLE),
        ("json_schema", "schema too large", TOO_LARGE),
        ("regex", "lexer error: too many states: 5 >= 5", TOO_LARGE),
        (
            "regex",
            'at 1(8): invalid regex "(secret" (in regex): regex parse error:\n    (\nerror: unclosed group',
            "The regular expression cannot be read: unclosed group.",
        ),
        (
            "lark",
            'at 3(8): unknown name: "secret"',
            "The grammar is not valid, or not supported (line 3, column 8).",
        ),
        ("lark", "secret", "The grammar is not valid, or not supported."),
    ],
)  # fmt: skip
def test_explanations(kind: str, message: str, sentence: str) -> None:
    assert explain(kind, message) == sentence


def test_no_echo_of_keywords_that_are_none() -> None:
    said = explain("json_schema", 'Unimplemented keys: ["<script>", "' + "a" * 5000 + '", "not"]')
    assert said == "The JSON schema uses keywords that are not supported: not."
