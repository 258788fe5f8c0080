"""From the items of a history to the messages of a chat.

Pure; runs on offload threads. Calls that follow an assistant's message are part of it, as chat templates
have them, and a thought goes with what the assistant said or called next, if there is such a thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.openai.messages import FunctionCall, Message, ToolCall
from gateway.openai.responses.items import (
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    Refusal,
)


def messages_of(instructions: str | None, items: Iterable[Item]) -> list[Message]:
    """What the model is to see: the instructions of this turn, then the history."""
    messages = [] if not instructions else [Message(role="developer", content=instructions)]
    thought = ""
    for item in items:
        if isinstance(item, ReasoningItem):
            thought += "".join(part.text for part in item.content)
            continue
        if isinstance(item, FunctionCallItem):
            _add_call(messages, item, thought)
        elif isinstance(item, MessageItem) and item.role == "assistant":
            messages.append(_message(item, thought))
        else:
            messages += _thought_alone(thought)
            messages.append(_message(item))
        thought = ""
    return [*messages, *_thought_alone(thought)]


def turn_starts(items: Sequence[Item]) -> list[int]:
    """Where a history may begin: at what a user says."""
    return [i for i, item in enumerate(items) if isinstance(item, MessageItem) and item.role == "user"]


def _thought_alone(thought: str) -> list[Message]:
    """Of an answer that was cut before it said anything."""
    return [Message(role="assistant", content="", reasoning_content=thought)] if thought else []


def _message(item: MessageItem | FunctionOutputItem, thought: str = "") -> Message:
    if isinstance(item, FunctionOutputItem):
        return Message(role="tool", content=item.output, tool_call_id=item.call_id)
    text = "".join(part.refusal if isinstance(part, Refusal) else part.text for part in item.content)
    return Message(role=item.role, content=text, reasoning_content=thought or None)


def _add_call(messages: list[Message], item: FunctionCallItem, thought: str) -> None:
    if not messages or messages[-1].role != "assistant" or thought:
        messages.append(Message(role="assistant", content="", reasoning_content=thought or None))
    call = ToolCall(FunctionCall(item.name, item.arguments), id=item.call_id)
    messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), call]
