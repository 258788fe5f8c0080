"""Tools for chat templates that know of none: described in a system message, calls and results as text.

Pure; runs on offload threads. The form is that of ``gateway.tools.hermes``, which reads the answers: many
models have seen it, and agents' loops work on any that follows instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.openai.tools import ToolUse
from gateway.tools.hermes import CALL, CALL_END

_RESULT, _RESULT_END = "<tool_response>", "</tool_response>"
_HOW_TO = (
    "You can call the functions below to help the user. Each line describes one as JSON:\n"
    "{functions}\n\n"
    "To call a function, write its name and its arguments as JSON in this form:\n"
    f'{CALL}{{"name": "function_name", "arguments": {{"argument": "value"}}}}{CALL_END}\n'
    "{how_many} Its result then comes to you in this form:\n"
    f"{_RESULT}the result{_RESULT_END}\n"
    "If no function helps, answer without any."
)
_ONE = "Write at most one call, and nothing after it."
_SEVERAL = "Write each call in a block of its own, and nothing after the last."

Messages = list[dict[str, Any]]


def describe(use: ToolUse) -> str:
    """What the model is told about the functions."""
    lines = [_json(tool["function"]) for tool in use.template_tools() or ()]
    text = _HOW_TO.replace("{how_many}", _SEVERAL if use.is_parallel else _ONE)
    return text.replace("{functions}", "\n".join(lines))


def with_system_text(messages: Messages, text: str) -> Messages:
    """The text behind what the first system message says, or in one of its own."""
    if messages and messages[0]["role"] in ("system", "developer"):
        return [_joined(messages[0], text), *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def with_user_text(messages: Messages, text: str) -> Messages | None:
    """The text before what the user says first, for templates without system messages; None if that fails."""
    if not messages or messages[0]["role"] != "user":
        return None
    first = {**messages[0], "content": f"{text}\n\n{messages[0]['content']}"}
    return [first, *messages[1:]]


def calls_as_text(messages: Sequence[dict[str, Any]]) -> Messages:
    """Calls become text of the assistant; results, those that follow each other together, of the user."""
    plain: Messages = []
    is_result = False
    for message in messages:
        if message["role"] != "tool":
            plain.append(_without_calls(message))
            is_result = False
            continue
        result = f"{_RESULT}{message['content']}{_RESULT_END}"
        if is_result:
            plain[-1] = _joined(plain[-1], result, "\n")
        else:
            plain.append({"role": "user", "content": result})
        is_result = True
    return plain


def _without_calls(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return _joined(rest, "\n".join(_call(call["function"]) for call in calls), "\n")


def _call(function: dict[str, Any]) -> str:
    return f"{CALL}{_json({'name': function['name'], 'arguments': function['arguments']})}{CALL_END}"


def _joined(message: dict[str, Any], text: str, between: str = "\n\n") -> dict[str, Any]:
    content = message["content"]
    return {**message, "content": f"{content}{between}{text}" if content else text}


def _json(value: Any) -> str:
    """As models have seen it, with a space behind colons and commas."""
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
