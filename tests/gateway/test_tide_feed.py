"""GET /v1/tide: who sees what, when the engine is asked, and how a stream of snapshots ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from engine.client import EngineDeadError
from engine.messages import SessionsReport
from engine.scripted import Script
from engine.stats import SessionKv
from gateway.tide_feed import MAX_WATCHERS
from tests.gateway.house import House, text_ids, until

Make = Callable[..., Any]


async def watched_house(make_house: Make, **options: Any) -> House:
    """At a quick pace."""
    house: House = await make_house(tide_interval_s=0.02, **options)
    return house


class Snapshots:
    """A stream of them as it is read."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> Any:
        async with asyncio.timeout(10):
            async for line in self.response.content:
                if line.startswith(b"data: "):
                    return json.loads(line[6:])
        return None

    async def until(self, condition: Callable[[Any], bool]) -> Any:
        while True:
            snapshot = await self.next()
            assert snapshot is not None
            if condition(snapshot):
                return snapshot


@asynccontextmanager
async def watch(house: House, key: str = "") -> AsyncIterator[Snapshots]:
    async with house.session.get(f"{house.url}/v1/tide", headers=bearer(key)) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        yield Snapshots(response)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


async def respond(house: House, key: str = "", **body: Any) -> Any:
    body = {"input": "Tell me of the tide.", **body}
    reply = await house.request("POST", "/v1/responses", json=body, headers=bearer(key))
    assert reply.status == 200, reply.body
    return reply.json


def asked(house: House, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Sessions that the engine was asked about, each time."""
    found: list[tuple[str, ...]] = []
    describe = house.engine.describe_sessions

    async def noting(sessions: Any) -> SessionsReport:
        found.append(tuple(sessions))
        return await describe(sessions)

    monkeypatch.setattr(house.engine, "describe_sessions", noting)
    return found


async def test_a_session_shows_while_it_answers_and_afterwards(make_house: Make) -> None:
    house = await watched_house(make_house, step_s=0.01)
    async with watch(house) as snapshots:
        first = await snapshots.next()
        assert (first["condition"], first["sessions"], first["block_tokens"]) == ("ok", [], 16)
        assert first["house"]["tiers"]["device"]["free"] == 64
        house.script(Script(token_ids=text_ids("tide "), endless=True))
        answer = asyncio.create_task(respond(house, max_output_tokens=100))
        busy = await snapshots.until(lambda told: told["sessions"] and told["own"]["tokens_per_s"] > 0)
        assert set(busy["sessions"][0]["cells"]) <= set("0123456789D")
        assert (busy["own"]["answers"], busy["house"]["running"]) == (1, 1)
        assert busy["own"]["ttft_ms"] > 0
        response = await answer
        quiet = await snapshots.until(lambda told: told["own"]["answers"] == 0)
        [session] = quiet["sessions"]
        assert session["cells"].endswith("d")
        assert response["id"].startswith(session["response"])


async def test_turns_of_one_session_are_one_row_with_the_last_response(make_house: Make) -> None:
    house = await watched_house(make_house)
    first = await respond(house)
    second = await respond(house, previous_response_id=first["id"])
    other = await respond(house)
    async with watch(house) as snapshots:
        rows = (await snapshots.next())["sessions"]
        assert [row["id"] for row in rows] == [2, 1]
        assert [
            answer["id"].startswith(row["response"])
            for answer, row in zip((other, second), rows, strict=True)
        ]
        assert (await house.request("DELETE", f"/v1/responses/{other['id']}")).status == 200
        left = await snapshots.until(lambda told: len(told["sessions"]) == 1)
        assert left["sessions"][0]["id"] == 1


async def test_what_one_of_several_keys_deletes_goes_from_its_map(make_house: Make) -> None:
    house = await watched_house(make_house, api_keys=("one", "two"))
    answer = await respond(house, "one")
    async with watch(house, "one") as snapshots:
        assert len((await snapshots.next())["sessions"]) == 1
        path = f"/v1/responses/{answer['id']}"
        assert (await house.request("DELETE", path, headers=bearer("one"))).status == 200
        await snapshots.until(lambda told: not told["sessions"])


async def test_a_tenant_sees_its_own_sessions_and_nothing_of_the_house_it_shares(make_house: Make) -> None:
    house = await watched_house(make_house, api_keys=("one", "two"), step_s=0.01)
    mine = await respond(house, "one")
    house.script(Script(token_ids=text_ids("x"), endless=True))
    async with watch(house, "one") as snapshots, watch(house, "two") as others:
        await snapshots.next()
        theirs = asyncio.create_task(respond(house, "two", max_output_tokens=150))
        busy = await others.until(lambda told: told["own"]["tokens_per_s"] > 0)
        assert len(busy["sessions"]) == 1
        assert busy["house"] is None
        await theirs
        again = await respond(house, "one", previous_response_id=mine["id"])  # so that there is news
        told = await snapshots.until(
            lambda told: told["own"]["tokens_per_s"] > 0 and told["own"]["answers"] == 0
        )
        assert [again["id"].startswith(row["response"]) for row in told["sessions"]] == [True]
        assert told["house"] is None
        assert told["sessions"][0]["id"] == 1


async def test_one_key_alone_has_the_house_for_itself_but_none_is_refused(make_house: Make) -> None:
    house = await watched_house(make_house, api_keys=("one",))
    async with watch(house, "one") as snapshots:
        assert (await snapshots.next())["house"]["running"] == 0
    for key in ("", "wrong"):
        reply = await house.request("GET", "/v1/tide", headers=bearer(key))
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")


async def test_the_engine_is_asked_only_while_somebody_watches(
    make_house: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await watched_house(make_house)
    questions = asked(house, monkeypatch)
    await respond(house)
    await asyncio.sleep(0.2)
    assert questions == []
    async with watch(house) as one, watch(house) as two:
        await one.next()
        await two.next()
        await until(lambda: len(questions) > 1)
    await until(lambda: house.gateway.tide.num_watchers == 0)
    before = len(questions)
    await asyncio.sleep(0.2)
    assert len(questions) <= before + 1  # one may have been under way
    assert all(len(question) == 1 for question in questions)  # one look for both


async def test_what_has_not_changed_is_not_sent_again(make_house: Make) -> None:
    house = await watched_house(make_house, keepalive_s=0.5)
    async with watch(house) as snapshots:
        await snapshots.next()
        async with asyncio.timeout(10):
            assert await snapshots.response.content.readline() == b"\n"
            assert await snapshots.response.content.readline() == b": keep-alive\n"


async def test_an_engine_that_is_gone_is_told_and_the_stream_goes_on(
    make_house: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(sessions: Any) -> SessionsReport:
        raise EngineDeadError("killed by a test")

    house = await watched_house(make_house)
    await respond(house)
    async with watch(house) as snapshots:
        assert len((await snapshots.next())["sessions"]) == 1
        house.engine.die("killed by a test")
        monkeypatch.setattr(house.engine, "describe_sessions", gone)
        told = await snapshots.until(lambda told: told["condition"] == "dead")
        assert told["sessions"] == []


async def test_cells_that_move_are_news(make_house: Make) -> None:
    house = await watched_house(make_house)
    await respond(house)
    [use] = house.gateway.tide.register.recent("")
    async with watch(house) as snapshots:
        await snapshots.next()
        for cells, runs in (("d>>", "1d2>"), ("dhh", "1d2h"), ("<hk", "1<1h1k"), ("---", "3-")):
            house.engine.sessions[use.name] = SessionKv(use.name, 48, cells)
            await snapshots.until(lambda told, runs=runs: told["sessions"][0]["cells"] == runs)


async def test_watchers_are_bounded_and_one_who_leaves_makes_room(make_house: Make) -> None:
    house = await watched_house(make_house)
    room = house.gateway.tide._room
    async with watch(house):
        room.used += MAX_WATCHERS - 1
        reply = await house.request("GET", "/v1/tide")
        assert (reply.status, reply.error["code"]) == (429, "server_busy")
        room.used -= MAX_WATCHERS - 1
    await until(lambda: room.used == 0)
    async with watch(house) as snapshots:
        assert await snapshots.next() is not None


async def test_a_server_that_leaves_ends_the_stream_in_order(make_house: Make) -> None:
    house = await watched_house(make_house)
    async with watch(house) as snapshots:
        await snapshots.next()
        await house.gateway.drain(1.0)
        while await snapshots.next() is not None:
            pass
    reply = await house.request("GET", "/v1/tide")
    assert (reply.status, reply.error["code"]) == (503, "shutting_down")
