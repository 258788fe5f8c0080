"""Items of the Responses API: what a turn brings, what an answer consists of, and how either is kept.

Pure. ``InputItem`` is the wire's, lenient as clients send back what other servers added; ``Item`` is what the
API shows and the state keeps. Content is text: parts of other kinds are refused by name.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from gateway.errors import bad_request, unsupported
from gateway.openai.notes import Ignored, one_of, told

MAX_INPUT_ITEMS = 10_000
_ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
_ROLES = ("user", "assistant", "system", "developer")
_PART_TYPES = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")

Status = Literal["in_progress", "completed", "incomplete"]


class InputPart(msgspec.Struct, kw_only=True):
    type: Annotated[str, one_of(_PART_TYPES)]
    text: str | None = None
    refusal: str | None = None


Content = str | list[InputPart]


class InputItem(msgspec.Struct, kw_only=True):
    """What ``input`` may have in it, as it is sent: a message without ``type`` too. Ids are given anew."""

    type: Annotated[str, one_of(_ITEM_TYPES)] = "message"
    role: Annotated[str | None, one_of(_ROLES)] = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content | None = None
    summary: Ignored = None
    id: Ignored = None
    status: Ignored = None


class LogprobTop(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[LogprobTop]


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[Logprob] = []


class Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    id: str
    role: Annotated[str, one_of(_ROLES)]
    content: list[InputText | OutputText | Refusal]
    status: Status = "completed"


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call", kw_only=True):
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status = "completed"


class FunctionOutputItem(msgspec.Struct, tag_field="type", tag="function_call_output", kw_only=True):
    id: str
    call_id: str
    output: str
    status: Status = "completed"


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning", kw_only=True):
    id: str
    content: list[ReasoningText] = []
    summary: list[Any] = []
    status: Status = "completed"


Item = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
OutputItem = MessageItem | FunctionCallItem | ReasoningItem
Input = Annotated[
    str | list[InputItem] | None,
    told("A text is one message of the user.", maxItems=MAX_INPUT_ITEMS),
]
_DECODER = msgspec.json.Decoder(Item)


def decode_item(body: bytes) -> Item:
    """An item that was kept."""
    return _DECODER.decode(body)


def new_id(prefix: str) -> str:
    """An id nobody can guess."""
    return f"{prefix}_{uuid.uuid4().hex}"


def check_input(given: str | Sequence[InputItem] | None, param: str = "input") -> list[Item]:
    """Items of a turn with their own ids. Raises ApiError naming the first bad field."""
    if given is None:
        return []
    if isinstance(given, str):
        return [_message("user", [InputText(given)])]
    if len(given) > MAX_INPUT_ITEMS:
        raise bad_request(param, f"'{param}' must not have more than {MAX_INPUT_ITEMS} items.")
    return [_checked(item, f"{param}[{i}]") for i, item in enumerate(given)]


def check_calls(history: Sequence[Item], own: Sequence[Item], param: str = "input") -> None:
    """Every result must be that of a call before it. Raises ApiError."""
    known = {item.call_id for item in history if isinstance(item, FunctionCallItem)}
    for i, item in enumerate(own):
        if isinstance(item, FunctionCallItem):
            known.add(item.call_id)
        elif isinstance(item, FunctionOutputItem) and item.call_id not in known:
            raise bad_request(f"{param}[{i}].call_id", "There is no function call with this id before it.")


def _checked(item: InputItem, param: str) -> Item:
    is_message = item.type == "message"
    if item.role not in (_ROLES if is_message else (None, *_ROLES)):
        raise bad_request(f"{param}.role", f"The role must be one of {', '.join(_ROLES)}.")
    if is_message:
        return _checked_message(item, param)
    if item.type == "function_call":
        call_id, name = _given(item, "call_id", param), _given(item, "name", param)
        return FunctionCallItem(id=new_id("fc"), call_id=call_id, name=name, arguments=item.arguments or "{}")
    if item.type == "function_call_output":
        call_id = _given(item, "call_id", param)
        if item.output is None:
            raise bad_request(f"{param}.output", "A function call's output must have an 'output'.")
        text = _joined(item.output, f"{param}.output")
        return FunctionOutputItem(id=new_id("fco"), call_id=call_id, output=text)
    if item.type == "reasoning":
        text = _joined(item.content or "", f"{param}.content")
        return ReasoningItem(id=new_id("rs"), content=[ReasoningText(text)] if text else [])
    raise unsupported(f"{param}.type", f"Items must be of one of the types {', '.join(_ITEM_TYPES)}.")


def _checked_message(item: InputItem, param: str) -> MessageItem:
    assert item.role is not None
    if item.content is None:
        raise bad_request(f"{param}.content", "A message must have content.")
    parts = [InputPart(type="text", text=item.content)] if isinstance(item.content, str) else item.content
    texts = [(part, _text(part, f"{param}.content[{i}]")) for i, part in enumerate(parts)]
    if item.role != "assistant":
        return _message(item.role, [InputText(text) for _, text in texts])
    return _message(
        item.role,
        [Refusal(text) if part.type == "refusal" else OutputText(text) for part, text in texts],
    )


def _message(role: str, content: Sequence[InputText | OutputText | Refusal]) -> MessageItem:
    return MessageItem(id=new_id("msg"), role=role, content=list(content))


def _given(item: InputItem, name: str, param: str) -> str:
    value: str | None = getattr(item, name)
    if not value:
        raise bad_request(f"{param}.{name}", f"An item of type '{item.type}' must have a '{name}'.")
    return value


def _joined(content: Content, param: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_text(part, f"{param}[{i}]") for i, part in enumerate(content))


def _text(part: InputPart, param: str) -> str:
    if part.type not in _PART_TYPES:
        raise unsupported(f"{param}.type", "Only text parts are supported; this model reads text.")
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise bad_request(param, "A text part must have a text.")
    return text
