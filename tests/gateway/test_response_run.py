"""Runs and who follows them: room in the log, comings and goings."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest

from engine.scripted import Script
from gateway.authentication import visitor_with
from gateway.responses.maker import ResponseMaker
from gateway.responses.records import StateSettings
from gateway.responses.run import ResponseRun
from gateway.responses.service import ResponseService
from gateway.responses.store import StateStore
from gateway.tenants import digest_of
from tests.gateway.house import House, open_house, text_ids, until

LONG = "A word. " * 50


@asynccontextmanager
async def opened(tokenizer_dir: str, **settings: Any) -> AsyncIterator[tuple[House, ResponseService]]:
    house = await open_house(tokenizer_dir, info={"max_model_len": 10_000}, **settings)
    store = await asyncio.to_thread(StateStore.open, StateSettings())
    service = ResponseService(house.gateway, store)
    try:
        yield house, service
        await house.check_alive()
    finally:
        await service.close()
        await house.close()
        await asyncio.to_thread(store.close)


async def create(house: House, service: ResponseService, **fields: Any) -> ResponseRun:
    visitor = visitor_with(house.gateway, digest_of(b""))
    assert visitor is not None
    return await service.create(visitor, json.dumps({"model": "tiny", "input": "Hi", **fields}).encode())


async def text_of(run: ResponseRun) -> str:
    events = [json.loads(event.data) async for batch in run.follow() for event in batch]
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


@pytest.mark.parametrize("other_stays", [False, True])
async def test_a_follower_that_lags_and_goes_holds_up_nobody_any_more(
    tokenizer_dir: str, other_stays: bool
) -> None:
    async with opened(tokenizer_dir, step_s=0.001, max_event_log_bytes=20_000) as (house, service):
        house.say(text_ids(LONG))
        run = await create(house, service, background=True)
        other = asyncio.create_task(text_of(run)) if other_stays else None
        async with aclosing(run.follow()) as lagging:
            await anext(lagging)
            await until(lambda: run.log.is_full)
            assert not run.is_ended
        async with asyncio.timeout(10):
            await run.wait_ended()
        assert run.response.status == "completed"
        assert other is None or await other == LONG


async def test_whoever_is_about_to_follow_is_waited_for_though_the_log_is_full(tokenizer_dir: str) -> None:
    """As it is from the start if a request has long instructions, which its first events repeat."""
    async with opened(tokenizer_dir, max_event_log_bytes=2000) as (house, service):
        house.say(text_ids("Hello."))
        run = await create(house, service, instructions="Be kind. " * 200)
        await until(lambda: run.log.is_full)
        assert await text_of(run) == "Hello."
        assert run.response.status == "completed"


async def test_whom_nobody_follows_is_given_up_when_its_log_is_full(tokenizer_dir: str) -> None:
    async with opened(tokenizer_dir, step_s=0.001, max_event_log_bytes=20_000) as (house, service):
        house.script(Script(token_ids=text_ids("go on "), endless=True))
        run = await create(house, service)
        async with aclosing(run.follow()) as follower:
            await anext(follower)
        async with asyncio.timeout(10):
            await run.wait_ended()
        assert run.response.status == "cancelled"
        assert run.log.num_bytes > 10_000


async def test_who_keeps_up_is_told_of_a_failure_though_another_lags(tokenizer_dir: str) -> None:
    bounds = {"step_s": 0.001, "max_event_log_bytes": 20_000}
    async with opened(tokenizer_dir, engine_restarts=1, **bounds) as (house, service):
        house.script(Script(token_ids=text_ids("go on "), endless=True))
        run = await create(house, service)
        other = asyncio.create_task(text_of(run))
        async with aclosing(run.follow()) as lagging:
            await anext(lagging)
            await until(lambda: run.log.is_full)
            house.engine.die("killed")
            async with asyncio.timeout(10):
                assert (await other).startswith("go on go on ")
            assert (run.response.status, run.is_ended) == ("failed", True)
        await until(lambda: house.gateway.condition == "ok")


async def test_events_of_ended_ones_are_kept_up_to_a_bound(tokenizer_dir: str) -> None:
    async with opened(tokenizer_dir, max_ended_log_bytes=20_000) as (house, service):
        visitor = visitor_with(house.gateway, digest_of(b""))
        assert visitor is not None
        runs = []
        for _ in range(12):
            runs.append(await create(house, service))
            await text_of(runs[-1])
            await runs[-1].wait_ended()
        kept = [run for run in runs if service.running(visitor, run.id) is run]
        assert 0 < len(kept) < len(runs)
        assert kept == runs[-len(kept) :]
        total = sum(run.log.num_bytes for run in kept)
        assert total <= 20_000 < total + runs[-len(kept) - 1].log.num_bytes
        await service.delete(visitor, kept[0].id)
        await text_of(await create(house, service))
        assert all(service.running(visitor, run.id) for run in kept[1:]), "what was deleted takes no room"


async def test_an_ended_one_holds_nothing_but_its_events(
    tokenizer_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = weakref.WeakSet[ResponseMaker]()
    make = ResponseMaker.make

    async def noted(maker: ResponseMaker, scope: AsyncExitStack) -> None:
        makers.add(maker)
        await make(maker, scope)

    monkeypatch.setattr(ResponseMaker, "make", noted)
    async with opened(tokenizer_dir) as (house, service):
        run = await create(house, service)
        assert await text_of(run) == "ok"
        await run.wait_ended()
        gc.collect()
        assert not makers
