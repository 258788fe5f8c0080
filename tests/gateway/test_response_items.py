"""Items as clients send them: what each becomes, and what is refused by its place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.errors import ApiError
from gateway.openai.responses import items as module
from gateway.openai.responses.items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputItem,
    InputText,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    Refusal,
    check_calls,
    check_input,
    decode_item,
)

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "4"}


def checked(*items: dict[str, Any]) -> list[Item]:
    return check_input(msgspec.convert(list(items), list[InputItem]))


def refusal(*items: dict[str, Any]) -> str | None:
    with pytest.raises(ApiError) as caught:
        check_calls([], checked(*items))
    return caught.value.param


def test_a_text_is_one_message_of_the_user() -> None:
    (item,) = check_input("Hi")
    assert isinstance(item, MessageItem)
    assert (item.role, item.content, item.status) == ("user", [InputText("Hi")], "completed")
    assert check_input(None) == []
    assert check_input([]) == []


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_what_is_said_to_the_model_is_input(role: str) -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    (item,) = checked({"role": role, "content": parts})
    assert isinstance(item, MessageItem)
    assert item.content == [InputText("a"), InputText("b")]


def test_what_the_model_said_is_output() -> None:
    parts = [{"type": "output_text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "no"}]
    (item,) = checked({"type": "message", "id": "msg_1", "role": "assistant", "content": parts})
    assert isinstance(item, MessageItem)
    assert item.content == [OutputText("a"), Refusal("no")]


def test_calls_results_and_thoughts() -> None:
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    parts = {**RESULT, "output": [{"type": "input_text", "text": "4"}, {"type": "input_text", "text": "2"}]}
    found = checked(thought, CALL, RESULT, parts)
    assert isinstance(found[0], ReasoningItem)
    assert found[0].content[0].text == "hm"
    assert isinstance(found[1], FunctionCallItem)
    assert (found[1].call_id, found[1].name, found[1].arguments) == ("c1", "f", '{"x": 1}')
    assert isinstance(found[2], FunctionOutputItem)
    assert isinstance(found[3], FunctionOutputItem)
    assert (found[2].output, found[3].output) == ("4", "42")


def test_a_thought_without_its_text_is_an_empty_one() -> None:
    """OpenAI's own come with a summary and an encrypted text, which nobody else can read."""
    (item,) = checked({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"})
    assert isinstance(item, ReasoningItem)
    assert item.content == []


def test_ids_are_given_anew_and_no_two_are_the_same() -> None:
    found = checked(*[{"id": "msg_1", "role": "user", "content": "x"}] * 20, CALL, RESULT)
    ids = [item.id for item in found]
    assert len(set(ids)) == len(ids)
    assert {item_id.partition("_")[0] for item_id in ids} == {"msg", "fc", "fco"}
    assert "msg_1" not in ids


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([{"role": "user", "content": "x"}, {"content": "x"}], "input[1].role"),
        ([{"role": "tool", "content": "x"}], "input[0].role"),
        ([{**CALL, "role": "tool"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], "input[0].content[0].type"),
        ([{"type": "function_call", "name": "f"}], "input[0].call_id"),
        ([{"type": "function_call", "call_id": "c", "name": ""}], "input[0].name"),
        ([CALL, {"type": "function_call_output", "call_id": "c1"}], "input[1].output"),
        ([CALL, {**RESULT, "output": [{"type": "input_image"}]}], "input[1].output[0].type"),
        ([RESULT, CALL], "input[0].call_id"),
        ([CALL, {**RESULT, "call_id": "c2"}], "input[1].call_id"),
        ([{"type": "reasoning", "content": [{"type": "thinking"}]}], "input[0].content[0].type"),
        ([{"type": "web_search_call"}], "input[0].type"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_place(items: list[dict[str, Any]], param: str) -> None:
    assert refusal(*items) == param


def test_a_result_may_be_of_a_call_of_the_history() -> None:
    check_calls(checked(CALL), checked(RESULT))


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INPUT_ITEMS", 3)
    message = {"role": "user", "content": "x"}
    assert len(checked(*[message] * 3)) == 3
    assert refusal(*[message] * 4) == "input"


def test_an_item_that_was_kept_is_the_same_again() -> None:
    thought = {"type": "reasoning", "content": "hm"}
    for item in checked({"role": "user", "content": "é"}, thought, CALL, RESULT):
        assert decode_item(msgspec.json.encode(item)) == item
