"""Whole runs in real time: every percentile is that of the server's stamps, within 1 % and the tool's lag.

The server is a process of its own that notes when it wrote what, by the same clock.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise

import pytest

from loadtest.clock import MonotonicClock
from loadtest.drivers.apis import Options
from loadtest.drivers.driver import ServerDriver
from loadtest.drivers.target import Target
from loadtest.measured import Measured, Progress
from loadtest.plan import Conversation, Load, Plan, PlannedRequest
from loadtest.results import Distribution, Schedule, Summary
from loadtest.runner import Runner
from loadtest.schedule import schedule
from loadtest.stats import PERCENTILES, distribution
from loadtest.summary import summarize
from tests.support.scripted_openai import Record, Reply, Script, ScriptedServer, scripted_openai

pytestmark = pytest.mark.alone
_RATE = 60.0


@pytest.fixture(scope="module")
def process() -> Iterator[ScriptedServer]:
    with scripted_openai() as server:
        yield server


@dataclass(frozen=True, slots=True)
class RealRun:
    """``records``: what the server wrote, by the request's place in the plan. Its times are of the run."""

    measured: Measured
    records: dict[int, Record]
    summary: Summary
    schedule: Schedule

    @property
    def lag_ms(self) -> float:
        """The worst that was measured, and what a grid of 5 ms cannot see."""
        assert self.schedule.lag_ms is not None and self.schedule.loop_lag_ms is not None
        return max(self.schedule.lag_ms.max, self.schedule.loop_lag_ms.max) + 5.0


def poisson_plan(count: int, max_concurrency: int | None = None) -> Plan:
    drawn = random.Random(0)
    times = sorted(drawn.uniform(0.0, count / _RATE) for _ in range(count))
    singles = [PlannedRequest(index, f"number {index}", 12, 8, at) for index, at in enumerate(times)]
    return Plan(
        tuple(Conversation((one,)) for one in singles), Load.OPEN, _RATE, max_concurrency=max_concurrency
    )


async def run(
    process: ScriptedServer,
    script: Script,
    plan: Plan,
    meanwhile: AbstractContextManager[None] = nullcontext(),  # noqa: B008 - it holds nothing
) -> RealRun:
    process.rewrite(script)
    clock = MonotonicClock()
    target = Target(process.url, "scripted", api="chat", transport="sse", timeout_s=60)
    driver = ServerDriver(target, Options(tells_usage=True), clock)
    await driver.open()
    try:
        with meanwhile:
            measured = await Runner(driver, clock, Progress(), asyncio.Event()).run(plan)
    finally:
        await driver.close()
    origin = time.perf_counter() - clock.now()
    records = {int(record.prompt.split()[-1]): in_run(record, origin) for record in process.records()}
    return RealRun(measured, records, summarize([measured], None), schedule(plan, measured))


def in_run(record: Record, origin: float) -> Record:
    record.written_at = [[at - origin for at in times] for times in record.written_at]
    assert record.ended_at is not None
    record.ended_at -= origin
    return record


def assert_is(found: Distribution | None, samples_s: Iterable[float], lag_ms: float) -> None:
    """Not before the server wrote it, and not later than it takes to see."""
    true = distribution([sample * 1e3 for sample in samples_s])
    assert found is not None and true is not None
    assert found.count == true.count
    for name in (*PERCENTILES, "max"):
        off_by = getattr(found, name) - getattr(true, name)
        assert -lag_ms <= off_by <= 0.01 * getattr(true, name) + lag_ms, (name, found, true, lag_ms)


SCRIPTS = {
    "keeps up": Script(replies=tuple(Reply(first_s=0.01 * k, gaps_s=[0.005, 0.01 * k]) for k in range(1, 6))),
    "is saturated": Script(replies=(Reply(first_s=0.01, gap_s=0.003),), max_running=1),
}


@pytest.mark.parametrize("max_concurrency", [None, 4])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
async def test_every_percentile_is_that_of_the_servers_own_stamps(
    process: ScriptedServer, script: Script, max_concurrency: int | None
) -> None:
    done = await run(process, script, poisson_plan(50, max_concurrency))
    intended = {timeline.planned.index: timeline.intended_at for timeline in done.measured.timelines}
    records, lag_ms = done.records, done.lag_ms
    assert len(records) == done.summary.completed == 50
    assert_is(
        done.summary.ttft_ms, (records[index].written_at[0][0] - at for index, at in intended.items()), lag_ms
    )
    assert_is(
        done.summary.e2e_ms, ((records[index].ended_at or 0.0) - at for index, at in intended.items()), lag_ms
    )
    times = [record.written_at[0] for record in records.values()]
    assert_is(
        done.summary.itl_ms, (after - before for each in times for before, after in pairwise(each)), lag_ms
    )
    assert_is(done.summary.tpot_ms, ((each[-1] - each[0]) / 7 for each in times), lag_ms)


@pytest.mark.case("G1")
async def test_a_cap_in_front_of_a_slow_server_hides_no_wait(process: ScriptedServer) -> None:
    """A server of 100 ms, 50 requests a second, 8 of them, one at a time."""
    singles = [PlannedRequest(index, f"number {index}", 12, 1, index / 50) for index in range(8)]
    plan = Plan(tuple(Conversation((one,)) for one in singles), Load.OPEN, 50.0, max_concurrency=1)
    done = await run(process, Script(replies=(Reply(first_s=0.1),)), plan)
    from_schedule, from_send = done.summary.ttft_ms, done.summary.ttft_from_send_ms
    assert from_schedule is not None and from_send is not None
    assert from_schedule.p99 > 4 * from_send.p99
    assert from_schedule.max >= 8 * 100 - 140
    assert not done.schedule.on_schedule
    assert "the server did not keep up" in done.schedule.faults[0]


@contextmanager
def starved() -> Iterator[None]:
    """Others take the interpreter, so that the event loop gets it late."""
    over, before = threading.Event(), sys.getswitchinterval()

    def burn() -> None:
        while not over.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=burn, name=f"burner {number}") for number in range(2)]
    sys.setswitchinterval(0.005)
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)


@pytest.mark.case("G2")
async def test_a_tool_that_is_starved_of_the_processor_says_so(process: ScriptedServer) -> None:
    done = await run(process, SCRIPTS["keeps up"], poisson_plan(15), starved())
    assert not done.schedule.on_schedule
    assert done.schedule.loop_lag_ms is not None and done.schedule.loop_lag_ms.p99 >= 5.0
    assert any("event loop was late" in fault for fault in done.schedule.faults)
