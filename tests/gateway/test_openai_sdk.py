"""The official Python client against the scripted engine: sync and async, streamed and plain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest

from engine.scripted import Script
from tests.gateway.house import House, text_ids

Make = Callable[..., Any]
USER: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def house(make_house: Make) -> House:
    made: House = await make_house(api_keys=("key",))
    return made


@pytest.fixture
async def client(house: House) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="key", max_retries=0) as client:
        yield client


async def test_chat(house: House, client: openai.AsyncOpenAI) -> None:
    house.say(text_ids("Hello"), num_cached_tokens=3)
    answer = await client.chat.completions.create(
        model="tiny", messages=USER, logprobs=True, top_logprobs=1, seed=5, stop=["x"], n=1, user="u"
    )
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello", "stop")
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(entry.token for entry in choice.logprobs.content) == "Hello"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_streamed_chat(house: House, client: openai.AsyncOpenAI) -> None:
    house.say(text_ids("Hé!"))
    stream = await client.chat.completions.create(
        model="tiny", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hé!"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


async def test_completions(house: House, client: openai.AsyncOpenAI) -> None:
    house.say(text_ids("Hello"))
    answer = await client.completions.create(model="tiny", prompt="Hi", logprobs=2, extra_body={"top_k": 5})
    assert answer.choices[0].text == "Hello"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == list("Hello")
    house.say(text_ids("Hello"))
    stream = await client.completions.create(model="tiny", prompt=[72, 105], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello"


def blocking_calls(url: str) -> list[str]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client:
        plain = client.chat.completions.create(model="tiny", messages=USER)
        stream = client.completions.create(model="tiny", prompt="Hi", stream=True)
        models = [model.id for model in client.models.list()]
        return [
            plain.choices[0].message.content or "",
            "".join(chunk.choices[0].text for chunk in stream),
            *models,
            client.models.retrieve("tiny").id,
        ]


async def test_the_blocking_client(house: House) -> None:
    house.say(text_ids("one"))
    house.say(text_ids("two"))
    assert await asyncio.to_thread(blocking_calls, house.url) == ["one", "two", "tiny", "tiny"]


async def test_errors_have_the_clients_types(house: House, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        await client.completions.create(model="other", prompt="Hi")
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await client.completions.create(model="tiny", prompt="Hi", temperature=5)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as tools:
        await client.chat.completions.create(
            model="tiny", messages=USER, tools=[{"type": "function", "function": {"name": "no good"}}]
        )
    assert tools.value.param == "tools[0].function.name"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()


async def test_a_failure_in_mid_stream_raises_in_the_client(house: House, client: openai.AsyncOpenAI) -> None:
    house.script(Script(token_ids=text_ids("abc"), fail_after=2))
    stream = await client.completions.create(model="tiny", prompt="Hi", stream=True)
    with pytest.raises(openai.APIError, match="could not finish"):
        async for _ in stream:
            pass


async def test_closing_a_stream_early_frees_the_engine(house: House, client: openai.AsyncOpenAI) -> None:
    house.engine.step_s = 0.002
    house.script(Script(token_ids=text_ids("a"), endless=True))
    stream = await client.completions.create(model="tiny", prompt="Hi", stream=True, max_tokens=200)
    async for _ in stream:
        break
    await stream.close()
    await house.idle()
    assert len(house.engine.record.aborted) == 1
