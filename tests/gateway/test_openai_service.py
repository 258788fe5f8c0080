"""service_tier and priority: what they become for the engine, and what the answer says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.errors import ApiError, ErrorKind
from gateway.openai.ranges import MAX_PRIORITY
from gateway.openai.service import Service, ServiceTier, check_service
from gateway.openai.wire import GenerationFields
from gateway.tenants import hash_key
from tests.gateway.house import House

Make = Callable[..., Awaitable[House]]


def check(**fields: Any) -> Service:
    return check_service(msgspec.convert(fields, GenerationFields))


def test_the_tier_is_the_class_and_the_priority_orders_within_it() -> None:
    asked = [
        {"service_tier": tier, "priority": priority}
        for tier in ("priority", "default", "flex")
        for priority in (-MAX_PRIORITY, -1, 0, 1, MAX_PRIORITY)
    ]
    numbers = [check(**fields).engine_priority for fields in asked]
    assert all(first < second for first, second in pairwise(numbers))


def test_nothing_asked_for_and_the_default_are_the_same_to_the_engine() -> None:
    for fields in ({}, {"service_tier": "auto"}, {"service_tier": "default"}, {"priority": 0}):
        assert check(**fields).engine_priority == 0


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({"service_tier": "scale"}, "service_tier", ErrorKind.UNSUPPORTED),
        ({"service_tier": "urgent"}, "service_tier", ErrorKind.BAD_REQUEST),
        ({"service_tier": ""}, "service_tier", ErrorKind.BAD_REQUEST),
        ({"service_tier": "Flex"}, "service_tier", ErrorKind.BAD_REQUEST),
        ({"priority": MAX_PRIORITY + 1}, "priority", ErrorKind.BAD_REQUEST),
        ({"priority": -(10**400)}, "priority", ErrorKind.BAD_REQUEST),
    ],
)
def test_other_tiers_and_numbers_are_refused(fields: dict[str, Any], param: str, kind: ErrorKind) -> None:
    with pytest.raises(ApiError) as caught:
        check(**fields)
    assert (caught.value.param, caught.value.kind) == (param, kind)
    assert "urgent" not in caught.value.message


def test_who_may_not_have_priority_gets_the_default_and_less_if_asked() -> None:
    assert check(service_tier="priority", priority=-5).without_priority() == check(service_tier="default")
    low = check(service_tier="flex", priority=7)
    assert low.without_priority() == low
    assert check(service_tier="flex", priority=-7).without_priority().tier is ServiceTier.FLEX


@pytest.mark.parametrize("tier", ["auto", "default", "flex", "priority"])
async def test_the_answer_says_which_tier_was_used(make_house: Make, tier: str) -> None:
    house = await make_house()
    used = "default" if tier == "auto" else tier
    for ask in (house.chat, house.complete):
        assert (await ask(service_tier=tier)).json["service_tier"] == used
        events = (await ask(service_tier=tier, stream=True, stream_options={"include_usage": True})).events
        assert {event["service_tier"] for event in events} == {used}
        assert "service_tier" not in (await ask()).json


async def test_the_engine_is_told(make_house: Make) -> None:
    house = await make_house()
    for fields in ({"service_tier": "priority"}, {}, {"service_tier": "flex"}, {"priority": 9}):
        await house.complete(**fields)
    first, plain, last, low = (request.priority for request in house.engine.record.submitted)
    assert first < plain == 0 < low < last


async def test_a_tenant_that_may_not_have_priority_is_told_so(make_house: Make, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        "[tenants.barred]\n"
        f'keys = ["{hash_key("b")}"]\nallow_priority = false\n[tenants.free]\nkeys = ["{hash_key("f")}"]\n'
    )
    path.chmod(0o600)
    house = await make_house(keys_file=path)
    told = {}
    for key in "bf":
        headers = {"Authorization": f"Bearer {key}"}
        reply = await house.chat(headers=headers, service_tier="priority", priority=-3)
        told[key] = reply.json["service_tier"]
    assert told == {"b": "default", "f": "priority"}
    barred, free = (request.priority for request in house.engine.record.submitted)
    assert free < barred == 0
