"""What an answer must look like: ``response_format`` and vLLM's extras become one ``Grammar``, or a refusal.

Pure; runs on offload threads. Checked here is what is cheap: types, sizes, depth, and that there is one wish
only. Whether a schema, regex or grammar can be followed is found out by the engine, which compiles it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.messages import Grammar
from gateway.errors import bad_request, unsupported
from gateway.openai.ranges import MAX_FORM_CHOICES
from gateway.openai.schema_limits import schema_grammar, sized
from gateway.openai.wire import GenerationFields

_MAX_SCHEMA_NAME_CHARS = 64
_ANY_OBJECT = Grammar("json_schema", '{"type":"object"}')
_META = frozenset("\\.+*?()|[]{}^$#&-~/")
_QUANTIFIERS = "*+?"


@dataclass(frozen=True, slots=True)
class _Wish:
    """One field that asks for a form, and how to read it; ``param`` names it."""

    param: str
    value: Any
    read: Callable[[Any, str], Grammar]


def check_structured(wire: GenerationFields) -> Grammar | None:
    """The grammar that a request asks for. Raises ApiError for none that could be, or for more than one."""
    wishes = _wishes(wire)
    if not wishes:
        return None
    wish = wishes[0]
    if len(wishes) > 1:
        raise bad_request(
            wishes[1].param, f"'{wishes[1].param}' and '{wish.param}' ask for two forms at once; send one."
        )
    if wire.use_beam_search:
        raise bad_request(wish.param, f"'{wish.param}' does not go with beam search.")
    if wire.ignore_eos:
        raise bad_request(
            "ignore_eos", f"'ignore_eos' does not go with '{wish.param}': the form says where the text ends."
        )
    return wish.read(wish.value, wish.param)


def structured_param(wire: GenerationFields) -> str | None:
    """The field that asks for a form, for what the engine finds wrong with it."""
    return next((wish.param for wish in _wishes(wire)), None)


def _wishes(wire: GenerationFields) -> list[_Wish]:
    return [*_response_format(wire), *_structured_outputs(wire), *_guided(wire)]


# ---- where wishes come from ------------------------------------------------------------------------


def _response_format(wire: GenerationFields) -> list[_Wish]:
    wanted = wire.response_format
    if wanted is None or wanted.type == "text":
        return []
    param = "response_format"
    if wanted.type == "json_object":
        return [_Wish(param, True, _any_object)]
    if wanted.type != "json_schema":
        raise bad_request(f"{param}.type", "'response_format.type' must be text, json_object or json_schema.")
    if wanted.json_schema is None or wanted.json_schema.schema is None:
        raise bad_request(f"{param}.json_schema", "'response_format.json_schema.schema' is missing.")
    if len(wanted.json_schema.name or "") > _MAX_SCHEMA_NAME_CHARS:
        where = f"{param}.json_schema.name"
        raise bad_request(where, f"'{where}' must not have more than {_MAX_SCHEMA_NAME_CHARS} characters.")
    return [_Wish(f"{param}.json_schema.schema", wanted.json_schema.schema, _schema)]


def _structured_outputs(wire: GenerationFields) -> list[_Wish]:
    wanted = wire.structured_outputs
    if wanted is None:
        return []
    readers = {"json": _schema, "regex": _regex, "choice": _choice, "grammar": _lark}
    found = [
        _Wish(f"structured_outputs.{name}", getattr(wanted, name), read)
        for name, read in readers.items()
        if getattr(wanted, name) is not None
    ]
    if wanted.json_object:
        found.append(_Wish("structured_outputs.json_object", True, _any_object))
    if not found:
        raise bad_request(
            "structured_outputs",
            "'structured_outputs' must have one of json, regex, choice, grammar and json_object.",
        )
    return found


def _guided(wire: GenerationFields) -> list[_Wish]:
    readers = {
        "guided_json": _schema,
        "guided_regex": _regex,
        "guided_choice": _choice,
        "guided_grammar": _lark,
    }
    values = ((name, getattr(wire, name), read) for name, read in readers.items())
    return [_Wish(name, value, read) for name, value, read in values if value is not None]


# ---- what they become ------------------------------------------------------------------------------


def _any_object(value: Any, param: str) -> Grammar:
    return _ANY_OBJECT


def _schema(value: Any, param: str) -> Grammar:
    """A JSON schema, as an object or as the text of one."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            raise bad_request(param, f"'{param}' is a string that is not valid JSON.") from None
    if not isinstance(value, dict):
        raise bad_request(param, f"'{param}' must be a JSON schema, which is an object.")
    return schema_grammar(value, param)


def _regex(value: str, param: str) -> Grammar:
    grammar = sized("regex", value, param)
    if has_stacked_quantifiers(value):
        raise bad_request(param, f"'{param}' repeats a repetition, as in a**; put the inner one in a group.")
    return grammar


def _lark(value: str, param: str) -> Grammar:
    grammar = sized("lark", value.strip(), param)
    if "::=" in value:
        raise unsupported(param, f"'{param}' looks like EBNF; a Lark grammar is expected, with 'start: ...'.")
    return grammar


def _choice(value: list[str], param: str) -> Grammar:
    if not 1 <= len(value) <= MAX_FORM_CHOICES:
        raise bad_request(param, f"'{param}' must have 1 to {MAX_FORM_CHOICES} texts.")
    if not all(value):
        raise bad_request(param, f"'{param}' has an empty text.")
    sized("regex", "".join(value), param)  # before the work of escaping it
    return sized("regex", "|".join(map(_literal, dict.fromkeys(value))), param)


def _literal(text: str) -> str:
    """A regex that matches this text only."""
    return "".join("\\" + char if char in _META else char for char in text)


def has_stacked_quantifiers(pattern: str) -> bool:
    """Whether a quantifier follows another, as in ``a**``, which engines read in different ways.

    One pass. Whatever else is wrong with a pattern is not told from what is right.
    """
    depth = 0  # of character classes, in which quantifiers are characters
    run = ""  # quantifiers since the last atom, the braces of a counted one as "{"
    i = 0
    while i < len(pattern):
        char = pattern[i]
        count = _counted(pattern, i) if char == "{" and not depth else 0
        if char == "\\":
            run, i = "", i + 1
        elif char == "[":
            run, depth = "", depth + 1
        elif depth:
            depth -= char == "]"
        elif count or char in _QUANTIFIERS:
            run += char
            i += max(count - 1, 0)
        else:
            run = ""
        if len(run) > 1 and not (len(run) == 2 and run[1] == "?"):
            return True
        i += 1
    return False


def _counted(pattern: str, start: int) -> int:
    """Length of a counted quantifier such as ``{2,5}`` that begins there; 0 if none does."""
    stop = pattern.find("}", start, start + 24)
    inside = pattern[start + 1 : stop].replace(",", "", 1)
    return stop + 1 - start if stop > 0 and inside.isdigit() else 0
