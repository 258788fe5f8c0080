"""The official client with tools: plain, streamed with its own accumulation, in the loop of an agent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest

from tests.gateway import families
from tests.gateway.house import House, text_ids
from tests.gateway.test_openai_tools import F, tool

Make = Callable[..., Any]
USER: Any = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [tool(**F), tool(name="g")]


@pytest.fixture
async def house(make_house: Make) -> House:
    made: House = await make_house(info={"chat_template": families.THINKING, "max_model_len": 8192})
    return made


@pytest.fixture
async def client(house: House) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="key", max_retries=0) as client:
        yield client


@pytest.mark.case("D7")
@pytest.mark.parametrize("per_step", [1, 4, 1000])
async def test_the_clients_own_accumulation(house: House, client: openai.AsyncOpenAI, per_step: int) -> None:
    house.say(text_ids("<think>hm</think>Let me see.\n" + families.ANSWERS["hermes"]), per_step=per_step)
    events = []
    async with client.chat.completions.stream(model="tiny", messages=USER, tools=TOOLS) as stream:
        async for event in stream:
            events.append(event.type)
        final = await stream.get_final_completion()
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == "hm"
    calls = choice.message.tool_calls or []
    assert [call.function.name for call in calls] == ["f", "g"]
    assert [json.loads(call.function.arguments) for call in calls] == [{"x": "é"}, {}]
    assert all(call.id.startswith("call_") and call.type == "function" for call in calls)
    assert events.count("tool_calls.function.arguments.done") == 2


async def test_an_agents_loop(house: House, client: openai.AsyncOpenAI) -> None:
    """Ask, call, tell the result, answer: with the client's own objects going back as they came."""
    messages = list(USER)
    house.say(text_ids(families.ANSWERS["hermes"]))
    answer = await client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    messages.append(message.model_dump())
    for call in message.tool_calls or []:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "42"})
    house.say(text_ids("It is 42."))
    answer = await client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("It is 42.", "stop")
    assert answer.choices[0].message.tool_calls is None
    prompt = bytes(i for i in house.engine.record.submitted[-1].prompt_token_ids if i < 256).decode()
    assert "<tool_response>42</tool_response>\n<tool_response>42</tool_response>" in prompt
    assert '<tool_call>{"name": "f", "arguments": {"x": "é"}}</tool_call>' in prompt


@pytest.mark.parametrize("per_step", [1, 1000])
async def test_forced_calls_streamed(house: House, client: openai.AsyncOpenAI, per_step: int) -> None:
    for choice, text, reason in (
        ({"type": "function", "function": {"name": "f"}}, '{"x": "é"}', "stop"),
        ("required", '[{"name": "f", "arguments": {"x": "é"}}]', "tool_calls"),
    ):
        house.say(text_ids(text), per_step=per_step)
        options: Any = {"messages": USER, "tools": TOOLS, "tool_choice": choice}
        async with client.chat.completions.stream(model="tiny", **options) as stream:
            final = (await stream.get_final_completion()).choices[0]
        calls = final.message.tool_calls or []
        assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
            ("f", {"x": "é"})
        ]
        assert final.finish_reason == reason
        assert final.message.content is None


async def test_the_old_form(house: House, client: openai.AsyncOpenAI) -> None:
    house.say(text_ids(families.ANSWERS["hermes"]))
    functions: Any = [F, {"name": "g"}]
    answer = await client.chat.completions.create(model="tiny", messages=USER, functions=functions)
    call = answer.choices[0].message.function_call
    assert call is not None
    assert (call.name, json.loads(call.arguments)) == ("f", {"x": "é"})
    assert answer.choices[0].finish_reason == "function_call"
    back: Any = [
        *USER,
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": call.name, "arguments": call.arguments},
        },
        {"role": "function", "name": "f", "content": "42"},
    ]
    house.say(text_ids("It is 42."))
    answer = await client.chat.completions.create(model="tiny", messages=back, functions=functions)
    assert answer.choices[0].message.content == "It is 42."


async def test_a_thought_is_counted_for_the_client(house: House, client: openai.AsyncOpenAI) -> None:
    house.say(text_ids("<think>hm</think>Hi"))
    answer = await client.chat.completions.create(model="tiny", messages=USER, reasoning_effort="low")
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert 0 < (answer.usage.completion_tokens_details.reasoning_tokens or 0) < answer.usage.completion_tokens
