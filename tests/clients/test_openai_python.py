"""The official openai client for Python over every feature, sync and async, against the live server.

What it shares with ``tests/test_openai_client.py`` is there: greedy text, stops, seeds, usage, log
probabilities, several answers.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.clients.conftest import KEY, MODEL, PLACES
from tests.support.server import Server

pytestmark = pytest.mark.timeout(300)

USER: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 16}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
NOTHING: Any = {"type": "object", "properties": {}}
TIME: Any = {"type": "function", "function": {"name": "get_time", "parameters": NOTHING}}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


class Animal(pydantic.BaseModel):
    kind: Literal["cat", "dog", "fox"]
    legs: Literal[2, 4]
    tame: bool


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def async_client(server: Server) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


# ---- models --------------------------------------------------------------------------------------


def test_models_are_listed_and_found(client: OpenAI) -> None:
    (card,) = client.models.list()
    assert card.id == MODEL
    assert card.object == "model"
    assert client.models.retrieve(MODEL) == card
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


# ---- the answer and what is around it --------------------------------------------------------------


def test_the_raw_response_has_its_headers(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        **{**GREEDY, "max_tokens": 10**6}, messages=USER, extra_headers={"x-request-id": "mine-7"}, stop=["."]
    )
    assert raw.headers["x-request-id"] == raw.request_id == "mine-7"
    assert int(raw.headers["x-tidegate-max-tokens-clamped"]) < 2048
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.model == MODEL
    assert answer.system_fingerprint


def test_a_raw_stream_can_be_read_line_by_line(client: OpenAI) -> None:
    with client.completions.with_streaming_response.create(**GREEDY, prompt="Once", stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith(("data: ", ":")) for line in lines)


def test_harmless_parameters_change_nothing(client: OpenAI) -> None:
    plain = client.chat.completions.create(**GREEDY, messages=USER)
    dressed = client.chat.completions.create(
        **GREEDY,
        messages=USER,
        user="u",
        metadata={"team": "blue"},
        safety_identifier="s",
        prompt_cache_key="k",
        store=False,
        parallel_tool_calls=True,
        response_format={"type": "text"},
        presence_penalty=0,
        logit_bias={},
    )
    assert dressed.choices[0].message.content == plain.choices[0].message.content


def test_what_vllm_has_beyond_openai(client: OpenAI) -> None:
    extras = {"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1, "min_tokens": 4, "ignore_eos": True}
    answer = client.completions.create(model=MODEL, prompt="Hi", max_tokens=6, seed=3, extra_body=extras)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


def test_logit_bias_forces_a_token(client: OpenAI) -> None:
    answer = client.completions.create(**GREEDY, prompt="Hi", logit_bias={"260": 100})
    assert answer.choices[0].text
    assert len(set(answer.choices[0].text.split())) == 1


def test_every_choice_of_a_streamed_chat_is_what_it_is_plain(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": USER, "n": 3, "temperature": 0, "max_tokens": 8}
    plain = client.chat.completions.create(**options)
    texts, roles = {0: "", 1: "", 2: ""}, list[int]()
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles += [choice.index] if choice.delta.role else []
    assert [texts[index] for index in range(3)] == [choice.message.content for choice in plain.choices]
    assert sorted(roles) == [0, 1, 2]


def test_the_clients_own_accumulator_takes_the_stream(client: OpenAI) -> None:
    """It takes an answer that was cut short for an error, so this one is short by itself."""
    messages: Any = [{"role": "user", "content": "Name three primary colors."}]
    options: dict[str, Any] = {**GREEDY, "max_tokens": 60, "messages": messages}
    plain = client.chat.completions.create(**options)
    with client.chat.completions.stream(**options, stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == plain.choices[0].message.content
    assert final.choices[0].finish_reason == plain.choices[0].finish_reason
    assert final.usage is not None and plain.usage is not None
    assert final.usage.completion_tokens == plain.usage.completion_tokens


def test_streamed_log_probabilities_are_the_plain_ones(client: OpenAI) -> None:
    options: dict[str, Any] = {**GREEDY, "messages": USER, "logprobs": True, "top_logprobs": 2}
    plain = client.chat.completions.create(**options).choices[0]
    streamed = []
    for chunk in client.chat.completions.create(**options, stream=True):
        found = chunk.choices[0].logprobs
        streamed += (found.content or []) if found else []
    assert plain.logprobs is not None and plain.logprobs.content is not None
    assert [entry.token for entry in streamed] == [entry.token for entry in plain.logprobs.content]
    for ours, theirs in zip(streamed, plain.logprobs.content, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=0.05)
        assert math.exp(ours.logprob) <= 1
        assert len(ours.top_logprobs) == 2


@pytest.mark.case("B4")
def test_cached_tokens_of_a_batch_are_those_of_all_its_prompts(client: OpenAI) -> None:
    prompts = ["The tide comes in twice a day. " * count for count in (8, 16, 1)]
    alone = []
    for prompt in (*prompts, *prompts):
        usage = client.completions.create(**{**GREEDY, "max_tokens": 1}, prompt=prompt).usage
        assert usage is not None and usage.prompt_tokens_details is not None
        alone.append(usage.prompt_tokens_details.cached_tokens or 0)
    together = client.completions.create(**{**GREEDY, "max_tokens": 1}, prompt=prompts).usage
    chunks = client.completions.create(
        **{**GREEDY, "max_tokens": 1}, prompt=prompts, stream=True, stream_options={"include_usage": True}
    )
    for usage in (together, list(chunks)[-1].usage):
        assert usage is not None and usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == sum(alone[3:]) > 0


# ---- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 5_000_000}, "n"),
        ({"stop": ["x"] * 5}, "stop"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"tempreature": 1}}, "tempreature"),
    ],
)
def test_a_bad_request_names_its_parameter(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**GREEDY, **fields}, messages=USER)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


def test_each_kind_of_error_has_its_own_type(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(**GREEDY, prompt="word " * 4000)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-4", prompt="Hi")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError) as stranger:
        client.with_options(api_key="wrong").completions.create(**GREEDY, prompt="Hi")
    assert stranger.value.code == "invalid_api_key"
    with pytest.raises(openai.APIStatusError) as too_large:
        client.completions.create(**GREEDY, prompt="x" * (9 * 2**20))
    assert too_large.value.status_code == 413
    with pytest.raises(openai.BadRequestError) as suffix:
        client.completions.create(**GREEDY, prompt="Hi", suffix="the end")
    assert suffix.value.param == "suffix"


def _occupy(client: OpenAI, scope: ExitStack) -> None:
    """Streams in every place of the house until the scope ends."""
    options: dict[str, Any] = {"model": MODEL, "prompt": "Once", "max_tokens": 150, "n": PLACES // 2}
    for _ in range(2):
        stream = client.completions.create(**options, stream=True, extra_body={"ignore_eos": True})
        scope.callback(stream.close)


@pytest.mark.case("E15")
def test_a_full_house_is_a_rate_limit_error_with_a_hint(client: OpenAI) -> None:
    with ExitStack() as scope:
        _occupy(client, scope)
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**GREEDY, prompt="Hi")
        assert caught.value.code == "server_busy"
        assert int(caught.value.response.headers["retry-after"]) >= 1


def test_the_client_comes_back_when_it_was_told_to(client: OpenAI) -> None:
    """Its own first pause would be half a second; it honors the server's hint instead."""
    asked, hints = list[float](), list[float]()

    def note(request: httpx.Request) -> None:
        asked.append(time.monotonic())

    def note_hint(response: httpx.Response) -> None:
        hints.extend(float(ms) / 1000 for name, ms in response.headers.items() if name == "retry-after-ms")

    patient = OpenAI(
        base_url=client.base_url,
        api_key=KEY,
        max_retries=3,
        http_client=httpx.Client(event_hooks={"request": [note], "response": [note_hint]}),
    )
    with patient, ExitStack() as scope:
        _occupy(client, scope)
        threading.Timer(0.3, scope.pop_all().close).start()
        assert patient.completions.create(**GREEDY, prompt="Hi").choices[0].text
    assert len(asked) == 2 and len(hints) == 1
    assert asked[1] - asked[0] >= 0.9 * hints[0] >= 0.9


def test_a_client_that_gives_up_leaves_nothing(server: Server, client: OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).completions.create(
            model=MODEL, prompt="Once", max_tokens=1900, extra_body={"ignore_eos": True}
        )
    assert server.wait_idle(timeout_s=10)["stats"]["blocks_in_use"] == 0


async def test_a_cancelled_task_leaves_nothing(server: Server) -> None:
    async with async_client(server) as client:
        asks = [
            asyncio.create_task(
                client.completions.create(
                    model=MODEL, prompt="Once", max_tokens=1900, extra_body={"ignore_eos": True}
                )
            )
            for _ in range(3)
        ]
        await asyncio.sleep(0.2)
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
        assert all(ask.cancelled() for ask in asks)
    assert server.wait_idle(timeout_s=10)["stats"]["blocks_in_use"] == 0


async def test_async_streams_of_both_kinds_run_side_by_side(server: Server) -> None:
    async with async_client(server) as client:

        async def chat() -> str:
            chunks = await client.chat.completions.create(**GREEDY, messages=USER, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        async def completion() -> str:
            chunks = await client.completions.create(**GREEDY, prompt="The sea", stream=True)
            return "".join([chunk.choices[0].text async for chunk in chunks])

        chats = await asyncio.gather(*(chat() for _ in range(3)), *(completion() for _ in range(3)))
        models = [model.id async for model in client.models.list()]
    assert all(chats)
    assert models == [MODEL]


# ---- structured output -----------------------------------------------------------------------------


def test_parse_gives_the_pydantic_object(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        **{**GREEDY, "max_tokens": 100},
        messages=[{"role": "user", "content": "Name an animal."}],
        response_format=Animal,
    )
    assert isinstance(answer.choices[0].message.parsed, Animal)
    assert answer.choices[0].finish_reason == "stop"


async def test_parse_is_there_for_async_too(server: Server) -> None:
    async with async_client(server) as client:
        answer = await client.chat.completions.parse(
            **{**GREEDY, "max_tokens": 100}, messages=USER, response_format=Animal
        )
    assert isinstance(answer.choices[0].message.parsed, Animal)


def test_a_streamed_object_is_parsed_too(client: OpenAI) -> None:
    with client.chat.completions.stream(
        **{**GREEDY, "max_tokens": 100}, messages=USER, response_format=Animal
    ) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Animal)


def test_json_mode_gives_json(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": 'Answer in JSON: {"city": "Paris"}'}],
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=200,
    ).choices[0]
    if answer.finish_reason == "stop":  # cut short it is the beginning of an object
        assert isinstance(json.loads(answer.message.content or ""), dict)
    assert (answer.message.content or "").lstrip().startswith("{")


def test_a_wrong_schema_is_a_bad_request(client: OpenAI) -> None:
    wrong: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**GREEDY, messages=USER, response_format=wrong)
    assert (caught.value.param or "").startswith("response_format")


def test_a_choice_is_one_of_its_texts(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        **GREEDY, messages=USER, extra_body={"structured_outputs": {"choice": ["sunny", "rainy"]}}
    )
    assert answer.choices[0].message.content in ("sunny", "rainy")


# ---- tools -----------------------------------------------------------------------------------------


def check_weather(arguments: str) -> None:
    given = json.loads(arguments)
    assert set(given) == {"city", "unit"}
    assert isinstance(given["city"], str) and given["unit"] in ("C", "F")


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_tool_that_must_be_called_is_called(client: OpenAI, choice: Any) -> None:
    answer = client.chat.completions.create(
        **{**GREEDY, "max_tokens": 150}, messages=USER, tools=[WEATHER], tool_choice=choice
    ).choices[0]
    assert answer.finish_reason in (("tool_calls",) if choice == "required" else ("stop", "tool_calls"))
    assert answer.message.tool_calls
    call = answer.message.tool_calls[0]
    assert call.type == "function" and call.id
    assert call.function.name == "get_weather"
    check_weather(call.function.arguments)


def test_streamed_tool_calls_accumulate(client: OpenAI) -> None:
    calls: dict[int, dict[str, str]] = {}
    reasons = []
    for chunk in client.chat.completions.create(
        **{**GREEDY, "max_tokens": 150}, messages=USER, tools=[WEATHER], tool_choice="required", stream=True
    ):
        for choice in chunk.choices:
            reasons += [choice.finish_reason] if choice.finish_reason else []
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                assert not (call["id"] and part.id and part.id != call["id"])
                call["id"] = part.id or call["id"]
                assert part.function is not None
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
    assert reasons == ["tool_calls"]
    assert sorted(calls) == list(range(len(calls)))
    assert len({call["id"] for call in calls.values()}) == len(calls)
    for call in calls.values():
        assert call["name"] == "get_weather"
        check_weather(call["arguments"])


def test_the_accumulator_takes_tool_calls(client: OpenAI) -> None:
    with client.chat.completions.stream(
        **{**GREEDY, "max_tokens": 150}, messages=USER, tools=[WEATHER], tool_choice="required"
    ) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.tool_calls
    check_weather(final.message.tool_calls[0].function.arguments)


def test_a_conversation_goes_on_after_a_tool_was_called(client: OpenAI) -> None:
    options: dict[str, Any] = {**GREEDY, "max_tokens": 150, "tools": [WEATHER, TIME]}
    first = client.chat.completions.create(**options, messages=USER, tool_choice=NAMED).choices[0]
    assert first.message.tool_calls
    answer = {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": '{"degrees": 21}'}
    history: Any = [*USER, first.message.model_dump(exclude_none=True), answer]
    options["max_tokens"] = 12
    second = client.chat.completions.create(**options, messages=history, tool_choice="none").choices[0]
    assert second.message.content
    assert not second.message.tool_calls


def test_a_tool_that_is_not_there_cannot_be_chosen(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**GREEDY, messages=USER, tools=[TIME], tool_choice=NAMED)
    assert (caught.value.param or "").startswith("tool_choice")


# ---- the rest ----------------------------------------------------------------------------------------


@pytest.mark.case("B10")
def test_echo_puts_the_prompt_before_the_answer(client: OpenAI) -> None:
    prompt = "Line one\nLine 2: 3.14159,"
    answer = client.completions.create(**GREEDY, prompt=prompt, echo=True, logprobs=1).choices[0]
    assert answer.text.startswith(prompt)
    assert answer.logprobs is not None and answer.logprobs.tokens and answer.logprobs.token_logprobs
    assert "".join(answer.logprobs.tokens) == answer.text
    assert answer.logprobs.token_logprobs[0] is None
    assert all(value is not None for value in answer.logprobs.token_logprobs[1:])


@pytest.mark.case("B11")
def test_echo_without_an_answer_scores_the_prompt(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": "The sea is blue.", "echo": True, "max_tokens": 0}
    first, second = (client.completions.create(**options, logprobs=1).choices[0] for _ in range(2))
    assert first.text == "The sea is blue."
    assert first.finish_reason == "length"
    assert first.logprobs is not None and second.logprobs is not None
    assert first.logprobs.tokens == second.logprobs.tokens
    for ours, theirs in zip(
        first.logprobs.token_logprobs or [], second.logprobs.token_logprobs or [], strict=True
    ):
        assert ours == pytest.approx(theirs, abs=0.05)


def test_prompt_log_probabilities_as_vllm_has_them(client: OpenAI) -> None:
    answer = client.completions.create(**GREEDY, prompt="The sea is blue.", extra_body={"prompt_logprobs": 1})
    assert answer.usage is not None
    extra = answer.choices[0].model_extra or {}
    entries = extra.get("prompt_logprobs") or (answer.model_extra or {})["prompt_logprobs"]
    assert entries[0] is None
    assert len(entries) == answer.usage.prompt_tokens
    assert all(entry for entry in entries[1:])


@pytest.mark.parametrize("tier", ["auto", "default", "flex", "priority"])
def test_every_service_tier_is_served(client: OpenAI, tier: Any) -> None:
    answer = client.chat.completions.create(**GREEDY, messages=USER, service_tier=tier)
    assert answer.choices[0].message.content
    assert answer.service_tier in (None, "default", "flex", "priority")


def test_an_unknown_service_tier_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**GREEDY, messages=USER, service_tier="golden")  # type: ignore[call-overload]
    assert caught.value.param == "service_tier"


def test_store_is_accepted(client: OpenAI) -> None:
    assert client.chat.completions.create(**GREEDY, messages=USER, store=True).choices[0].message.content


def test_usage_can_come_with_every_chunk(client: OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(client.completions.create(**GREEDY, prompt="Hi", stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert len(counts) == len(chunks)
    assert counts == sorted(counts)
    assert counts[-1] > 0


def test_special_tokens_are_shown_on_request(client: OpenAI) -> None:
    ids = {"logit_bias": {"1": 100}}
    options: dict[str, Any] = {**GREEDY, "max_tokens": 2, "prompt": "Hi", **ids}
    hidden = client.completions.create(**options, extra_body={"ignore_eos": True}).choices[0].text
    shown = client.completions.create(
        **options, extra_body={"ignore_eos": True, "skip_special_tokens": False}
    ).choices[0].text  # fmt: skip
    assert hidden == ""
    assert shown == "<|im_start|>" * 2
