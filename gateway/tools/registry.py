"""Tool-call parsers by name, by ``module:Class``, or by what a chat template shows of its model's family."""

from __future__ import annotations

import importlib
import secrets
import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.thoughts import AUTO, NONE
from gateway.tools.base import SHORT_ID_CHARS, ToolCallParser
from gateway.tools.hermes import HermesParser
from gateway.tools.llama3_json import Llama3JsonParser
from gateway.tools.mistral import MistralParser
from gateway.tools.pythonic import PythonicParser


class ToolParserError(ValueError):
    """A parser that is not there, or is not one. The message is one plain sentence for the user."""


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """How the models of a family call tools.

    ``telltales`` are strings of which one is in their chat templates, unless one of ``not_with`` is too.
    """

    name: str
    parser: Callable[[Collection[str]], ToolCallParser]
    marks: tuple[str, ...]
    telltales: tuple[str, ...] = ()
    not_with: tuple[str, ...] = ()
    short_ids: bool = False

    def new_call_id(self) -> str:
        """A random id of a call, in the form that the family's chat templates take."""
        if self.short_ids:
            return "".join(secrets.choice(_ID_CHARS) for _ in range(SHORT_ID_CHARS))
        return f"call_{secrets.token_hex(12)}"


_ID_CHARS = string.ascii_letters + string.digits
HERMES = ToolFamily(
    "hermes", HermesParser, HermesParser.marks, ("<tool_call>",), not_with=("<function=", "<arg_key>")
)
FAMILIES: Mapping[str, ToolFamily] = {
    family.name: family
    for family in (
        ToolFamily("mistral", MistralParser, MistralParser.marks, ("[TOOL_CALLS]",), short_ids=True),
        ToolFamily("pythonic", PythonicParser, PythonicParser.marks, ("<|python_start|>", "[func_name1(")),
        ToolFamily(
            "llama3_json",
            Llama3JsonParser,
            Llama3JsonParser.marks,
            ("<|python_tag|>", '{"name": function name, "parameters":'),
        ),
        HERMES,
    )
}


def family_of(template: str) -> ToolFamily | None:
    """The family whose form of calls a chat template shows, if it is one of ours."""
    for family in FAMILIES.values():
        if _any_in(family.telltales, template) and not _any_in(family.not_with, template):
            return family
    return None


def check_parser(spec: str) -> None:
    """Raises ToolParserError if ``spec`` is neither ``auto`` nor ``none`` nor names a family."""
    if spec not in (AUTO, NONE):
        family_named(spec)


def family_named(spec: str) -> ToolFamily:
    """The family that ``spec`` names: built in, or a ``module:Class``. Raises ToolParserError."""
    if spec in FAMILIES:
        return FAMILIES[spec]
    if ":" not in spec:
        known = ", ".join([AUTO, NONE, *FAMILIES])
        raise ToolParserError(
            f"There is no tool-call parser {spec!r}; there are {known}, or name a module:Class."
        )
    return _imported(spec)


def _imported(spec: str) -> ToolFamily:
    module_name, _, attribute = spec.partition(":")
    try:
        parser: Any = getattr(importlib.import_module(module_name), attribute)
        parser(frozenset())
    except Exception as error:
        raise ToolParserError(f"The tool-call parser {spec} cannot be made: {error}.") from error
    missing = [member for member in ("marks", "push", "finish") if not hasattr(parser, member)]
    if missing:
        raise ToolParserError(f"{spec} is no tool-call parser: it has no {', '.join(missing)}.")
    return ToolFamily(spec, parser, tuple(parser.marks))


def _any_in(strings: tuple[str, ...], text: str) -> bool:
    return any(string in text for string in strings)
