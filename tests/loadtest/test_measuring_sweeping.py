"""What a sweep does about a load that was not there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loadtest.measuring.sweeping import Sweeping, measure_sweep
from loadtest.results import RunReport, SweepReport
from loadtest.spec import WorkloadSpec
from tests.support.load_reports import run_report

LATE = run_report(rate=2.0, lag_ms=8.0)
ON_TIME = run_report(rate=2.0)


class Bench:
    """Gives these reports in turn."""

    def __init__(self, *runs: RunReport) -> None:
        self.left = list(runs)

    async def measure(self, *_: Any) -> RunReport:
        return self.left.pop(0)


async def sweep(bench: Bench, stop: asyncio.Event | None = None) -> SweepReport:
    spec = WorkloadSpec(num_requests=120)
    sweeping = Sweeping(spec, "rate", (2.0,), 1, 0.9, has_slo=False, most_points=1)
    return await measure_sweep(sweeping, bench, stop or asyncio.Event())  # type: ignore[arg-type]


@pytest.mark.parametrize("again", [LATE, ON_TIME])
async def test_a_load_that_was_not_there_is_measured_once_more_and_that_is_told(again: RunReport) -> None:
    bench = Bench(LATE, again, ON_TIME)
    report = await sweep(bench)
    assert [point.run for point in report.points] == [again]
    assert len(bench.left) == 1
    assert "At 2 the load was not what was asked, so it was measured once more." in report.notes


async def test_one_that_was_there_is_not() -> None:
    bench = Bench(ON_TIME, LATE)
    report = await sweep(bench)
    assert [point.run for point in report.points] == [ON_TIME]
    assert not any("once more" in note for note in report.notes)


async def test_who_wants_to_stop_does_not_wait_for_it() -> None:
    stop = asyncio.Event()
    stop.set()
    bench = Bench(LATE, ON_TIME)
    assert [point.run for point in (await sweep(bench, stop)).points] == [LATE]
