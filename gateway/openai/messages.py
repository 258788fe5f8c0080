"""Messages of a chat: their wire structs, and the form in which templates get them.

Pure; runs on offload threads. Content is a string, text parts or nothing, for every role; parts are joined.
``developer`` is shown as ``system`` to templates that do not know it, ``function`` and ``function_call``,
the old names, as ``tool`` and ``tool_calls``. Unknown fields are ignored, because frontends send back what
other servers added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from gateway.errors import bad_request, unsupported
from gateway.openai.notes import REQUIRED, one_of, told
from gateway.tools.base import SHORT_ID_CHARS

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_PART_TYPES = ("text", "refusal")


class ContentPart(msgspec.Struct):
    type: Annotated[str, one_of(_PART_TYPES)]
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    function: Annotated[FunctionCall | None, REQUIRED] = None
    id: str | None = None
    type: Annotated[str, one_of(["function"])] = "function"


def _has_its_own(kind: str) -> dict[str, Any]:
    return {"properties": {"type": {"const": kind}, kind: {"type": "string"}}, "required": [kind]}


_Part = Annotated[ContentPart, told(anyOf=[_has_its_own(kind) for kind in _PART_TYPES])]
_Thought = Annotated[Any, told("What an assistant thought; without effect if it is no text.")]


class Message(msgspec.Struct, kw_only=True):
    role: Annotated[str, one_of(_ROLES)]
    content: str | list[_Part] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    reasoning_content: _Thought = None
    reasoning: _Thought = None


@dataclass(frozen=True, slots=True)
class MessageForm:
    """What a template wants to see. ``short_ids``: ids of calls are nine letters and digits."""

    knows_developer: bool = False
    argument_strings: bool = False
    short_ids: bool = False


def template_messages(messages: Sequence[Message], form: MessageForm) -> list[dict[str, Any]]:
    """Messages as templates expect them: text content, and no key without a value. Raises ApiError."""
    return [_template_message(message, f"messages[{i}]", form) for i, message in enumerate(messages)]


def _template_message(message: Message, param: str, form: MessageForm) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "role": _role(message.role, param, form),
        "content": _text(message.content, f"{param}.content") or message.refusal or "",
    }
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = _call_id(message.tool_call_id, form)
    thought = message.reasoning_content or message.reasoning
    if isinstance(thought, str) and thought:
        plain["reasoning_content"] = thought
    calls = message.tool_calls or []
    if message.function_call is not None:
        calls = [*calls, ToolCall(message.function_call)]
    if calls:
        plain["tool_calls"] = [
            _template_call(call, f"{param}.tool_calls[{i}]", form) for i, call in enumerate(calls)
        ]
    return plain


def _role(role: str, param: str, form: MessageForm) -> str:
    if role not in _ROLES:
        raise bad_request(f"{param}.role", f"The role must be one of {', '.join(_ROLES)}.")
    if role == "developer" and not form.knows_developer:
        return "system"
    return "tool" if role == "function" else role


def _text(content: str | list[ContentPart] | None, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in _PART_TYPES:
            raise unsupported(f"{param}[{i}].type", "Only text parts are supported; this model reads text.")
        if text is None:
            raise bad_request(f"{param}[{i}]", f"A {part.type} part must have a {part.type}.")
        texts.append(text)
    return "".join(texts)


def _template_call(call: ToolCall, param: str, form: MessageForm) -> dict[str, Any]:
    if call.type != "function":
        raise unsupported(f"{param}.type", "Only calls of functions are supported.")
    if call.function is None:
        raise bad_request(f"{param}.function", "A call must have a function.")
    arguments = _arguments(call.function.arguments, as_text=form.argument_strings)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": _call_id(call.id or "", form), "type": call.type, "function": function}


def _arguments(arguments: str | dict[str, Any] | None, *, as_text: bool) -> Any:
    """Most templates want an object where the wire has a JSON string; what is no JSON stays as it is."""
    if as_text:
        return (
            arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
        ) or "{}"
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _call_id(call_id: str, form: MessageForm) -> str:
    """The id, or if it has not the form that the template takes, always the same one in its place."""
    if not form.short_ids or (len(call_id) == SHORT_ID_CHARS and call_id.isascii() and call_id.isalnum()):
        return call_id
    return hashlib.blake2s(call_id.encode(errors="replace")).hexdigest()[:SHORT_ID_CHARS]
