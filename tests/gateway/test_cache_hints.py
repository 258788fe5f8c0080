"""What a request says of its KV, and that the engine gets it from every endpoint that generates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from engine.messages import Retention
from gateway.errors import ApiError
from gateway.openai.cache_hints import MAX_KEEP_S, NO_HINTS, CacheHints, check_cache_hints
from gateway.openai.ranges import MAX_NAME_CHARS
from gateway.openai.wire import SamplingFields
from tests.gateway.house import House

Make = Callable[..., Awaitable[House]]
DAY_S = 86400.0


def check(**fields: Any) -> CacheHints:
    return check_cache_hints(msgspec.convert(fields, SamplingFields))


@pytest.mark.parametrize(
    ("fields", "hints"),
    [
        ({}, NO_HINTS),
        ({"prompt_cache_key": ""}, NO_HINTS),
        ({"prompt_cache_key": "k"}, CacheHints(key="k")),
        ({"prompt_cache_retention": "24h"}, CacheHints(DAY_S)),
        ({"prompt_cache_retention": "in_memory"}, CacheHints(may_reach_disk=False)),
        ({"prompt_cache_retention": "in-memory"}, CacheHints(may_reach_disk=False)),
        ({"prompt_cache_options": {"mode": "explicit"}}, NO_HINTS),
        ({"prompt_cache_options": {"ttl": "30m"}}, CacheHints(1800.0)),
        ({"prompt_cache_options": {"ttl": "12h"}}, CacheHints(12 * 3600.0)),
        ({"prompt_cache_options": {"ttl": "7d"}}, CacheHints(7 * DAY_S)),
        ({"prompt_cache_options": {"ttl": "1s"}}, CacheHints(1.0)),
        ({"prompt_cache_options": {"ttl": "99999d"}}, CacheHints(MAX_KEEP_S)),
        ({"prompt_cache_options": {"ttl": "5m"}, "prompt_cache_retention": "24h"}, CacheHints(300.0)),
        ({"prompt_cache_options": {"ttl": "5m"}, "prompt_cache_retention": "in_memory"},
         CacheHints(300.0, may_reach_disk=False)),
    ],
)  # fmt: skip
def test_hints(fields: dict[str, Any], hints: CacheHints) -> None:
    assert check(**fields) == hints


@pytest.mark.parametrize("ttl", ["", "0m", "30", "m", "30 m", "-1h", "1.5h", "30M", "1w", "100000s", "٣m"])
def test_what_is_no_time_is_refused(ttl: str) -> None:
    with pytest.raises(ApiError) as caught:
        check(prompt_cache_options={"ttl": ttl})
    assert caught.value.param == "prompt_cache_options.ttl"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_cache_retention": "12h"}, "prompt_cache_retention"),
        ({"prompt_cache_options": {"mode": "none"}}, "prompt_cache_options.mode"),
        (
            {"prompt_cache_options": {"comparison_response_id": "x" * (MAX_NAME_CHARS + 1)}},
            "prompt_cache_options.comparison_response_id",
        ),
    ],
)
def test_other_values_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check(**fields)
    assert caught.value.param == param


HINTS = {
    "prompt_cache_key": "k",
    "prompt_cache_retention": "in_memory",
    "prompt_cache_options": {"ttl": "5m"},
}


async def test_chats_completions_and_responses_pass_them_on(make_house: Make) -> None:
    house = await make_house()
    for reply in (
        await house.chat(**HINTS),
        await house.complete(**HINTS),
        await house.complete(prompt=["a", "b"], **HINTS),
        await house.request("POST", "/v1/responses", json={"input": "Hi", **HINTS}),
    ):
        assert reply.status == 200, reply.body
    submitted = house.engine.record.submitted
    assert len(submitted) == 5
    assert {request.retention for request in submitted} == {Retention(keep_s=300.0, lowest="host")}
    assert len({request.session for request in submitted} - {""}) == 1


async def test_without_them_there_is_no_retention(make_house: Make) -> None:
    house = await make_house()
    assert (await house.chat()).status == (await house.complete()).status == 200
    assert [(request.session, request.retention) for request in house.engine.record.submitted] == [
        ("", None)
    ] * 2
