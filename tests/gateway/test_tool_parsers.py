"""Tool-call parsers: what is a call, what is content, and that splits change nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.tools.base import CallArguments, CallStart, Content, Event, ToolCallParser
from gateway.tools.forced import NamedCallParser, RequiredCallsParser
from gateway.tools.hermes import HermesParser
from gateway.tools.llama3_json import Llama3JsonParser
from gateway.tools.mistral import MistralParser
from gateway.tools.pythonic import PythonicParser

NAMES = frozenset({"f", "g", "get-the_weather"})
PARSERS: dict[str, Callable[[], ToolCallParser]] = {
    "hermes": lambda: HermesParser(NAMES),
    "llama3_json": lambda: Llama3JsonParser(NAMES),
    "mistral": lambda: MistralParser(NAMES),
    "pythonic": lambda: PythonicParser(NAMES),
    "named": lambda: NamedCallParser("f"),
    "required": lambda: RequiredCallsParser(NAMES),
}
FORCED = ("named", "required")  # which nothing but a cut can make other than calls
Read = tuple[str, list[tuple[str, str]]]


def events_of(parser: ToolCallParser, text: str, cuts: list[int]) -> list[Event]:
    events: list[Event] = []
    for start, end in pairwise([0, *cuts, len(text)]):
        events += parser.push(text[start:end])
    return events + parser.finish()


def read(family: str, text: str, cuts: list[int] | None = None) -> Read:
    """Content and calls of a text. Content must be the text's own, in order."""
    content, at = "", 0
    calls: list[tuple[str, str]] = []
    for event in events_of(PARSERS[family](), text, cuts or []):
        if isinstance(event, Content):
            assert event.start >= at
            assert text[event.start :].startswith(event.text)
            at = event.start + len(event.text)
            content += event.text
        elif isinstance(event, CallStart):
            calls.append((event.name, ""))
        else:
            assert isinstance(event, CallArguments)
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return content, calls


CASES: list[tuple[str, str, Read]] = [
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', ("", [("f", '{"x": 1}')])),
    ("hermes", 'Let me see.\n<tool_call>{"name":"f","arguments":{}}</tool_call>', ("Let me see.", [("f",
     "{}")])),
    ("hermes", '<tool_call>{"name":"f","arguments":{}}</tool_call>\n<tool_call>{"name":"g"}</tool_call>\n',
     ("", [("f", "{}"), ("g", "{}")])),
    ("hermes", '<tool_call>{"arguments": {"a": "}</tool_call>\\""}, "name": "f"}</tool_call>',
     ("", [("f", '{"a": "}</tool_call>\\""}')])),
    ("hermes", '<tool_call>{"name":"f","arguments":"{\\"x\\":1}","id":3.5}</tool_call> done',
     (" done", [("f", '{"x":1}')])),
    ("hermes", '<tool_call>{"name":"f","arguments":{"x":1}</tool_call>', ("", [("f", '{"x":1}')])),
    ("hermes", '<tool_call>{"name":"f","arguments":{"x":[1,', ("", [("f", '{"x":[1,')])),
    ("hermes", '<tool_call>{"name":"f","arguments":null}', ("", [("f", "{}")])),
    ("hermes", '<tool_call>{"name":"nobody","arguments":{}}</tool_call>',
     ('<tool_call>{"name":"nobody","arguments":{}}</tool_call>', [])),
    ("hermes", "<tool_call>not json</tool_call>", ("<tool_call>not json</tool_call>", [])),
    ("hermes", '<tool_call>{"name":"f","arguments":[1]}</tool_call>',
     ('<tool_call>{"name":"f","arguments":[1]}</tool_call>', [])),
    ("hermes", '<tool_call>{"name":"f"', ('<tool_call>{"name":"f"', [])),
    ("hermes", "a < b <tool_", ("a < b <tool_", [])),
    ("hermes", " \n", (" \n", [])),
    ("hermes", '\n\n<tool_call>{"name":"f"}</tool_call>\n\nDone. ', ("\n\nDone. ", [("f", "{}")])),
    ("llama3_json", '{"name": "f", "parameters": {"x": "1"}}', ("", [("f", '{"x": "1"}')])),
    ("llama3_json", '{"name":"f","parameters":{}}; {"name":"g","parameters":{}}', ("", [("f", "{}"),
    ("g", "{}")])),
    ("llama3_json", '<|python_tag|>{"type":"function","name":"f","parameters":{}}', ("", [("f", "{}")])),
    ("llama3_json", 'Well. <|python_tag|>{"name":"f","parameters":{}}', ("Well.", [("f", "{}")])),
    ("llama3_json", '{"name": "Ann", "age": 5}', ('{"name": "Ann", "age": 5}', [])),
    ("llama3_json", 'Hi {"name":"f","parameters":{}}', ('Hi {"name":"f","parameters":{}}', [])),
    ("llama3_json", '{"name":"f","parameters":{}}; and', ("; and", [("f", "{}")])),
    ("llama3_json", "<|python_tag|>print(1)", ("<|python_tag|>print(1)", [])),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]',
     ("", [("f", '{"x": 1}'), ("g", "{}")])),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]get-the_weather{}', ("", [("f", '{"x": 1}'),
    ("get-the_weather", "{}")])),
    ("mistral", 'So: [TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"x": 1}', ("So:", [("f", '{"x": 1}')])),
    ("mistral", '[TOOL_CALLS] {"name":"f","arguments":{}}', ("", [("f", "{}")])),
    ("mistral", "[TOOL_CALLS]nobody{}", ("[TOOL_CALLS]nobody{}", [])),
    ("mistral", "[TOOL_CALLS]" + "f" * 300, ("[TOOL_CALLS]" + "f" * 300, [])),
    ("mistral", "[TOOL_CALLS][]", ("[TOOL_CALLS][]", [])),
    ("pythonic", "[f(a='x', b=[1, -2.5, True, None, {'k': \"v\"}]), g()]",
     ("", [("f", '{"a":"x","b":[1,-2.5,true,null,{"k":"v"}]}'), ("g", "{}")])),
    ("pythonic", "<|python_start|>[get-the_weather(city=\"S)o\")]<|python_end|>",
     ("", [("get-the_weather", '{"city":"S)o"}')])),
    ("pythonic", "<|python_end|>", ("<|python_end|>", [])),
    ("pythonic", "[1] is a footnote", ("[1] is a footnote", [])),
    ("pythonic", "[f(1)]", ("[f(1)]", [])),
    ("pythonic", "[f(a=g())]", ("[f(a=g())]", [])),
    ("pythonic", "[f(a=1), nobody()]", (", nobody()]", [("f", '{"a":1}')])),
    ("pythonic", "[f(a=1", ("[f(a=1", [])),
    ("named", ' {"x": {"y": "}"}} ', ("", [("f", '{"x": {"y": "}"}}')])),
    ("named", '{"x": ', ("", [("f", '{"x": ')])),
    ("named", "no", ("no", [])),
    ("required", '[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]',
     ("", [("f", '{"x": 1}'), ("g", "{}")])),
    ("required", '[{"name": "f", "arguments": {"x', ("", [("f", '{"x')])),
    ("required", '[{"name": "f", "arguments": {}},', ("", [("f", "{}")])),
    ("required", '[{"name": "f", "arguments": {}}, {"name": "', ("", [("f", "{}")])),
    ("required", '[{"na', ("", [])),
]  # fmt: skip


@pytest.mark.parametrize(("family", "text", "expected"), CASES)
def test_what_is_read_at_any_split_into_two(family: str, text: str, expected: Read) -> None:
    assert read(family, text) == expected
    for cut in range(len(text)):
        assert read(family, text, [cut]) == expected
    assert read(family, text, list(range(len(text)))) == expected


FRAGMENTS = [
    "<tool_call>", "</tool_call>", '{"name": "f", "arguments": ', '{"x": 1}', "}", "{", '"', "\\", "[", "]",
    ",",
    ";", " ", "\n", "a", "é", "<tool", "[TOOL_CALLS]", "[ARGS]", "f(", "a=1", ")", "<|python_tag|>",
    "f", '"name"',
    ":", '{"name":"g"}', "'", "<|python_start|>", "<|python_end|>", "null", "1.5e3",
]  # fmt: skip


@pytest.mark.case("D7")
@given(st.sampled_from(sorted(PARSERS)), st.lists(st.sampled_from(FRAGMENTS), max_size=14), st.data())
@example("hermes", ["<tool_call>", '{"name": "f", "arguments": ', '{"x": 1}', "}", "</tool_call>"], None)
def test_no_split_changes_what_is_read(family: str, fragments: list[str], data: st.DataObject | None) -> None:
    text = "".join(fragments)
    cuts = [] if data is None else sorted(data.draw(st.sets(st.integers(0, len(text)))))
    whole = read(family, text)
    assert read(family, text, cuts) == whole
    if not whole[1] and family not in FORCED:
        assert whole[0] == text  # without a call nothing at all is lost


def test_arguments_come_while_they_are_written() -> None:
    parser = HermesParser(NAMES)
    assert parser.push('<tool_call>{"name": "f", "arg') == []
    assert parser.push('uments": {"text": "on') == [CallStart("f"), CallArguments('{"text": "on')]
    assert parser.push("ce upon") == [CallArguments("ce upon")]
    assert parser.push(' a time"}}</tool_') == [CallArguments(' a time"}')]
    assert parser.push("call>") == []


def test_content_comes_at_once_but_for_what_may_be_a_mark() -> None:
    parser = HermesParser(NAMES)
    assert parser.push("Hi there <to") == [Content("Hi there", 0)]
    assert parser.push("ast> ") == [Content(" <toast>", 8)]
    assert parser.finish() == [Content(" ", 16)]


@pytest.mark.parametrize("family", sorted(PARSERS))
def test_long_texts_cost_no_more_than_their_length(family: str) -> None:
    """Would take minutes if anything were read again and again."""
    for text in (
        '<tool_call>{"x":"' * 3000,
        "[" * 30_000,
        '[TOOL_CALLS]f{"a":"' + "b" * 50_000,
        "[f(a='" + "b" * 50_000,
    ):
        content, calls = read(family, text, list(range(0, len(text), 3)))
        assert content or calls
