"""response_format and vLLM's extras: one wish, read into one grammar, or refused before it costs anything."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from engine.messages import Grammar
from gateway.errors import ApiError
from gateway.openai.ranges import MAX_FORM_CHOICES
from gateway.openai.schema_limits import MAX_DEPTH, MAX_GRAMMAR_BYTES
from gateway.openai.structured import check_structured, has_stacked_quantifiers
from gateway.openai.wire import GenerationFields, decode

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
_DECODER = msgspec.json.Decoder(GenerationFields)


def check(**fields: Any) -> Grammar | None:
    return check_structured(decode(_DECODER, json.dumps(fields).encode()))


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check(**fields)
    assert caught.value.status == 400
    assert len(caught.value.body()) < 600
    return caught.value


def schema_format(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_nothing_asked_for() -> None:
    assert check() is None
    assert check(response_format=None, guided_json=None) is None
    assert check(response_format={"type": "text"}) is None


def test_any_json_object() -> None:
    wanted = Grammar("json_schema", '{"type":"object"}')
    assert check(response_format={"type": "json_object"}) == wanted
    assert check(structured_outputs={"json_object": True}) == wanted


def test_a_schema_keeps_its_order() -> None:
    wanted = Grammar("json_schema", json.dumps(SCHEMA, separators=(",", ":")))
    assert check(response_format=schema_format(SCHEMA)) == wanted
    assert check(response_format=schema_format(SCHEMA, strict=True, description="An answer.")) == wanted
    assert check(structured_outputs={"json": SCHEMA}) == wanted
    assert check(guided_json=SCHEMA) == check(guided_json=json.dumps(SCHEMA)) == wanted


def test_regex_and_lark() -> None:
    assert check(guided_regex="a+") == check(structured_outputs={"regex": "a+"}) == Grammar("regex", "a+")
    lark = 'start: "a"'
    assert check(guided_grammar=lark) == check(structured_outputs={"grammar": lark}) == Grammar("lark", lark)


def test_choices_are_taken_literally() -> None:
    texts = ["yes", "a.b*(c)|d", "[x]{2}^$\\", "line\nbreak", "naïve 漢", "yes", "#- &~/"]
    grammar = check(guided_choice=texts)
    assert grammar is not None and grammar == check(structured_outputs={"choice": texts})
    assert grammar.kind == "regex"
    for text in texts:
        assert re.fullmatch(grammar.text, text)
    for text in ("", "axb", "no", "yes|", "a.b*(c)", "x"):
        assert not re.fullmatch(grammar.text, text)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": schema_format(None)}, "response_format.json_schema"),
        ({"response_format": schema_format("x")}, "response_format.json_schema.schema"),
        ({"response_format": schema_format([1])}, "response_format.json_schema.schema"),
        ({"response_format": schema_format(True)}, "response_format.json_schema.schema"),
        ({"response_format": schema_format({}, name="n" * 65)}, "response_format.json_schema.name"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "json_object", "x": 1}}, "response_format.x"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"xml": "x"}}, "structured_outputs.xml"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_json": nested(MAX_DEPTH + 1)}, "guided_json"),
        ({"guided_json": {"enum": ["x" * 10] * 6000}}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "foo**"}, "guided_regex"),
        ({"guided_regex": "a" * (MAX_GRAMMAR_BYTES + 1)}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": ["a"] * (MAX_FORM_CHOICES + 1)}, "guided_choice"),
        ({"guided_choice": ["é" * MAX_GRAMMAR_BYTES]}, "guided_choice"),
        ({"guided_choice": "yes"}, "guided_choice"),
        ({"guided_grammar": " \n"}, "guided_grammar"),
        ({"guided_grammar": 'root ::= "a"'}, "guided_grammar"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.regex"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"guided_regex": "a", "use_beam_search": True, "n": 2}, "guided_regex"),
    ],
)
def test_refused_with_the_field_at_fault(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_a_body_of_10_000_levels_is_a_400() -> None:
    deep = b'{"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":'
    deep += b'{"items":' * 10_000 + b"{}" + b"}" * 10_000 + b"}}}"
    with pytest.raises(ApiError, match="nested too deeply"):
        decode(_DECODER, deep)


def test_the_deepest_and_the_longest_that_are_taken() -> None:
    assert check(guided_json=nested(MAX_DEPTH)) is not None
    assert check(guided_regex="a" * MAX_GRAMMAR_BYTES) is not None


@pytest.mark.parametrize(
    "pattern", ["foo**", "a*+", "a++", "a?*", "a{2}{3}", "a{2,}*", "a+{2}", "(a)**", "a*??"]
)
def test_quantifiers_of_quantifiers(pattern: str) -> None:
    assert has_stacked_quantifiers(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["a*", "a*?", "a+?", "a??", "a{2,5}?", r"\**", r"\\*", "[*+?]*", r"[\]**]+", "(a*)*", "a*b*", "{}",
     "x{a}{b}", "[[:alpha:]*]+", r"\{2}{3}"],
)  # fmt: skip
def test_quantifiers_that_stand_alone(pattern: str) -> None:
    assert not has_stacked_quantifiers(pattern)


def test_formats_that_nobody_checks_and_false_wishes_are_left_out() -> None:
    """As pydantic writes them for paths and secrets."""
    schema = {
        "type": "object",
        "properties": {
            "format": {"type": "string", "format": "path"},
            "items": {"type": "array", "uniqueItems": False, "items": {"format": "password"}},
            "day": {"type": "string", "format": "date"},
        },
        "const": {"format": "path"},
        "anyOf": [{"format": "binary", "uniqueItems": True}],
    }
    grammar = check(guided_json=schema)
    assert grammar is not None
    assert json.loads(grammar.text) == {
        "type": "object",
        "properties": {
            "format": {"type": "string"},
            "items": {"type": "array", "items": {}},
            "day": {"type": "string", "format": "date"},
        },
        "const": {"format": "path"},
        "anyOf": [{"uniqueItems": True}],
    }
