"""The meter of the tool's own lag, in virtual time."""

from __future__ import annotations

import asyncio
import time

import pytest

from loadtest.clock import MonotonicClock
from loadtest.measured import GRID_S
from loadtest.measuring.lag import LagMeter, ProcessorMeter
from loadtest.stats import distribution
from tests.support.virtual_time import VirtualClock, run_virtually


async def lag_over(seconds: float, clock: VirtualClock, *stalls: tuple[float, float]) -> list[float]:
    """What a meter sees while the loop stands still at these times for so long."""
    meter = LagMeter(clock)
    watching = asyncio.create_task(meter.watch())
    for at_s, for_s in stalls:
        await clock.sleep_until(at_s)
        clock.spend(for_s)
    await clock.sleep_until(seconds + GRID_S / 2)
    watching.cancel()
    return meter.samples_s


def test_a_loop_that_is_on_time_has_no_lag() -> None:
    assert run_virtually(lag_over(10.0, VirtualClock())) == [0.0] * 2000


def test_a_stall_counts_for_as_long_as_it_lasts() -> None:
    samples = run_virtually(lag_over(10.0, VirtualClock(), (2.0, 1.0)))
    assert len(samples) == 2000
    late = [sample for sample in samples if sample > 1e-9]
    assert len(late) == pytest.approx(1.0 / GRID_S, abs=1)
    assert max(late) == pytest.approx(1.0, abs=GRID_S)
    assert sum(late) / len(late) == pytest.approx(0.5, abs=GRID_S)
    found = distribution(samples)
    assert found is not None and found.p99 == pytest.approx(0.9, abs=0.02)  # a tenth of the time, up to 1 s


def test_time_counts_from_the_start_of_the_run() -> None:
    async def main() -> None:
        clock = VirtualClock()
        await clock.sleep_until(3.0)
        clock.start()
        assert clock.now() == 0.0
        assert await lag_over(1.0, clock) == pytest.approx([0.0] * 200, abs=1e-9)

    run_virtually(main())


@pytest.mark.case("G2")
async def test_a_loop_that_really_stands_still_is_seen_to() -> None:
    meter = LagMeter(MonotonicClock())
    watching = asyncio.create_task(meter.watch())
    for _ in range(3):
        await asyncio.sleep(0.02)
        time.sleep(0.05)  # noqa: ASYNC251 - the fault that is looked for
    await asyncio.sleep(0.02)
    watching.cancel()
    assert sum(late_s >= 0.03 for late_s in meter.samples_s) >= 3 * 4  # 0.05 s late, 0.045 s late and so on
    assert min(meter.samples_s) >= 0.0


def test_the_share_of_the_processor_is_of_the_time_that_passed() -> None:
    async def main() -> None:
        clock = VirtualClock()
        meter = ProcessorMeter(clock)
        assert meter.share() == 0.0
        spent = sum(range(2_000_000))  # some processor time
        clock.spend(1000.0)
        assert spent and 0 < meter.share() < 0.01

    run_virtually(main())
