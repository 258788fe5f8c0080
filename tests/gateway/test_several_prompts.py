"""Several prompts in one completion request: as many requests to the engine, one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from engine.client import EngineBusyError
from engine.messages import AddRequest
from engine.scripted import Script
from tests.gateway.house import House, text_ids
from tests.gateway.test_several_choices import streamed, texts

Make = Callable[..., Awaitable[House]]


def scripts(*answers: str, **more: Any) -> list[Script]:
    return [Script(token_ids=text_ids(answer), **more) for answer in answers]


@pytest.mark.parametrize(
    "prompt", [["one", "two", "three"], [text_ids("one"), text_ids("two"), text_ids("three")]]
)
async def test_each_prompt_has_its_answer_in_its_place(make_house: Make, prompt: Sequence[Any]) -> None:
    house = await make_house()
    house.script(*scripts("first", "second", "3rd"), *scripts("first", "second", "3rd"))
    reply = await house.complete(prompt=prompt)
    assert texts(reply.json["choices"]) == ["first", "second", "3rd"]
    assert [choice["index"] for choice in reply.json["choices"]] == [0, 1, 2]
    assert reply.json["usage"]["prompt_tokens"] == len("onetwothree")
    assert reply.json["usage"]["completion_tokens"] == len("firstsecond3rd")
    asked = [add.prompt_token_ids for add in house.engine.record.submitted]
    assert asked == [tuple(text_ids(text)) for text in ("one", "two", "three")]
    events = (await house.complete(prompt=prompt, stream=True)).events
    assert [streamed(events, index) for index in range(3)] == [
        (t, ["stop"]) for t in ("first", "second", "3rd")
    ]


async def test_prompts_times_answers(make_house: Make) -> None:
    house = await make_house()
    both = [
        Script(token_ids=text_ids("a"), num_cached_tokens=2, others=scripts("bb")),
        Script(token_ids=text_ids("ccc"), num_cached_tokens=1, others=scripts("dddd")),
    ]
    house.script(*both)
    reply = await house.complete(prompt=["one", "two"], n=2)
    assert texts(reply.json["choices"]) == ["a", "bb", "ccc", "dddd"]
    assert reply.json["usage"]["prompt_tokens"] == 6
    assert reply.json["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


@pytest.mark.case("B4")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_cached_tokens_are_the_sum_over_prompts_whichever_ends_first(
    make_house: Make, order: Sequence[int], stream: bool
) -> None:
    house = await make_house(step_s=0.001)
    cached = (16, 0, 32)
    house.script(
        *(
            Script(token_ids=text_ids("abc"), num_cached_tokens=cached[i], prefill_steps=10 * order[i])
            for i in range(3)
        )
    )
    options = {"stream_options": {"include_usage": True}} if stream else {}
    reply = await house.complete(prompt=[[5] * 40] * 3, stream=stream, **options)
    last = reply.events[-1] if stream else reply.json
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": sum(cached)}
    assert last["usage"]["prompt_tokens"] == 120


async def test_the_best_are_chosen_for_each_prompt(make_house: Make) -> None:
    house = await make_house()
    house.script(
        Script(
            token_ids=text_ids("bad"), logprob=-3.0, others=[Script(token_ids=text_ids("good"), logprob=-2.0)]
        ),
        Script(
            token_ids=text_ids("best"),
            logprob=-0.1,
            others=[Script(token_ids=text_ids("worse"), logprob=-1.0)],
        ),
    )
    reply = await house.complete(prompt=["one", "two"], best_of=2)
    assert texts(reply.json["choices"]) == ["good", "best"]


async def test_a_stop_string_ends_the_request_of_its_prompt(make_house: Make) -> None:
    house = await make_house(step_s=0.001)
    house.script(
        Script(token_ids=text_ids("xSTOP"), endless=True), *scripts("a text that goes on for longer")
    )
    reply = await house.complete(prompt=["one", "two"], stop="STOP", max_tokens=200)
    assert texts(reply.json["choices"]) == ["x", "a text that goes on for longer"]
    (first, _) = house.engine.record.submitted
    assert house.engine.record.aborted == [first.request_id]


@pytest.mark.parametrize("stream", [True, False])
async def test_one_that_fails_ends_the_answer_and_aborts_the_others(make_house: Make, stream: bool) -> None:
    house = await make_house(step_s=0.001)
    house.script(
        Script(token_ids=text_ids("x"), endless=True), Script(token_ids=text_ids("abcdef"), fail_after=3)
    )
    reply = await house.complete(prompt=["one", "two"], stream=stream, max_tokens=200)
    if stream:
        assert [event for event in reply.events if "error" in event] == reply.events[-1:]
    else:
        assert reply.status == 500
    (first, _) = house.engine.record.submitted
    assert house.engine.record.aborted == [first.request_id]
    await house.check_alive()


async def test_a_client_that_leaves_aborts_all_of_them(make_house: Make) -> None:
    house = await make_house(step_s=0.002)
    house.script(*scripts("x", "y", "z", endless=True))
    running = asyncio.create_task(house.complete(prompt=["a", "b", "c"], max_tokens=250))
    while len(house.engine.request_ids) < 3:
        await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(5):
        while house.engine.request_ids or house.gateway.admission.in_flight:
            await asyncio.sleep(0.002)


async def test_an_engine_that_takes_only_the_first_gets_none(
    make_house: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await make_house()
    house.script(*scripts("x", "y", endless=True))
    submit = house.engine.submit

    def busy_at_the_second(request: AddRequest, sink: Any) -> None:
        if house.engine.record.submitted:
            raise EngineBusyError("far behind")
        submit(request, sink)

    monkeypatch.setattr(house.engine, "submit", busy_at_the_second)
    reply = await house.complete(prompt=["a", "b"])
    assert reply.status == 503
    assert not house.engine.request_ids


async def test_places_are_taken_for_all_prompts(make_house: Make) -> None:
    house = await make_house(max_num_seqs=4, max_waiting=2)
    too_many = await house.complete(prompt=["a", "b", "c", "d"], n=2)
    assert (too_many.status, too_many.error["param"]) == (400, "prompt")
    assert "8 answers at once" in too_many.error["message"]
    house.script(*scripts("x", "y", "z"))
    assert (await house.complete(prompt=["a", "b", "c"], n=2)).status == 200


async def test_each_prompt_has_its_own_room(make_house: Make) -> None:
    house = await make_house()
    house.script(*scripts("x", "y"))
    reply = await house.complete(prompt=[[5] * 10, [5] * 250], max_tokens=100)
    assert [add.sampling.max_tokens for add in house.engine.record.submitted] == [100, 6]
    assert reply.headers["x-tidegate-max-tokens-clamped"] == "6"
    one_too_long = await house.complete(prompt=[[5] * 10, [5] * 256])
    assert one_too_long.status == 400
