"""Tools with the real model: its template knows none, so they go as text; a grammar holds forced calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.server import Server, running_server

pytestmark = pytest.mark.timeout(300)
USER: Any = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "place": {"$ref": "#/$defs/Place"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "place", "unit"],
    "additionalProperties": False,
    "$defs": {
        "Place": {
            "type": "object",
            "properties": {"indoors": {"type": "boolean"}},
            "required": ["indoors"],
            "additionalProperties": False,
        }
    },
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather now", "parameters": PARAMETERS},
    },
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "parameters": {
                "type": "object",
                "properties": {"zone": {"enum": ["UTC", "CET"]}},
                "required": ["zone"],
            },
        },
    },
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server("--device-kv", "256MiB", "--max-model-len", "2048") as server:
        yield server
        assert server.wait_idle()["problems"] == []
        assert server.stop() == 0, server.log


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_tools_are_shown_as_text_and_an_answer_comes(server: Server, client: openai.OpenAI) -> None:
    status, body = server.post("/tokenize", {"messages": USER, "tools": TOOLS})
    assert status == 200, body
    tokens = json.loads(body)["tokens"]
    prompt = json.loads(server.post("/detokenize", {"tokens": tokens})[1])["prompt"]
    assert prompt.startswith("<|im_start|>system\nYou can call the functions below")
    assert '"name": "get_weather"' in prompt
    answer = client.chat.completions.create(
        model="SmolLM2-135M-Instruct", messages=USER, tools=TOOLS, max_tokens=20, temperature=0
    )
    message = answer.choices[0].message
    assert message.content or message.tool_calls
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(tokens)


def test_a_history_of_calls_is_read(client: openai.OpenAI) -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    messages: Any = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "It is 21 degrees celsius in Paris."},
    ]
    answer = client.chat.completions.create(
        model="SmolLM2-135M-Instruct", messages=messages, max_tokens=40, temperature=0
    )
    assert "21" in (answer.choices[0].message.content or "")


def test_models_tell_what_is_supported(client: openai.OpenAI) -> None:
    extra = client.models.list().data[0].model_extra
    assert extra is not None
    assert extra["capabilities"]["tools"] is True
    assert extra["capabilities"]["tool_call_parser"] == "hermes"
    assert extra["capabilities"]["reasoning_parser"] is None


def check_weather(arguments: str) -> None:
    found = json.loads(arguments)
    assert found.keys() == {"city", "place", "unit"}
    assert isinstance(found["city"], str)
    assert isinstance(found["place"]["indoors"], bool)
    assert found["unit"] in ("celsius", "fahrenheit")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_named_function_is_called(client: openai.OpenAI, seed: int) -> None:
    options: Any = {
        "model": "SmolLM2-135M-Instruct", "messages": USER, "tools": TOOLS, "seed": seed, "temperature": 1,
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "max_tokens": 200,
    }  # fmt: skip
    plain = client.chat.completions.create(**options).choices[0]
    with client.chat.completions.stream(**options) as stream:
        streamed = stream.get_final_completion().choices[0]
    for choice in (plain, streamed):
        (call,) = choice.message.tool_calls or []
        assert call.function.name == "get_weather"
        check_weather(call.function.arguments)
        assert choice.finish_reason == "stop"
        assert choice.message.content is None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_some_tool_is_called_if_one_is_required(client: openai.OpenAI, seed: int) -> None:
    answer = client.chat.completions.create(
        model="SmolLM2-135M-Instruct", messages=USER, tools=TOOLS, seed=seed, temperature=1, max_tokens=300,
        tool_choice="required", parallel_tool_calls=False,
    )  # fmt: skip
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls"
    if call.function.name == "get_weather":  # type: ignore[union-attr]
        check_weather(call.function.arguments)  # type: ignore[union-attr]
    else:
        assert json.loads(call.function.arguments)["zone"] in ("UTC", "CET")  # type: ignore[union-attr]
