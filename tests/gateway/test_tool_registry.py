"""Which parser a model gets: by its template's telltales, by name, as module:Class, or none."""

from __future__ import annotations

import re
from typing import ClassVar

import pytest

from gateway.chat_template import ChatTemplate
from gateway.openai.chat_style import ChatStyle, choose_style
from gateway.tools.base import Event
from gateway.tools.registry import FAMILIES, ToolParserError, family_named, family_of
from tests.gateway import families


class Plugin:
    marks: ClassVar[tuple[str, ...]] = ("<<",)

    def __init__(self, names: object) -> None:
        pass

    def push(self, text: str) -> list[Event]:
        return []

    def finish(self) -> list[Event]:
        return []


class NoParser:
    def __init__(self, names: object) -> None:
        pass


def style(template: str | None, tool_call_parser: str = "auto", reasoning_parser: str = "auto") -> ChatStyle:
    made = None if template is None else ChatTemplate(template, bos_token=None, eos_token=None)
    return choose_style(made, tool_call_parser, reasoning_parser)


@pytest.mark.parametrize("name", sorted(families.TEMPLATES))
def test_the_template_of_each_family_is_known(name: str) -> None:
    chosen = style(families.TEMPLATES[name])
    assert chosen.tools is FAMILIES[name]
    assert not chosen.tools_in_text


def test_a_template_without_tools_gets_them_in_text() -> None:
    chosen = style("{{ messages }}")
    assert chosen.tools is FAMILIES["hermes"]
    assert chosen.tools_in_text


def test_a_form_of_calls_that_we_cannot_read_is_passed_by() -> None:
    template = "{% if tools %}<tool_call><function=x></tool_call>{% endif %}"
    assert family_of(template) is None
    chosen = style(template)
    assert (chosen.tools, chosen.tools_in_text) == (FAMILIES["hermes"], True)
    named = style(template, "hermes")
    assert (named.tools, named.tools_in_text) == (FAMILIES["hermes"], False)


def test_none_means_none() -> None:
    assert style(families.TEMPLATES["hermes"], "none").tools is None
    assert style(families.TEMPLATES["hermes"] + "</think>", reasoning_parser="none").thoughts is None
    assert style(None).tools is None


def test_a_plugin() -> None:
    family = family_named(f"{__name__}:Plugin")
    assert (family.parser, family.marks) == (Plugin, ("<<",))
    assert style(families.TEMPLATES["hermes"], f"{__name__}:Plugin").tools == family


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nobody", "'nobody'; there are auto, none, mistral"), ("no.such:Thing", "cannot be made"),
        (f"{__name__}:Nothing", "cannot be made"), (f"{__name__}:NoParser", "no marks, push, finish"),
    ],
)  # fmt: skip
def test_what_is_no_parser_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ToolParserError, match=message):
        style(families.TEMPLATES["hermes"], spec)
    with pytest.raises(ToolParserError, match=message):
        style(None, spec)


def test_a_parser_that_does_not_fit_the_text_form_is_refused() -> None:
    with pytest.raises(ToolParserError, match="does not show tools"):
        style("{{ messages }}", "mistral")


def test_ids_are_random_and_of_the_form_that_the_family_takes() -> None:
    assert re.fullmatch(r"call_[0-9a-f]{24}", FAMILIES["hermes"].new_call_id())
    assert re.fullmatch(r"[A-Za-z0-9]{9}", FAMILIES["mistral"].new_call_id())
    assert len({FAMILIES["mistral"].new_call_id() for _ in range(100)}) == 100
