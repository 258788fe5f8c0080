"""/v1/responses through the official openai client for Python, sync and async, against the live server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from tests.clients.conftest import KEY, MODEL
from tests.support.server import Server

pytestmark = pytest.mark.timeout(300)

QUESTION = "Name three primary colors."
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 30}
LONG: dict[str, Any] = {"model": MODEL, "max_output_tokens": 1500, "extra_body": {"ignore_eos": True}}
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


class Animal(pydantic.BaseModel):
    kind: Literal["cat", "dog", "fox"]
    legs: Literal[2, 4]


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def whole(server: Server) -> Response:
    """What the model answers to the question, however it is asked."""
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:
        return client.responses.create(**GREEDY, input=QUESTION)


def async_client(server: Server) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


def text_of(events: Sequence[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def numbers_of(events: Sequence[Any]) -> list[int]:
    return [event.sequence_number for event in events]


# ---- turns -----------------------------------------------------------------------------------------


def test_a_conversation_of_two_turns(client: OpenAI) -> None:
    first = client.responses.create(**GREEDY, input=QUESTION, instructions="Be brief.", metadata={"a": "b"})
    assert "red" in first.output_text.lower()
    assert (first.model, first.metadata) == (MODEL, {"a": "b"})
    second = client.responses.create(
        **GREEDY,
        input="And which of them is the sky?",
        instructions="Be brief.",
        previous_response_id=first.id,
    )
    assert second.output_text
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0
    assert client.responses.retrieve(second.id) == second


def test_what_is_sent_as_items_is_what_is_kept_as_turns(client: OpenAI) -> None:
    """A fork: two turns go on from one, and neither knows of the other."""
    first = client.responses.create(**GREEDY, input=QUESTION)
    items: Any = [{"role": "user", "content": QUESTION}, *(item.to_dict() for item in first.output)]
    for text in ("And one more?", "Spell the first."):
        kept = client.responses.create(**GREEDY, input=text, previous_response_id=first.id)
        sent = client.responses.create(
            **GREEDY, input=[*items, {"role": "user", "content": text}], store=False
        )
        assert kept.output_text == sent.output_text
        assert kept.usage is not None and sent.usage is not None
        assert kept.usage.input_tokens == sent.usage.input_tokens


def test_a_chat_and_a_response_are_the_same_answer(client: OpenAI, whole: Response) -> None:
    chat = client.chat.completions.create(
        model=MODEL, temperature=0, max_tokens=30, messages=[{"role": "user", "content": QUESTION}]
    )
    assert whole.output_text == chat.choices[0].message.content


def test_turns_of_a_conversation(client: OpenAI) -> None:
    conversation = client.conversations.create(items=[{"role": "developer", "content": "Be brief."}])
    short: dict[str, Any] = {**GREEDY, "max_output_tokens": 4, "conversation": conversation.id}
    first = client.responses.create(**short, input="One.")
    assert first.conversation is not None and first.conversation.id == conversation.id
    second = client.responses.create(**short, input="Two.")
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    roles = [getattr(item, "role", None) for item in items]
    assert roles == ["developer", "user", "assistant", "user", "assistant"]
    client.conversations.delete(conversation.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**short, input="Three.")


def test_input_items_page_by_page(client: OpenAI) -> None:
    first = client.responses.create(**{**GREEDY, "max_output_tokens": 4}, input="One.")
    second = client.responses.create(
        **{**GREEDY, "max_output_tokens": 4}, input="Two.", previous_response_id=first.id
    )
    pages = client.responses.input_items.list(second.id, limit=1, order="asc")
    items = list(pages)  # the client asks for page after page
    assert [item.type for item in items] == ["message"] * 3
    roles = [getattr(item, "role", None) for item in items]
    assert roles == ["user", "assistant", "user"]
    newest = client.responses.input_items.list(second.id, limit=1)
    assert newest.data[0].id == items[-1].id


# ---- streams ---------------------------------------------------------------------------------------


def test_a_stream_is_what_is_told_plain(client: OpenAI, whole: Response) -> None:
    events = list(client.responses.create(**GREEDY, input=QUESTION, stream=True))
    assert numbers_of(events) == list(range(len(events)))
    assert text_of(events) == whole.output_text
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    assert last.response.usage is not None and whole.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens


def test_the_clients_own_accumulator_takes_the_stream(client: OpenAI) -> None:
    with client.responses.stream(**GREEDY, input=QUESTION) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == text
    assert "red" in text.lower()


def test_a_stream_goes_on_from_every_event(client: OpenAI) -> None:
    options = {**GREEDY, "max_output_tokens": 6}
    events = list(client.responses.create(**options, input=QUESTION, stream=True))
    created = events[0]
    assert created.type == "response.created"
    for known in numbers_of(events):
        rest = list(client.responses.retrieve(created.response.id, stream=True, starting_after=known))
        assert text_of(events[: known + 1]) + text_of(rest) == text_of(events)
        assert numbers_of(events[: known + 1] + rest) == numbers_of(events)


def test_who_leaves_finds_the_rest_again(client: OpenAI, whole: Response) -> None:
    stream = client.responses.create(**GREEDY, input=QUESTION, stream=True)
    seen = [next(iter(stream)) for _ in range(6)]
    stream.close()
    created = seen[0]
    assert created.type == "response.created"
    with client.responses.stream(
        response_id=created.response.id, starting_after=seen[-1].sequence_number
    ) as rest:
        seen += list(rest)  # type: ignore[arg-type]
    assert text_of(seen) == whole.output_text
    assert client.responses.retrieve(created.response.id).output_text == whole.output_text


async def test_streams_side_by_side(server: Server) -> None:
    async with async_client(server) as client:

        async def one(number: int) -> str:
            short = {**GREEDY, "max_output_tokens": 12}
            stream = await client.responses.create(**short, input=f"Say the number {number}.", stream=True)
            events = [event async for event in stream]
            assert numbers_of(events) == list(range(len(events)))
            return text_of(events)

        assert all(await asyncio.gather(*map(one, range(4))))


# ---- background, cancel, delete --------------------------------------------------------------------


def finished(client: OpenAI, response_id: str) -> Response:
    deadline = time.monotonic() + 60
    while (found := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_in_the_background_it_is_the_same(client: OpenAI, whole: Response) -> None:
    queued = client.responses.create(**GREEDY, input=QUESTION, background=True)
    assert queued.status in ("queued", "in_progress")
    assert finished(client, queued.id).output_text == whole.output_text


def test_one_that_runs_is_cancelled_and_nothing_follows_it(server: Server, client: OpenAI) -> None:
    running = client.responses.create(**LONG, input="Go on.", background=True)
    with pytest.raises(openai.ConflictError) as early:
        client.responses.create(**GREEDY, input="And?", previous_response_id=running.id)
    assert early.value.response.headers["retry-after"]
    cancelled = client.responses.cancel(running.id)
    assert (cancelled.status, cancelled.output) == ("cancelled", [])
    assert server.wait_idle()["stats"]["blocks_in_use"] == 0
    with pytest.raises(openai.NotFoundError) as late:
        client.responses.create(**GREEDY, input="And?", previous_response_id=running.id)
    assert late.value.code == "previous_response_not_found"


def test_what_is_deleted_is_gone_with_its_kv(client: OpenAI) -> None:
    text = "The tide comes in twice a day, and goes out as often. " * 8
    first = client.responses.create(**{**GREEDY, "max_output_tokens": 4}, input=text)
    client.responses.delete(first.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(first.id)
    again = client.responses.create(**{**GREEDY, "max_output_tokens": 4}, input=text)
    assert again.usage is not None
    assert again.usage.input_tokens_details.cached_tokens < 16
    assert again.output_text == first.output_text


def test_what_is_not_stored_is_nowhere(client: OpenAI) -> None:
    answer = client.responses.create(**{**GREEDY, "max_output_tokens": 4}, input="Hi", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**GREEDY, input="And?", previous_response_id=answer.id)


def test_a_turn_can_be_prepared(client: OpenAI) -> None:
    text = "Remember the moon, the wind and the sea. " * 8
    ready = client.responses.create(
        **GREEDY, input=text, extra_body={"prompt_cache_options": {"prewarm": True}}
    )
    assert (ready.status, ready.output) == ("completed", [])
    answer = client.responses.create(
        **{**GREEDY, "max_output_tokens": 4}, input="What?", previous_response_id=ready.id
    )
    assert ready.usage is not None and answer.usage is not None
    assert ready.usage.output_tokens == 0
    assert answer.usage.input_tokens_details.cached_tokens >= ready.usage.input_tokens // 16 * 16 - 16


# ---- forms and tools -------------------------------------------------------------------------------


def test_parse_gives_the_object(client: OpenAI) -> None:
    answer = client.responses.parse(**GREEDY, input="Describe an animal.", text_format=Animal)
    assert isinstance(answer.output_parsed, Animal)


async def test_a_streamed_form_is_parsed_at_its_end(server: Server) -> None:
    async with (
        async_client(server) as client,
        client.responses.stream(**GREEDY, input="Describe an animal.", text_format=Animal) as stream,
    ):
        final = await stream.get_final_response()
    assert isinstance(final.output_parsed, Animal)


def test_a_tool_is_called_and_answered(client: OpenAI) -> None:
    first = client.responses.create(
        **{**GREEDY, "max_output_tokens": 150}, input="How is Paris?", tools=[WEATHER], tool_choice="required"
    )
    call = first.output[0]
    assert call.type == "function_call"
    assert (call.name, call.status) == ("get_weather", "completed")
    assert set(json.loads(call.arguments)) == {"city", "unit"}
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": '{"degrees": 21}'}
        for item in first.output
        if item.type == "function_call"
    ]
    second = client.responses.create(
        **GREEDY, input=results, tools=[WEATHER], tool_choice="none", previous_response_id=first.id
    )
    assert second.output_text


def test_streamed_calls_accumulate(client: OpenAI) -> None:
    options: dict[str, Any] = {**GREEDY, "max_output_tokens": 150, "tools": [WEATHER]}
    named: Any = {"type": "function", "name": "get_weather"}
    with client.responses.stream(**options, input="How is Paris?", tool_choice=named) as stream:
        deltas = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    assert call.arguments == "".join(deltas)
    assert set(json.loads(call.arguments)) == {"city", "unit"}


def test_log_probabilities_join_to_the_text(client: OpenAI) -> None:
    answer = client.responses.create(
        **GREEDY, input=QUESTION, include=["message.output_text.logprobs"], top_logprobs=2
    )
    (message,) = answer.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text" and part.logprobs is not None
    assert b"".join(bytes(entry.bytes) for entry in part.logprobs).decode() == part.text
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)


# ---- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"extra_body": {"tempreature": 1}}, "tempreature"),
        ({"input": "word " * 4000}, "input"),
    ],
)
def test_a_bad_request_names_its_parameter(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        client.responses.create(**{**GREEDY, "input": "Hi", **fields})
    assert caught.value.param == param
    assert caught.value.request_id
