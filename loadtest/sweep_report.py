"""What a sweep asks at each of its loads, and what its report says of them. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from loadtest.describe import faults_of_point, is_sustained
from loadtest.results import FORMAT, RunReport, SweepPoint, SweepReport
from loadtest.spec import EACH_USER, Arrival, WorkloadSpec
from loadtest.sweep import Point, Sweep, is_flat

Over = Literal["rate", "concurrency"]
DEFAULT_DURATION_S = 30.0
DEFAULT_LEAST = 50  # requests, or conversations, at each load
_ALONE = 8  # requests that tell how fast one user is served
_ALIKE = 1.1  # mean lengths


def workload_at(spec: WorkloadSpec, over: Over, value: float) -> WorkloadSpec:
    """As much of it as this load needs to be there for a while: a number of requests alone would make high
    loads short. Users with a duration ask as many as they can.
    """
    if over == "concurrency" and spec.duration_s is not None:
        return replace(spec, num_requests=None, sessions=None)
    least = spec.sessions or spec.num_requests or DEFAULT_LEAST
    if over == "concurrency":
        number = max(least, EACH_USER * int(value))
    else:
        number = max(least, math.ceil(value * (spec.duration_s or DEFAULT_DURATION_S)))
    return _sized(spec, number)


def workload_alone(spec: WorkloadSpec) -> WorkloadSpec:
    """A little of it, for one user to ask."""
    few = replace(spec, burstiness=1.0, ramp_to=None, return_s=None, trace_scale=1.0)
    return _sized(replace(few, arrival=Arrival.CLOSED, max_concurrency=1), _ALONE)


def _sized(spec: WorkloadSpec, number: int) -> WorkloadSpec:
    """With so many conversations, where it has any, else requests."""
    if spec.has_conversations:
        return replace(spec, sessions=number, num_requests=None, duration_s=None)
    return replace(spec, num_requests=number, sessions=None, duration_s=None)


def first_rate(alone: RunReport) -> float | None:
    """Half of what one user gets, in conversations a second; None if nothing was answered."""
    begun = sum(
        row.turn == 0 and row.outcome == "completed" for repeat in alone.repeats for row in repeat.requests
    )
    seconds = alone.summary.duration_s
    return float(f"{begun / seconds / 2:.2g}") if begun and seconds else None


def point_of(value: float, run: RunReport) -> Point:
    """``offered`` is whether the load was there, not whether the server bore it. One that its cap kept from
    being sent was: it is the server that did not bear it.
    """
    summary = run.summary
    return Point(
        value,
        summary.sustained_tok_s,
        summary.slo_attainment,
        offered=not (run.interrupted or faults_of_point(run)),
        is_sustained=is_sustained(run) and not run.schedule.fell_short,
        num_requests=max(1, summary.asked - summary.left - summary.slow),
    )


def sweep_report(
    sweep: Sweep, runs: Mapping[float, RunReport], over: Over, attainment: float, notes: Sequence[str]
) -> SweepReport:
    """``notes``: of how it went."""
    limit, knee = sweep.limit(), sweep.knee()
    points = [
        SweepPoint(point.value, sweep.meets_slo(point), runs[point.value], point.is_sustained, point.interval)
        for point in sweep.points
    ]
    return SweepReport(
        format=FORMAT,
        over=over,
        points=points,
        knee=knee,
        knee_note=_knee_note(sweep, knee),
        highest_within_slo=limit.within,
        lowest_beyond_slo=limit.beyond,
        attainment=attainment,
        notes=[*notes, *_notes(sweep, over), *_notes_of_lengths(runs.values())],
    )


def _knee_note(sweep: Sweep, knee: float | None) -> str:
    offered = [point for point in sweep.points if point.offered]
    if knee is None:
        if len(offered) < 4:
            return "Too few loads were measured to find a knee."
        if is_flat([point.throughput for point in offered]):
            return "There is no knee: from the least load on, more brought no more output."
        if sweep.is_saturated():
            return "No load stands out as the knee, though at the highest more brought little more output."
        return "There is no knee: the output grew with the load, up to the highest that was measured."
    at = next(point for point in offered if point.value == knee)
    top = max(offered, key=lambda point: point.value)
    more, load = top.throughput / at.throughput - 1, top.value / knee
    return (
        f"Up to {knee:g} the output grows with the load; {load:.2g} times as much load as that changes it by"
        f" {more:+.0%}. Found by Kneedle (Satopää et al., 2011) in output by load."
    )


def _notes_of_lengths(runs: Iterable[RunReport]) -> list[str]:
    """Loads that ask different parts of a trace are not the same workload."""
    by_load = [[row for repeat in run.repeats for row in repeat.requests] for run in runs]
    asked = [load for load in by_load if load]
    for what, lengths in (
        ("prompts", [statistics.fmean(row.input_len for row in load) for load in asked]),
        ("answers", [statistics.fmean(row.output_len for row in load) for load in asked]),
    ):
        if max(lengths) > _ALIKE * min(lengths):
            most = max(len(load) for load in asked)
            return [
                f"Not all loads asked the same: in the mean, {what} have {min(lengths):.0f} to"
                f" {max(lengths):.0f} tokens. With {most} requests at each they would."
            ]
    return []


def _notes(sweep: Sweep, over: Over) -> list[str]:
    notes, limit = list[str](), sweep.limit()
    if limit.surprises:
        notes.append(
            f"{_list(limit.surprises)} met the SLO though {limit.beyond:g} did not: the limit is within what"
            " runs differ by. More requests at each load, or --repeats, tell them apart."
        )
    if limit.in_doubt:
        notes.append(
            f"At {_list(limit.in_doubt)} too few requests were sent to tell whether the SLO is met: by 95 %"
            " intervals of its share it may be or not. More requests at each load narrow that."
        )
    unsustained = [point.value for point in sweep.points if point.offered and not point.is_sustained]
    if unsustained:
        notes.append(
            f"At {_list(unsustained)} the server did not bear the load: its queue grew as long as requests"
            " came. How many of them met an SLO depends on how long that was, so it counts as missed."
        )
    missing = [point.value for point in sweep.points if not point.offered]
    if missing:
        notes.append(
            f"At {_list(missing)} the load was not what was asked; neither knee nor limit goes by that."
        )
    elif not sweep.is_saturated():
        more = "more users" if over == "concurrency" else "a higher rate"
        notes.append(f"The server was not saturated: {more} would have brought more output.")
    return notes


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
