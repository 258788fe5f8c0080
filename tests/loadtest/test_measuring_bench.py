"""How much is made ready for users who have a time, and what ends the look at a server."""

from __future__ import annotations

import asyncio
import io
from types import SimpleNamespace
from typing import cast

import pytest

from loadtest.drivers.base import ServerUnreachableError
from loadtest.drivers.survey import Survey
from loadtest.drivers.target import Target
from loadtest.measured import Measured
from loadtest.measuring.bench import AskedLoad, Bench, Measuring, NothingMeasuredError, supply
from loadtest.measuring.progress import Display
from loadtest.spec import WorkloadSpec
from tests.loadtest.test_describe import report
from tests.support.scripted_driver import steady
from tests.support.virtual_runs import closed_plan, requests, run_plan

TIMED = WorkloadSpec(max_concurrency=3, duration_s=10.0)


def warmed(seconds: float) -> list[Measured]:
    return [run_plan(closed_plan(requests([None] * 4), users=2), steady(seconds)).measured]


def test_users_have_more_to_ask_than_they_get_answered() -> None:
    assert supply(TIMED, warmed(0.5)) == 3 * 41
    assert supply(TIMED, warmed(50.0)) == 3 * 2
    assert supply(TIMED, []) == 3 * 201


def test_what_is_made_ready_has_an_end() -> None:
    assert supply(TIMED, warmed(1e-6)) == 50_000


async def test_a_run_whose_server_is_gone_before_its_last_repeat_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def take(bench: Bench, spec: WorkloadSpec, load: AskedLoad, title: str, repeat: int) -> None:
        if repeat:
            raise ServerUnreachableError("Nothing answers.")
        return cast(None, "the first")

    monkeypatch.setattr(Bench, "take", take)
    monkeypatch.setattr(Bench, "report", lambda *_: report())
    seen = cast(Survey, SimpleNamespace(cost=None, server=report().server))
    measuring = Measuring(None, 0, keep_cache=False)
    bench = Bench(seen, measuring, Display(io.StringIO()), asyncio.Event(), [])
    found = await bench.measure(WorkloadSpec(), AskedLoad(users=1), 3)
    assert found.cut_short == "Of 3 repeats only 1 could be made. Nothing answers."


async def test_a_stop_ends_the_look_at_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, was_ended = asyncio.Event(), asyncio.Event()

    async def survey(target: Target) -> None:
        stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            was_ended.set()

    monkeypatch.setattr("loadtest.measuring.bench.survey", survey)
    target, measuring = Target("http://127.0.0.1:1"), Measuring(None, 0, keep_cache=False)
    with pytest.raises(NothingMeasuredError):
        await asyncio.wait_for(Bench.of(target, measuring, Display(io.StringIO()), stop, []), 10)
    assert was_ended.is_set()
