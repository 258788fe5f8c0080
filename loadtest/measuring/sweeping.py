"""Measures one load after the other, as ``loadtest.sweep`` names them. Runs on: the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from msgspec import structs

from loadtest.drivers.base import ServerUnreachableError
from loadtest.drivers.open_files import OpenFilesError
from loadtest.measuring.bench import AskedLoad, Bench, NothingMeasuredError
from loadtest.results import RunReport, SweepReport
from loadtest.spec import WorkloadError, WorkloadSpec
from loadtest.sweep import Sweep
from loadtest.sweep_report import (
    Over,
    first_rate,
    point_of,
    sweep_report,
    workload_alone,
    workload_at,
)


@dataclass(frozen=True, slots=True)
class Sweeping:
    """What is swept. ``first``: loads to measure in any case; empty: from one user on."""

    spec: WorkloadSpec
    over: Over
    first: tuple[float, ...]
    repeats: int
    attainment: float
    has_slo: bool
    most_points: int


async def measure_sweep(sweeping: Sweeping, bench: Bench, stop: asyncio.Event) -> SweepReport:
    """Until all is known or something ends it; what was measured by then is kept.

    Raises what ``Bench.measure`` does, if that is at the first load.
    """
    notes, cut_short = list[str](), ""
    sweep = Sweep(
        sweeping.first or [await _start(sweeping, bench, notes)],
        whole=sweeping.over == "concurrency",
        attainment=sweeping.attainment if sweeping.has_slo else None,
        most_points=sweeping.most_points,
    )
    runs = dict[float, RunReport]()
    while (value := sweep.next_value()) is not None and not (runs and stop.is_set()):
        try:
            runs[value] = await _measure_offered(sweeping, bench, value, stop, notes)
        except ServerUnreachableError as error:
            if not runs:
                raise
            cut_short = f"The sweep ended at {value:g}, with the server gone. {error}"
            break
        except (WorkloadError, OpenFilesError, NothingMeasuredError) as error:
            if not runs:
                raise
            notes.append(f"The sweep ended at {value:g}: {error}")
            break
        sweep.add(point_of(value, runs[value]))
    report = sweep_report(sweep, runs, sweeping.over, sweeping.attainment, notes)
    return structs.replace(report, cut_short=cut_short)


def load_at(sweeping: Sweeping, value: float) -> tuple[WorkloadSpec, AskedLoad]:
    by_users = sweeping.over == "concurrency"
    load = AskedLoad(users=int(value)) if by_users else AskedLoad(rate=value)
    return workload_at(sweeping.spec, sweeping.over, value), load


async def _measure_offered(
    sweeping: Sweeping, bench: Bench, value: float, stop: asyncio.Event, notes: list[str]
) -> RunReport:
    """Once more if the tool itself was late: a moment in which the machine was busy shall not end a sweep."""
    run = await _measure(sweeping, bench, value)
    if run.interrupted or run.cut_short or stop.is_set() or not run.schedule.faults:
        return run
    if point_of(value, run).offered:
        return run
    notes.append(f"At {value:g} the load was not what was asked, so it was measured once more.")
    return await _measure(sweeping, bench, value)


async def _measure(sweeping: Sweeping, bench: Bench, value: float) -> RunReport:
    title = f"{value:g} {'users' if sweeping.over == 'concurrency' else 'a second'}"
    return await bench.measure(*load_at(sweeping, value), sweeping.repeats, title)


async def _start(sweeping: Sweeping, bench: Bench, notes: list[str]) -> float:
    """Of users there is one at first; a rate is taken from how fast one is served."""
    if sweeping.over == "concurrency":
        return 1.0
    alone = await bench.measure(workload_alone(sweeping.spec), AskedLoad(users=1), 1, "one user")
    rate = first_rate(alone)
    if rate is None:
        raise ServerUnreachableError("One user alone got no answer: there is no rate to begin with.")
    notes.append(f"The rates begin at {rate:g} a second, half of what one user alone was served.")
    return rate
