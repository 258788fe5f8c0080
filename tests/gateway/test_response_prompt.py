"""A history as the messages of a chat."""

from __future__ import annotations

from typing import Any

from gateway.openai.messages import Message
from gateway.openai.responses.items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputText,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Refusal,
)
from gateway.openai.responses.prompt import messages_of, turn_starts


def said(text: str) -> MessageItem:
    return MessageItem(id="m", role="assistant", content=[OutputText(text)])


def asked(text: str, role: str = "user") -> MessageItem:
    return MessageItem(id="m", role=role, content=[InputText(text)])


def call(name: str) -> FunctionCallItem:
    return FunctionCallItem(id="f", call_id=f"c-{name}", name=name, arguments="{}")


def result(name: str) -> FunctionOutputItem:
    return FunctionOutputItem(id="o", call_id=f"c-{name}", output=name.upper())


def thought(text: str) -> ReasoningItem:
    return ReasoningItem(id="r", content=[ReasoningText(text)])


def shown(*items: Item, instructions: str | None = None) -> list[tuple[Any, ...]]:
    return [told(message) for message in messages_of(instructions, items)]


def told(message: Message) -> tuple[Any, ...]:
    """A message as a tuple: role and content, then what else it has."""
    calls = [(call.id, call.function.name) for call in message.tool_calls or () if call.function]
    more = [value for value in (message.reasoning_content, message.tool_call_id, calls) if value]
    return (message.role, message.content, *more)


def test_instructions_come_first_and_only_those_of_this_turn() -> None:
    assert shown(asked("a"), said("b"), asked("c"), instructions="Be kind.") == [
        ("developer", "Be kind."), ("user", "a"), ("assistant", "b"), ("user", "c"),
    ]  # fmt: skip
    assert shown(asked("a"), instructions="") == [("user", "a")]
    assert shown(asked("a", "system"), asked("b")) == [("system", "a"), ("user", "b")]


def test_parts_are_joined() -> None:
    item = MessageItem(id="m", role="assistant", content=[OutputText("a"), Refusal("b")])
    assert shown(item) == [("assistant", "ab")]


def test_calls_are_part_of_the_message_before_them() -> None:
    calls = (call("f"), call("g"), result("f"), result("g"))
    assert shown(asked("a"), said("Let me see."), *calls, said("So.")) == [
        ("user", "a"),
        ("assistant", "Let me see.", [("c-f", "f"), ("c-g", "g")]),
        ("tool", "F", "c-f"), ("tool", "G", "c-g"),
        ("assistant", "So."),
    ]  # fmt: skip


def test_calls_without_a_word_are_a_message() -> None:
    assert shown(asked("a"), call("f"), result("f"), call("g"), result("g")) == [
        ("user", "a"),
        ("assistant", "", [("c-f", "f")]), ("tool", "F", "c-f"),
        ("assistant", "", [("c-g", "g")]), ("tool", "G", "c-g"),
    ]  # fmt: skip


def test_a_thought_goes_with_what_follows_it() -> None:
    assert shown(asked("a"), thought("hm "), thought("so"), said("b")) == [
        ("user", "a"), ("assistant", "b", "hm so"),
    ]  # fmt: skip
    assert shown(asked("a"), thought("hm"), call("f"), result("f"), thought("aha"), said("b")) == [
        ("user", "a"),
        ("assistant", "", "hm", [("c-f", "f")]), ("tool", "F", "c-f"),
        ("assistant", "b", "aha"),
    ]  # fmt: skip


def test_a_thought_before_a_call_does_not_join_the_message_before() -> None:
    assert shown(asked("a"), said("b"), thought("hm"), call("f")) == [
        ("user", "a"), ("assistant", "b"), ("assistant", "", "hm", [("c-f", "f")]),
    ]  # fmt: skip


def test_a_thought_that_was_cut_off_is_a_turn_of_its_own() -> None:
    """Roles alternate as they did, and nobody's else is the thought."""
    assert shown(asked("a"), thought("hm"), asked("b")) == [
        ("user", "a"), ("assistant", "", "hm"), ("user", "b"),
    ]  # fmt: skip
    assert shown(asked("a"), thought("hm")) == [("user", "a"), ("assistant", "", "hm")]
    assert shown(asked("a"), ReasoningItem(id="r"), asked("b")) == [("user", "a"), ("user", "b")]


def test_a_history_may_begin_where_a_user_speaks() -> None:
    items = [asked("s", "system"), asked("a"), said("b"), call("f"), result("f"), asked("c"), asked("d")]
    assert turn_starts(items) == [1, 5, 6]
    assert turn_starts([]) == []
