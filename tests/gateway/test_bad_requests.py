"""One bad request costs one 4xx and nothing else, on both endpoints, over HTTP."""

from __future__ import annotations

import asyncio
import re
import resource
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.scripted import Script
from tests.gateway.house import House, text_ids, until

Make = Callable[..., Awaitable[House]]
NAN, INFINITY = float("nan"), float("inf")

CASES = [
    *(
        pytest.param({"stop_token_ids": [i]}, "stop_token_ids", marks=pytest.mark.case("C4"))
        for i in (300, 151645, -1, 2**70)
    ),
    *(
        pytest.param({"logit_bias": bias}, "logit_bias", marks=pytest.mark.case("C5"))
        for bias in ({"300": 1}, {"-1": 1}, {"x": 1}, {"1.5": 1}, {"1": 1e9})
    ),
    *(
        pytest.param({"logit_bias": {"1": value}}, None, marks=pytest.mark.case("C5"))
        for value in (NAN, INFINITY)
    ),
    pytest.param({"n": 5_000_000}, "n", marks=pytest.mark.case("C6")),
    pytest.param({"best_of": 5_000_000}, "best_of", marks=pytest.mark.case("C6")),
    pytest.param({"stop": ["x"] * 50_000}, "stop", marks=pytest.mark.case("C7")),
    pytest.param({"stop": [f"{i}" for i in range(5)]}, "stop", marks=pytest.mark.case("C7")),
    pytest.param({"bad_words": ["x"] * 50_000}, "bad_words", marks=pytest.mark.case("C7")),
    pytest.param({"stop_token_ids": [1] * 50_000}, "stop_token_ids", marks=pytest.mark.case("C7")),
    *(
        pytest.param({name: value}, None, marks=pytest.mark.case("C12"))
        for name in (
            "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
        )
        for value in (NAN, INFINITY, -INFINITY)
    ),
    *(
        pytest.param({name: "nan"}, name, marks=pytest.mark.case("C12"))
        for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    ),
    *(
        pytest.param({name: value}, name, marks=pytest.mark.case("C13"))
        for name, values in {
            "temperature": (3, -1, 2.0001),
            "top_p": (0, -0.1, 1.0001),
            "top_k": (-2,),
            "min_p": (-0.1, 1.1),
            "presence_penalty": (10, -10),
            "frequency_penalty": (10, -10),
            "repetition_penalty": (0, -1, 10),
        }.items()
        for value in values
    ),
]  # fmt: skip


@pytest.mark.parametrize("endpoint", ["complete", "chat"])
@pytest.mark.parametrize(("fields", "param"), CASES)
async def test_both_endpoints_refuse_it_in_the_same_words(
    make_house: Make, endpoint: str, fields: dict[str, Any], param: str | None
) -> None:
    """JSON has no NaN, so there the whole body is at fault and not a field."""
    house = await make_house()
    reply = await getattr(house, endpoint)(**fields)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert reply.error["type"] == "invalid_request_error"
    assert not house.engine.record.submitted
    await house.check_alive()


@pytest.mark.case("C12")
async def test_a_number_too_large_for_any_float_is_refused(make_house: Make) -> None:
    house = await make_house()
    for path, start in (("completions", '{"prompt": "Hi"'), ("chat/completions", '{"messages": []')):
        body = f'{start}, "temperature": 1e400}}'.encode()
        headers = {"Content-Type": "application/json"}
        reply = await house.request("POST", f"/v1/{path}", data=body, headers=headers)
        assert reply.status == 400
        assert reply.error["message"]
    await house.check_alive()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.case("C6")
@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("complete", {"n": 5_000_000}),
        ("complete", {"logprobs": 10**9}),
        ("chat", {"logprobs": True, "top_logprobs": 10**9}),
        ("chat", {"n": 5_000_000, "stream": True}),
    ],
)
async def test_nothing_is_allocated_for_what_is_refused(
    make_house: Make, endpoint: str, fields: dict[str, Any]
) -> None:
    house = await make_house()
    before = _peak_bytes()
    assert (await getattr(house, endpoint)(**fields)).status == 400
    assert _peak_bytes() - before < 64 * 2**20


@pytest.mark.case("C7")
async def test_the_most_and_longest_stop_strings_cost_little_per_token(make_house: Make) -> None:
    """Compared with the same text without any; the strings almost match everywhere."""
    house = await make_house(info={"max_model_len": 100_000})
    script = Script(token_ids=text_ids("a"), endless=True, per_step=100)
    seconds = []
    for stop in (None, ["a" * 1023 + end for end in "bcde"]):
        house.script(script)
        started = time.thread_time()
        reply = await house.complete(max_tokens=40_000, stop=stop)
        assert reply.text == "a" * 40_000
        seconds.append(time.thread_time() - started)
    assert seconds[1] < 20 * seconds[0]


@pytest.mark.case("C10")
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_cap_beyond_the_window_is_cut_to_what_is_left(make_house: Make, name: str) -> None:
    house = await make_house()
    house.script(Script(token_ids=text_ids("a"), endless=True))
    reply = await house.chat(**{name: 10**6})
    (add,) = house.engine.record.submitted
    room = 256 - len(add.prompt_token_ids)
    assert add.sampling.max_tokens == room
    assert reply.headers["x-tidegate-max-tokens-clamped"] == str(room)
    assert len(reply.text) == room


@pytest.mark.case("C11")
@pytest.mark.parametrize("max_tokens", [None, 1, 16, 10**6])
@pytest.mark.parametrize("endpoint", ["complete", "chat"])
async def test_a_prompt_longer_than_the_window_is_told_in_its_own_numbers(
    make_house: Make, endpoint: str, max_tokens: int | None
) -> None:
    house = await make_house()
    long = "x" * 500
    given = {"prompt": long} if endpoint == "complete" else {"messages": [{"role": "user", "content": long}]}
    reply = await getattr(house, endpoint)(**given, max_tokens=max_tokens)
    assert reply.status == 400
    length = 500 if endpoint == "complete" else 519  # with what the template adds
    assert {"256", str(length)} <= set(re.findall(r"-?\d+", reply.error["message"]))
    assert "-" not in reply.error["message"]
    assert not house.engine.record.submitted
    await house.check_alive()


@pytest.mark.case("C1")
async def test_neighbours_do_not_notice_bad_prompts(make_house: Make) -> None:
    house = await make_house(step_s=0.002)
    house.script(Script(token_ids=text_ids("x" * 100), stop_token_id=266))
    running = asyncio.create_task(house.complete(stream=True))
    await until(lambda: house.engine.num_running == 1)
    for prompt in ("", [""], [], [[]], [999_999], [-1]):
        assert (await house.complete(prompt=prompt)).status == 400
    assert (await running).text == "x" * 100
