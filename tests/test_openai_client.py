"""The official openai client, sync and async, against a real server process with the real model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.server import Server, running_server

KEY = "sk-test"
MESSAGES = [{"role": "user", "content": "Name three primary colors."}]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server("--api-key", KEY, "--device-kv", "256MiB", "--max-model-len", "2048") as server:
        yield server
        report = server.wait_idle()
        assert report["problems"] == []
        assert report["stats"]["blocks_in_use"] == 0
        assert server.stop() == 0, server.log


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def test_models_tells_the_window(client: OpenAI, model: str) -> None:
    assert client.models.retrieve(model).id == model
    assert client.models.list().data[0].model_extra is not None
    assert client.models.list().data[0].model_extra["max_model_len"] == 2048


def test_chat_gives_a_sensible_answer(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=40)  # type: ignore[arg-type]
    assert answer.object == "chat.completion"
    assert "red" in (answer.choices[0].message.content or "").lower()
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 10
    assert 0 < answer.usage.completion_tokens <= 40
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_streamed_is_the_same_text_in_many_pieces(client: OpenAI, model: str) -> None:
    options = {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**options)  # type: ignore[call-overload]
    chunks = list(
        client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
    )
    body, last = chunks[:-1], chunks[-1]
    assert body[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in body)
    assert text == whole.choices[0].message.content
    assert len([chunk for chunk in body if chunk.choices[0].delta.content]) > 3
    assert [chunk.choices[0].finish_reason for chunk in body if chunk.choices[0].finish_reason] == ["stop"]
    assert all(chunk.usage is None for chunk in body)
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_a_prompt_is_scored_as_it_was_generated(client: OpenAI, model: str) -> None:
    """Twice: the second time the cache has all of it. Near enough: decode and prefill round differently."""
    prompt = "1, 2\n\n3 é, the days of the week are Monday, Tuesday,"
    options = {"model": model, "prompt": prompt, "temperature": 0, "logprobs": 1}
    made = client.completions.create(**options, max_tokens=24, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
    generated = made.choices[0].logprobs
    whole = prompt + made.choices[0].text
    first, second = (
        client.completions.create(model=model, prompt=whole, echo=True, max_tokens=0, logprobs=1)
        for _ in range(2)
    )
    (choice,) = second.choices
    scored = choice.logprobs
    assert scored is not None and scored.tokens is not None and scored.token_logprobs is not None
    assert first.choices == second.choices
    assert (choice.text, choice.finish_reason) == (whole, "length")
    assert "".join(scored.tokens) == whole
    assert second.usage is not None
    assert (second.usage.prompt_tokens, second.usage.completion_tokens) == (len(scored.tokens), 0)
    assert scored.token_logprobs[0] is None
    assert scored.tokens[-24:] == generated.tokens, "else the text has other tokens than were generated"
    for ours, theirs in zip(scored.token_logprobs[-24:], generated.token_logprobs, strict=True):
        assert abs(ours - theirs) < 0.2


def test_prompt_logprobs_in_both_endpoints(client: OpenAI, model: str) -> None:
    extra = {"prompt_logprobs": 2}
    completion = client.completions.create(model=model, prompt="The sky is", max_tokens=1, extra_body=extra)
    chat = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=1, extra_body=extra)  # type: ignore[call-overload]
    in_choice = completion.choices[0].model_extra["prompt_logprobs"]  # type: ignore[index]
    for found, usage in ((in_choice, completion.usage), (chat.model_extra["prompt_logprobs"], chat.usage)):
        assert found[0] is None
        assert len(found) == usage.prompt_tokens
        for entry in found[1:]:
            assert 2 <= len(entry) <= 3
            assert {shown["rank"] for shown in entry.values()} >= {1, 2}
            assert all(shown["logprob"] <= 0 and shown["decoded_token"] for shown in entry.values())


def test_completion_streamed_and_not(client: OpenAI, model: str) -> None:
    options = {"model": model, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 12}
    whole = client.completions.create(**options)  # type: ignore[call-overload]
    pieces = list(client.completions.create(**options, stream=True))  # type: ignore[call-overload]
    assert whole.object == "text_completion"
    assert "Paris" in whole.choices[0].text
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert whole.choices[0].finish_reason == pieces[-1].choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 12


def test_token_id_prompts(client: OpenAI, model: str) -> None:
    ids = [504, 3575, 282, 4649, 314]
    from_ids = client.completions.create(model=model, prompt=ids, temperature=0, max_tokens=8)
    assert from_ids.usage is not None
    assert from_ids.usage.prompt_tokens == len(ids)
    assert from_ids.choices[0].text


def test_stop_cuts_before_the_string_in_both_modes(client: OpenAI, model: str) -> None:
    options = {"model": model, "prompt": "Count: 1, 2, 3, 4,", "temperature": 0, "max_tokens": 40}
    free = client.completions.create(**options).choices[0].text  # type: ignore[call-overload]
    stop = free[5:9]
    whole = client.completions.create(**options, stop=[stop, "never seen"])  # type: ignore[call-overload]
    pieces = list(client.completions.create(**options, stop=stop, stream=True))  # type: ignore[call-overload]
    assert whole.choices[0].text == free[: free.index(stop)]
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert whole.choices[0].finish_reason == pieces[-1].choices[0].finish_reason == "stop"


def test_a_seed_repeats_an_answer_and_another_seed_does_not(client: OpenAI, model: str) -> None:
    def sample(seed: int | None) -> str:
        answer = client.completions.create(
            model=model, prompt="A story about a fox:", temperature=1.2, max_tokens=24, seed=seed
        )
        return answer.choices[0].text

    assert sample(7) == sample(7)
    assert len({sample(seed) for seed in (7, 8, 9)}) == 3
    assert sample(None) != sample(None)


def test_chat_logprobs_align_with_the_text(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        temperature=0,
        max_tokens=12,
        logprobs=True,
        top_logprobs=3,  # type: ignore[arg-type]
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert b"".join(bytes(entry.bytes or ()) for entry in entries).decode() == choice.message.content
    for entry in entries:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)


def test_completion_logprobs(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt="The capital of France is", temperature=0, max_tokens=6, logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or ()) == answer.choices[0].text
    assert len(logprobs.token_logprobs or ()) == 6
    assert all(len(top) >= 2 for top in logprobs.top_logprobs or ())


def test_usage_reports_true_cache_hits(client: OpenAI, model: str) -> None:
    messages = [{"role": "user", "content": "Tell me about the moon and the tides. " * 12}]
    options = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0}
    first = client.chat.completions.create(**options)  # type: ignore[call-overload]
    second = client.chat.completions.create(**options)  # type: ignore[call-overload]
    assert first.choices[0].message.content == second.choices[0].message.content
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached % 16 == 0
    assert second.usage.prompt_tokens - 16 <= cached + 16 <= second.usage.prompt_tokens + 16
    assert 0 < cached < second.usage.prompt_tokens


@pytest.mark.case("E1")
def test_leaving_a_stream_early_frees_the_engine(server: Server, client: OpenAI, model: str) -> None:
    stream = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert server.wait_idle(timeout_s=10)["stats"]["blocks_in_use"] == 0


def test_errors_are_the_clients_own_types(client: OpenAI, model: str, server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=model, prompt="x", temperature=9)
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.completions.create(model=model, prompt="word " * 4000)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="no-such-model", prompt="x")
    stranger = client.with_options(api_key="wrong")
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


async def test_async_streams_run_side_by_side(server: Server, model: str) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:

        async def stream(i: int) -> str:
            pieces = []
            chunks = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": f"Say the number {i}."}],
                max_tokens=16,
                temperature=0,
                stream=True,
            )
            async for chunk in chunks:
                pieces.append(chunk.choices[0].delta.content or "")
            return "".join(pieces)

        async def whole(i: int) -> str:
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": f"Say the number {i}."}],
                max_tokens=16,
                temperature=0,
            )
            return answer.choices[0].message.content or ""

        streamed = await asyncio.gather(*(stream(i) for i in range(8)))
        answers = await asyncio.gather(*(whole(i) for i in range(8)))
    assert all(streamed)
    assert all(answers)


async def test_async_completions(server: Server, model: str) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        options = {"model": model, "prompt": "Water boils at", "temperature": 0, "max_tokens": 8, "n": 1}
        whole = await client.completions.create(**options)  # type: ignore[call-overload]
        stream = await client.completions.create(**options, stream=True)  # type: ignore[call-overload]
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert text == whole.choices[0].text


# ---- several answers -------------------------------------------------------------------------------


def test_several_answers_differ_and_repeat_with_their_seed(client: OpenAI, model: str) -> None:
    options = {"model": model, "prompt": "A story about a fox:", "temperature": 1.1, "max_tokens": 16}
    several = client.completions.create(**options, n=3, seed=40)  # type: ignore[call-overload]
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert len({choice.text for choice in several.choices}) == 3
    assert several.usage.completion_tokens == 48


def test_several_answers_are_those_of_requests_with_their_seeds() -> None:
    options = {"prompt": "A story about a fox:", "temperature": 1.1, "max_tokens": 12}
    with (
        running_server("--deterministic", "--device-kv", "64MiB", "--max-model-len", "512") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        model = client.models.list().data[0].id
        several = client.completions.create(model=model, **options, n=3, seed=40)  # type: ignore[call-overload]
        for choice in several.choices:
            alone = client.completions.create(model=model, **options, seed=40 + choice.index)  # type: ignore[call-overload]
            assert alone.choices[0].text == choice.text


def test_several_chat_answers_streamed(client: OpenAI, model: str) -> None:
    chunks = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        n=3,
        temperature=1.0,
        max_tokens=20,
        stream=True,
        seed=1,  # type: ignore[arg-type]
    )
    texts, reasons = {0: "", 1: "", 2: ""}, {}
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in reasons
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert all(texts.values())
    assert set(reasons) == {0, 1, 2}


def test_the_best_of_several(client: OpenAI, model: str) -> None:
    options = {"model": model, "prompt": "Water boils at", "temperature": 1.0, "max_tokens": 8, "seed": 7}
    every = client.completions.create(**options, n=4, logprobs=0)  # type: ignore[call-overload]
    means = [sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in every.choices]
    best = client.completions.create(**options, n=1, best_of=4)  # type: ignore[call-overload]
    assert best.choices[0].text == every.choices[means.index(max(means))].text


def test_beam_search_over_http(client: OpenAI, model: str) -> None:
    options = {"model": model, "prompt": "The capital of France is", "max_tokens": 10, "n": 3}
    beams = {"use_beam_search": True, "early_stopping": True}
    whole = client.completions.create(**options, extra_body=beams)  # type: ignore[call-overload]
    assert len({choice.text for choice in whole.choices}) == 3
    assert "Paris" in whole.choices[0].text
    streamed = {0: "", 1: "", 2: ""}
    for chunk in client.completions.create(**options, extra_body=beams, stream=True):  # type: ignore[call-overload]
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert [streamed[index] for index in range(3)] == [choice.text for choice in whole.choices]


def test_several_prompts_at_once(client: OpenAI, model: str) -> None:
    prompts = ["The capital of France is", "Two plus two is", "The sky is"]
    options = {"model": model, "temperature": 0, "max_tokens": 6, "extra_body": {"ignore_eos": True}}
    together = client.completions.create(**options, prompt=prompts)  # type: ignore[call-overload]
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert "Paris" in together.choices[0].text
    assert together.usage.completion_tokens == 18
    streamed = {0: "", 1: "", 2: ""}
    for chunk in client.completions.create(**options, prompt=prompts, stream=True):  # type: ignore[call-overload]
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert all(streamed.values())
