"""Several answers to one request, streamed and not, through the whole gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.scripted import Script
from tests.gateway.house import House, text_ids

Make = Callable[..., Awaitable[House]]

THREE = Script(
    token_ids=text_ids("first"),
    others=[Script(token_ids=text_ids("the second, longer")), Script(token_ids=text_ids("3rd"))],
)
TEXTS = ["first", "the second, longer", "3rd"]


def texts(choices: list[dict[str, Any]]) -> list[str]:
    return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in choices]


def streamed(events: list[Any], index: int) -> tuple[str, list[str]]:
    """Text and finish reasons of one choice."""
    mine = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    parts = [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in mine]
    return "".join(parts), [choice["finish_reason"] for choice in mine if choice["finish_reason"]]


@pytest.mark.case("A10")
@pytest.mark.case("B5")
@pytest.mark.case("B6")
@pytest.mark.parametrize("endpoint", ["complete", "chat"])
async def test_each_choice_has_its_own_text_index_and_end(make_house: Make, endpoint: str) -> None:
    house = await make_house()
    house.script(THREE, THREE)
    plain = await getattr(house, endpoint)(n=3)
    assert texts(plain.json["choices"]) == TEXTS
    assert [choice["index"] for choice in plain.json["choices"]] == [0, 1, 2]
    assert plain.json["usage"]["completion_tokens"] == sum(map(len, TEXTS))
    events = (await getattr(house, endpoint)(n=3, stream=True)).events
    for index, text in enumerate(TEXTS):
        assert streamed(events, index) == (text, ["stop"])
    if endpoint == "chat":
        roles = [c["index"] for event in events for c in event["choices"] if c["delta"].get("role")]
        assert sorted(roles) == [0, 1, 2]


@pytest.mark.case("B5")
@pytest.mark.parametrize("per_step", [1, 5])
@pytest.mark.parametrize("n", [2, 4, 8])
async def test_a_plain_answer_has_every_choice_in_its_place_and_whole(
    make_house: Make, n: int, per_step: int
) -> None:
    """They end in another order than they are told, some in the same step."""
    house = await make_house()
    wanted = [f"choice {index}" + "." * (7 * (n - index) % 5) for index in range(n)]
    first, *others = (Script(token_ids=text_ids(text), per_step=per_step) for text in wanted)
    for endpoint in (house.complete, house.chat):
        house.script(replace(first, others=others))
        choices = (await endpoint(n=n)).json["choices"]
        assert [choice["index"] for choice in choices] == list(range(n))
        assert texts(choices) == wanted
        assert {choice["finish_reason"] for choice in choices} == {"stop"}


async def test_choices_are_interleaved_as_they_come(make_house: Make) -> None:
    house = await make_house(step_s=0.002)
    house.script(THREE)
    events = (await house.complete(n=3, stream=True)).events
    indices = [choice["index"] for event in events for choice in event["choices"]]
    assert indices.index(2) < indices.index(0) + 4
    assert indices != sorted(indices)


@pytest.mark.case("B6")
@pytest.mark.parametrize("stream", [True, False])
async def test_logprobs_are_kept_apart(make_house: Make, stream: bool) -> None:
    house = await make_house()
    house.script(THREE)
    reply = await house.complete(n=3, logprobs=2, stream=stream)
    parts = [part for event in (reply.events if stream else [reply.json]) for part in event["choices"]]
    for index, text in enumerate(TEXTS):
        mine = [part["logprobs"] for part in parts if part["index"] == index and part["logprobs"]]
        assert "".join(token for part in mine for token in part["tokens"]) == text
        offsets = [offset for part in mine for offset in part["text_offset"]]
        assert offsets == list(range(len(text)))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_string_ends_one_choice_and_aborts_only_that(make_house: Make, stream: bool) -> None:
    house = await make_house(step_s=0.001)
    long = Script(token_ids=text_ids("a longer text that ends by itself"))
    house.script(Script(token_ids=text_ids("first "), endless=True, others=[long]))
    reply = await house.complete(n=2, stop="rs", stream=stream, max_tokens=100)
    found = (
        [streamed(reply.events, index)[0] for index in range(2)] if stream else texts(reply.json["choices"])
    )
    assert found == ["fi", "a longer text that ends by itself"]
    assert [index for _, index in house.engine.record.aborted_sequences] == [0]
    await house.check_alive()


async def test_the_best_of_several_are_the_likeliest_per_token(make_house: Make) -> None:
    house = await make_house()
    script = Script(
        token_ids=text_ids("worst"),
        logprob=-3.0,
        others=[
            Script(token_ids=text_ids("second best, and long"), logprob=-1.0),
            Script(token_ids=text_ids("best"), logprob=-0.5),
        ],
    )
    house.script(script, script)
    reply = await house.complete(n=2, best_of=3)
    assert texts(reply.json["choices"]) == ["best", "second best, and long"]
    assert [choice["index"] for choice in reply.json["choices"]] == [0, 1]
    assert all(choice["logprobs"] is None for choice in reply.json["choices"])
    assert reply.json["usage"]["completion_tokens"] == len("worst") + len("second best, and long") + len(
        "best"
    )
    chat = await house.chat(best_of=3)
    assert texts(chat.json["choices"]) == ["best"]


@pytest.mark.case("E15")
async def test_a_request_takes_as_many_places_as_it_has_sequences(make_house: Make) -> None:
    house = await make_house(max_num_seqs=4, max_waiting=2, step_s=0.002)
    house.script(Script(token_ids=text_ids("x"), endless=True))
    running = asyncio.create_task(house.complete(n=4, max_tokens=200))
    while house.gateway.admission.in_flight < 4:
        await asyncio.sleep(0.001)
    refused = await house.complete(n=3)
    assert refused.status == 429
    assert house.gateway.admission.in_flight == 4
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_error_of_one_sequence_ends_the_answer_once(make_house: Make) -> None:
    house = await make_house()
    failing = Script(token_ids=text_ids("abc"), others=[Script(token_ids=text_ids("abcdef"), fail_after=2)])
    house.script(failing, failing)
    assert (await house.complete(n=2)).status == 500
    events = (await house.complete(n=2, stream=True)).events
    assert [event for event in events if "error" in event] == events[-1:]
    await house.check_alive()


async def test_answers_are_cut_so_that_all_fit_the_pool(make_house: Make) -> None:
    """64 blocks of 16 tokens for a window of 256."""
    house = await make_house()
    house.script(*[Script(token_ids=text_ids("x"))] * 3)
    prompt = [5] * 40
    reply = await house.complete(n=8, prompt=prompt, max_tokens=200)
    assert reply.headers["x-tidegate-max-tokens-clamped"] == str((2 + 62 // 8) * 16 - 40)
    assert house.engine.record.submitted[-1].sampling.max_tokens == (2 + 62 // 8) * 16 - 40
    await house.complete(n=2, prompt=prompt, max_tokens=200)
    assert house.engine.record.submitted[-1].sampling.max_tokens == 200
    refused = await house.complete(n=60, prompt=[5] * 200)
    assert (refused.status, refused.error["param"]) == (400, "n")
