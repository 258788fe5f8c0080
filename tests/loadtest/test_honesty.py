"""Whole runs in real time: every percentile is that of the server's stamps, within 1 % and the tool's lag.

The server is a process of its own that notes when it wrote what, by the same clock.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from benchmarks.scripted_openai import Record, Reply, Script, ScriptedServer, scripted_openai
from loadtest.clock import MonotonicClock
from loadtest.drivers.apis import Options
from loadtest.drivers.driver import ServerDriver
from loadtest.drivers.target import Target
from loadtest.measured import Measured, Progress
from loadtest.measuring.runner import Runner
from loadtest.plan import Conversation, Load, Plan, PlannedRequest
from loadtest.results import Distribution, Report, RunReport, Schedule, Summary
from loadtest.schedule import schedule
from loadtest.stats import PERCENTILES, distribution
from loadtest.summary import summarize

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

    def lag_ms(self, percentile: str) -> float:
        """By how much what was measured may be off: the tool's own lag, and what its meter cannot see of it.

        Between two points of its grid there are 5 ms. Far below the worst, a ms is for the kernel.
        """
        lags = (self.schedule.lag_ms, self.schedule.loop_lag_ms)
        if percentile in ("p50", "p90", "mean"):
            return max(lag.p99 for lag in lags if lag is not None) + 1.0
        return max(lag.max for lag in lags if lag is not None) + 5.0

    def assert_is(self, found: Distribution | None, samples_s: Iterable[float], *, are_gaps: bool) -> None:
        """Within 1 % and the lag; and what counts from an intended time is never shorter than it was."""
        true = distribution([sample * 1e3 for sample in samples_s])
        assert found is not None and true is not None
        assert found.count == true.count
        for name in (*PERCENTILES, "max"):
            was, lag_ms = getattr(true, name), self.lag_ms(name)
            off_by = getattr(found, name) - was
            assert -lag_ms * are_gaps <= off_by <= 0.01 * was + lag_ms, (name, found, true)


def poisson_plan(count: int, max_concurrency: int | None = None) -> Plan:
    drawn = random.Random(0)
    times = sorted(drawn.uniform(0.0, count / _RATE) for _ in range(count))
    singles = [PlannedRequest(index, f"number {index}", 12, 8, at) for index, at in enumerate(times)]
    return Plan(
        tuple(Conversation((one,)) for one in singles), Load.OPEN, _RATE, max_concurrency=max_concurrency
    )


async def run(process: ScriptedServer, script: Script, plan: Plan) -> RealRun:
    process.rewrite(script)
    clock = MonotonicClock()
    target = Target(process.url, "scripted", api="chat", transport="sse", timeout_s=60)
    driver = ServerDriver(target, Options(tells_usage=True), clock)
    await driver.open()
    try:
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


SCRIPTS = {
    "keeps up": Script(replies=tuple(Reply(first_s=0.01 * k, gaps_s=[0.005, 0.01 * k]) for k in range(1, 6))),
    "is saturated": Script(replies=(Reply(first_s=0.01, gap_s=0.003),), max_running=1),
}


@pytest.mark.parametrize("max_concurrency", [None, 4])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
async def test_every_percentile_is_that_of_the_servers_own_stamps(
    process: ScriptedServer, script: Script, max_concurrency: int | None
) -> None:
    done = await run(process, script, poisson_plan(40, max_concurrency))
    intended = {timeline.planned.index: timeline.intended_at for timeline in done.measured.timelines}
    records, summary = done.records, done.summary
    assert len(records) == summary.completed == 40
    ttft_s = [records[index].written_at[0][0] - at for index, at in intended.items()]
    e2e_s = [(records[index].ended_at or 0.0) - at for index, at in intended.items()]
    times = [record.written_at[0] for record in records.values()]
    done.assert_is(summary.ttft_ms, ttft_s, are_gaps=False)
    done.assert_is(summary.e2e_ms, e2e_s, are_gaps=False)
    gaps_s = (after - before for each in times for before, after in pairwise(each))
    done.assert_is(summary.itl_ms, gaps_s, are_gaps=True)
    done.assert_is(summary.tpot_ms, ((each[-1] - each[0]) / 7 for each in times), are_gaps=True)


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


async def test_a_response_that_ends_late_keeps_no_user_waiting(process: ScriptedServer) -> None:
    singles = [PlannedRequest(index, f"number {index}", 12, 2) for index in range(12)]
    plan = Plan(tuple(Conversation((one,)) for one in singles), Load.CLOSED, max_concurrency=2)
    done = await run(process, Script(replies=(Reply(first_s=0.01, end_late_s=0.2),)), plan)
    assert done.summary.completed == 12
    assert done.schedule.lag_ms is not None and done.schedule.lag_ms.p90 < 100


@contextmanager
def starved(pid: int) -> Iterator[None]:
    """Others run on the processor that a process is on, and it is asked to let them go first."""
    core = min(os.sched_getaffinity(0))
    burning = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        burners = [stack.enter_context(subprocess.Popen(burning)) for _ in range(3)]
        for one in (pid, *(burner.pid for burner in burners)):
            os.sched_setaffinity(one, {core})
        os.setpriority(os.PRIO_PROCESS, pid, 19)
        try:
            yield
        finally:
            for burner in burners:
                burner.kill()


@pytest.mark.case("G2")
def test_a_tool_that_is_starved_of_the_processor_says_so_in_its_report(
    process: ScriptedServer, tmp_path: Path
) -> None:
    process.rewrite(SCRIPTS["keeps up"])
    path = tmp_path / "report.json"
    command = [sys.executable, "-m", "loadtest.cli", "run", "--base-url", process.url, "--json", str(path)]
    command += ["--rate", "60", "--num-requests", "90", "--input-len", "40", "--output-len", "4"]
    command += ["--warmup", "0", "--repeats", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
        deadline = time.monotonic() + 60
        while len(process.records()) < 30:  # those of the survey are fewer
            assert time.monotonic() < deadline and tool.poll() is None
            time.sleep(0.05)
        with starved(tool.pid):
            time.sleep(0.5)
        printed, _ = tool.communicate(timeout=60)
    assert tool.returncode == 3
    report = msgspec.json.decode(path.read_bytes(), type=Report)
    assert isinstance(report, RunReport)
    assert not report.schedule.on_schedule
    late = next(fault for fault in report.schedule.faults if "event loop was late" in fault)
    assert late in " ".join(printed.split())
    assert report.summary.completed == 90
