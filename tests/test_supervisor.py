"""SupervisedEngine over real engine processes with a fake model: death, restart, and giving up."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.client import EngineClient, EngineDeadError, EngineHealth, EngineStartError
from engine.config import EngineConfig
from engine.messages import StepReport
from engine.restarts import RestartPlan
from engine.supervisor import SupervisedEngine
from tests.support.fake_kv import expected_tokens
from tests.test_engine_client import FAKE, Collector, engine_processes, request

Start = Callable[..., Coroutine[Any, Any, SupervisedEngine]]


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts an engine whose processes are, one after the other, what is listed."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    engines: list[SupervisedEngine] = []

    async def start_engine(*models: str, max_restarts: int = 5, delay_s: float = 0.01) -> SupervisedEngine:
        lines = tmp_path / "models"
        lines.write_text("\n".join(models))
        config = EngineConfig(model=f"next:{lines}")
        engine = await SupervisedEngine.start(
            partial(EngineClient.start, config, module=FAKE), RestartPlan(max_restarts, delay_s=delay_s)
        )
        engines.append(engine)
        return engine

    yield start_engine
    for engine in engines:
        await engine.close()


def process_id(engine: SupervisedEngine) -> int:
    assert isinstance(engine._engine, EngineClient)
    return engine._engine.process_id


def kill(engine: SupervisedEngine) -> None:
    os.kill(process_id(engine), signal.SIGKILL)


async def is_back(engine: SupervisedEngine, num_restarts: int = 1) -> None:
    async with asyncio.timeout(20):
        while engine.num_restarts < num_restarts:
            await asyncio.sleep(0.01)
    assert engine.health() is EngineHealth.OK
    assert engine.restart_in_s is None


async def answer(engine: SupervisedEngine, name: str) -> list[int]:
    sink = Collector()
    engine.submit(request(name, [1, 2, 3]), sink)
    await asyncio.wait_for(sink.done.wait(), 10)
    return sink.tokens


async def test_another_takes_its_place_and_answers_the_same(start: Start) -> None:
    engine = await start("fake:0.01", "fake")
    first = process_id(engine)
    sinks = [Collector() for _ in range(20)]
    for i, sink in enumerate(sinks):
        engine.submit(request(f"r{i}", [i], max_tokens=500), sink)
    await asyncio.wait_for(sinks[0].changed.wait(), 10)
    kill(engine)
    for sink in sinks:
        await asyncio.wait_for(sink.done.wait(), 10)
        assert isinstance(sink.error, EngineDeadError)
    await is_back(engine)
    assert process_id(engine) != first
    assert await answer(engine, "r0") == expected_tokens([1, 2, 3], 5)  # the name of one that was lost
    report = await engine.check_integrity()
    assert (report.problems, report.stats.blocks_in_use) == ((), 0)


async def test_while_there_is_none_everything_is_refused_and_said_so(start: Start) -> None:
    engine = await start("fake:0.01", "slow-load")
    sink = Collector()
    engine.submit(request("a", [1], max_tokens=500), sink)
    await asyncio.wait_for(sink.changed.wait(), 10)
    generated = engine.stats.generated_tokens_total
    kill(engine)
    await asyncio.wait_for(sink.done.wait(), 10)
    assert engine.health() is EngineHealth.RESTARTING
    assert engine.restart_in_s is not None and 1 <= engine.restart_in_s < 20
    with pytest.raises(EngineDeadError):
        engine.submit(request("late", [1]), Collector())
    with pytest.raises(EngineDeadError):
        await engine.check_integrity()
    with pytest.raises(EngineDeadError):
        await engine.describe_kv(1)
    engine.pause("a")
    engine.resume("a")
    engine.abort("a")
    assert engine.stats.generated_tokens_total >= generated > 0
    assert engine.stats.num_running == 0
    assert engine.info.model_name == "fake"
    assert engine.num_restarts == 0


async def test_listeners_hear_of_the_next_ones_steps(start: Start) -> None:
    engine = await start("fake", "fake")
    reports: list[StepReport] = []
    engine.add_step_listener(reports.append)
    await answer(engine, "a")
    kill(engine)
    await is_back(engine)
    before = len(reports)
    await answer(engine, "b")
    assert len(reports) > before
    assert engine.stats is reports[-1].stats


async def test_the_next_one_is_watched_too(start: Start) -> None:
    engine = await start("fake", "fake", "fake")
    for count in (1, 2):
        kill(engine)
        await is_back(engine, count)
    assert await answer(engine, "a") == expected_tokens([1, 2, 3], 5)


@pytest.mark.parametrize("failure", ["fail-load", "crash-load"])
async def test_a_start_that_fails_is_tried_again(
    start: Start, caplog: pytest.LogCaptureFixture, failure: str
) -> None:
    engine = await start("fake", failure, failure, "fake")
    kill(engine)
    await is_back(engine)
    assert await answer(engine, "a") == expected_tokens([1, 2, 3], 5)
    assert caplog.text.count("could not be started again") == 2


async def test_after_too_many_deaths_it_is_given_up(start: Start) -> None:
    engine = await start("fake", "fail-load", "fake", "fake", max_restarts=2)
    kill(engine)
    await is_back(engine)
    gone = asyncio.ensure_future(engine.wait_dead())
    await asyncio.sleep(0)
    assert not gone.done()
    kill(engine)
    reason = await asyncio.wait_for(gone, 10)
    assert "SIGKILL" in reason and "death 3 within 600 s" in reason
    assert engine.health() is EngineHealth.DEAD
    assert engine.restart_in_s is None
    with pytest.raises(EngineDeadError):
        engine.submit(request("late", [1]), Collector())


async def test_without_restarts_the_first_death_is_the_end(start: Start) -> None:
    engine = await start("fake", "fake", max_restarts=0)
    kill(engine)
    assert await asyncio.wait_for(engine.wait_dead(), 10) == "its process was killed by SIGKILL"
    assert engine.health() is EngineHealth.DEAD


async def test_another_model_is_not_served_under_the_name_of_the_first(start: Start) -> None:
    engine = await start("fake", "other", "fake")
    kill(engine)
    reason = await asyncio.wait_for(engine.wait_dead(), 20)
    assert "SIGKILL" in reason and "other weights" in reason
    assert engine.health() is EngineHealth.DEAD
    assert engine.num_restarts == 0
    with pytest.raises(EngineDeadError):
        engine.submit(request("late", [1]), Collector())


async def test_an_engine_that_breaks_in_a_step_is_replaced(start: Start) -> None:
    engine = await start("fail-step", "fake")
    sink = Collector()
    engine.submit(request("a", [1]), sink)
    await asyncio.wait_for(sink.done.wait(), 10)
    assert "scripted failure" in str(sink.error)
    await is_back(engine)
    assert await answer(engine, "a") == expected_tokens([1, 2, 3], 5)


async def test_the_first_start_is_not_tried_again(start: Start) -> None:
    with pytest.raises(EngineStartError):
        await start("fail-load", "fake")


@pytest.mark.parametrize(("next_one", "delay_s"), [("slow-load", 0.01), ("fake", 60)])
async def test_closing_while_it_restarts_does_not_wait_for_it(
    start: Start, caplog: pytest.LogCaptureFixture, next_one: str, delay_s: float
) -> None:
    """In the middle of a load, and between two tries."""
    engine = await start("fake", "fail-load", next_one, delay_s=delay_s)
    with caplog.at_level(logging.WARNING):
        kill(engine)
        async with asyncio.timeout(20):
            while caplog.text.count("another engine is started") < 2:
                await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    await asyncio.wait_for(engine.close(), 5)
    left = {task.get_name() for task in asyncio.all_tasks()}
    assert not any(name.startswith("tidegate-engine") for name in left)
    assert engine_processes() == []
