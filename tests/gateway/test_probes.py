"""Models, health, version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.scripted import Script
from tests.gateway.house import House, text_ids, until

Make = Callable[..., Any]


async def test_the_models_and_their_window(make_house: Make) -> None:
    house: House = await make_house(served_model_names=("big/name", "alias"))
    listing = (await house.request("GET", "/v1/models")).json
    assert listing["object"] == "list"
    assert [card["id"] for card in listing["data"]] == ["big/name", "alias"]
    assert listing["data"][0]["max_model_len"] == 256
    assert listing["data"][0]["object"] == "model"
    assert (await house.request("GET", "/v1/models/big/name")).json == listing["data"][0]


async def test_an_unknown_model_is_404(make_house: Make) -> None:
    house: House = await make_house()
    for reply in (await house.request("GET", "/v1/models/gpt-4"), await house.chat(model="gpt-4")):
        assert reply.status == 404
        assert reply.error["code"] == "model_not_found"
        assert reply.error["param"] == "model"
    assert (await house.complete(model="tiny")).json["model"] == "tiny"


async def test_a_model_name_with_a_line_break_is_an_unknown_model(make_house: Make) -> None:
    house: House = await make_house()
    reply = await house.request("GET", "/v1/models/a%0Ab")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_models_have_openais_shape(make_house: Make) -> None:
    house: House = await make_house()
    [card] = (await house.request("GET", "/v1/models")).json["data"]
    assert set(card) == {"id", "object", "created", "owned_by", "max_model_len", "capabilities"}
    assert (card["object"], card["owned_by"], type(card["created"])) == ("model", "tidegate", int)


async def test_a_served_name_replaces_the_engines(make_house: Make) -> None:
    house: House = await make_house(served_model_names=("other",))
    assert (await house.complete(model="tiny")).status == 404
    assert (await house.complete(model="other")).json["model"] == "other"


@pytest.mark.case("E14")
async def test_health_follows_the_engine(make_house: Make) -> None:
    house: House = await make_house(step_s=0.002)
    house.script(Script(token_ids=text_ids("a"), endless=True))
    async with house.session.post(
        f"{house.url}/v1/completions", json={"prompt": "Hi", "stream": True, "max_tokens": 200}
    ) as stream:
        await until(lambda: house.engine.num_running == 1)
        busy = await house.request("GET", "/health")
        assert (busy.status, busy.json["status"]) == (200, "ok")
        house.engine.freeze()
        stalled = await house.request("GET", "/health")
        assert (stalled.status, stalled.json["status"]) == (503, "stalled")
        house.engine.thaw()
        assert (await house.request("GET", "/health")).status == 200
        await stream.read()
    house.engine.die("gone")
    dead = await house.request("GET", "/health")
    assert (dead.status, dead.json["status"]) == (503, "dead")


async def test_version(make_house: Make) -> None:
    house: House = await make_house()
    assert (await house.request("GET", "/version")).json == {"version": house.gateway.version}


async def test_integrity_of_a_dead_engine(make_house: Make) -> None:
    house: House = await make_house(admin_key="k")
    house.engine.die("gone")
    reply = await house.request("GET", "/debug/integrity", headers={"Authorization": "Bearer k"})
    assert (reply.status, reply.error["code"]) == (503, "engine_dead")
