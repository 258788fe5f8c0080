"""Which pictures a report has, and what each says to those who cannot see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from loadtest.report.distributions import SHOWN, draw_compare, draw_run, draw_sweep
from loadtest.report.loads import draw_cost, draw_loads
from loadtest.report.over_time import draw_timeline, draw_waterfall
from loadtest.report.ratios import draw_ratios
from loadtest.report.style import WIDE, Sheet, drawing, save_png
from loadtest.report.words import (
    TTFT,
    Measure,
    figure,
    limit_words,
    number,
    value_words,
)
from loadtest.results import CompareReport, Report, RunReport, SweepPoint, SweepReport


@dataclass(frozen=True, slots=True)
class Picture:
    """``alt`` says what it shows in figures; ``reading`` how it is to be read."""

    name: str
    title: str
    alt: str
    reading: str
    draw: Callable[[Sheet], Figure]

    def drawn(self, sheet: Sheet) -> Figure:
        with drawing():
            return self.draw(sheet)


@dataclass(frozen=True, slots=True)
class Part:
    """Pictures that belong together; of a single run, if ``run`` is not None."""

    title: str
    pictures: list[Picture]
    run: RunReport | None = None


def parts_of(report: Report) -> list[Part]:
    """All that is worth drawing, what answers the question first."""
    match report:
        case RunReport():
            return [Part("", list(_of_run(report)), report)]
        case SweepReport():
            shown = _closer(report)
            return [Part("", list(_of_sweep(report))), *(_part_of_point(report, point) for point in shown)]
        case CompareReport():
            first = Part("", list(_of_compare(report)))
            return [first, *(_part_of_side(name, run) for name, run in (("A", report.a), ("B", report.b)))]


def write_pngs(report: Report, directory: Path) -> list[Path]:
    """In light colours, into a directory that is made if need be; gives the paths, in the page's order."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for part in parts_of(report):
        for picture in part.pictures:
            path = directory / f"{picture.name}.png"
            save_png(picture.drawn(WIDE), path)
            paths.append(path)
    return paths


# ---- a run ----

_READ_DISTRIBUTIONS = (
    "Each curve gives the share of completed requests (of gaps between pieces, for inter-token latency)"
    " that took no longer than the value below it; further left is better, and a long flat end is a tail."
    " Dots are p50, p90 and p99 with their intervals. The dashed line is the same latency counted from"
    " the actual send: what lies between the two is time a request waited to be sent, which other tools"
    " leave out. Thin lines are single repeats. The share beside a limit is of all requests: one that failed"
    " did not keep it, and is in no curve."
)
_READ_TIMELINE = (
    "Areas are what the server says of itself, the dark line is what the tool had sent and not yet got"
    " back. Requests that the server lists as waiting or swapped have a client who waits."
)
_READ_WATERFALL = (
    "One line a request, the first intended on top: once when it was, once how long it took. It"
    " begins when the schedule wanted it sent. The grey part is waiting to be sent, which latency from send"
    " leaves out; the sand part waiting for the first token; the dark part the answer. Sand that widens"
    " downwards is a queue that grows."
)


def _of_run(run: RunReport, suffix: str = "") -> Iterator[Picture]:
    yield Picture(
        f"distributions{suffix}",
        "How long requests took",
        _alt_of(run),
        _READ_DISTRIBUTIONS,
        partial(draw_run, run),
    )
    if not run.repeats:
        return
    repeat, which = run.repeats[0], _which_repeat(run)
    yield Picture(
        f"timeline{suffix}",
        f"What the server did meanwhile{which}",
        f"At most {repeat.schedule.peak_concurrency} requests in flight.",
        _READ_TIMELINE,
        partial(draw_timeline, repeat),
    )
    yield Picture(
        f"waterfall{suffix}",
        f"Each request{which}",
        f"{repeat.summary.completed} completed, {repeat.summary.failed} failed, {repeat.summary.left} left,"
        f" {repeat.summary.unfinished} unfinished.",
        _READ_WATERFALL,
        partial(draw_waterfall, repeat),
    )


def _which_repeat(run: RunReport) -> str:
    return f" (repeat 1 of {len(run.repeats)})" if len(run.repeats) > 1 else ""


def _alt_of(run: RunReport) -> str:
    return "; ".join(_in_figures(run, measure) for measure in SHOWN)


def _in_figures(run: RunReport, measure: Measure) -> str:
    found = measure.of(run.summary)
    if found is None:
        return f"{measure.name}: none"
    return f"{measure.name}: p50 {figure(found.p50)}, p90 {figure(found.p90)}, p99 {figure(found.p99)} ms"


# ---- a sweep ----


def _of_sweep(sweep: SweepReport) -> Iterator[Picture]:
    if not sweep.points:
        return
    yield Picture(
        "latency-throughput",
        "What throughput costs",
        "; ".join(
            f"{value_words(sweep, point.value)}: {_in_figures(point.run, TTFT)}" for point in sweep.points
        ),
        "Each point is a run; the number beside it is its load. Further right is more from the server,"
        " further up is a longer wait. A line that turns upward has found the server's capacity; one that"
        " then bends back gets less for more. Bars are intervals; a hollow point is not to be trusted."
        " Time to first token and end to end count from the intended time, so a backlog shows.",
        partial(draw_cost, sweep),
    )
    yield Picture(
        "load",
        "Where it bends, and where it breaks",
        f"{limit_words(sweep)} {sweep.knee_note}",
        "Throughput is what came out for what was asked; the knee is where more load begins to bring much"
        " less. Within the SLO are those of all requests that met every limit; a failure is a miss. The limit"
        " lies in the shaded band: its left edge is the highest load that was measured within, its right edge"
        " the lowest that was not.",
        partial(draw_loads, sweep),
    )
    yield Picture(
        "distributions",
        "How the distributions move",
        "; ".join(f"{value_words(sweep, point.value)}: {_alt_of(point.run)}" for point in sweep.points),
        "The same curves for all loads, the stronger the more load. A curve that keeps its shape as it moves"
        " right says that all wait longer; one whose end alone moves, that some do.",
        partial(draw_sweep, sweep),
    )


def _closer(sweep: SweepReport) -> list[SweepPoint]:
    """The points at the limit, within and beyond; without one the knee, else the highest load."""
    wanted = {sweep.highest_within_slo, sweep.lowest_beyond_slo} - {None}
    if not wanted and sweep.points:
        wanted = {sweep.points[-1].value if sweep.knee is None else sweep.knee}
    return [point for point in sweep.points if point.value in wanted]


def _part_of_point(sweep: SweepReport, point: SweepPoint) -> Part:
    pictures = list(_of_run(point.run, f"-at-{number(point.value).replace(',', '')}"))
    return Part(f"At {value_words(sweep, point.value)}", pictures, point.run)


# ---- a comparison ----


def _of_compare(report: CompareReport) -> Iterator[Picture]:
    yield Picture(
        "ratios",
        "What B is by A",
        "; ".join(f"{ratio.measure}: {figure(ratio.ratio)}, {ratio.verdict}" for ratio in report.ratios),
        "Ratios of medians over pairs of runs. An interval that holds 1 is no difference; how wide it is"
        " says how small a difference would have been seen.",
        partial(draw_ratios, report),
    )
    yield Picture(
        "distributions",
        "Both distributions",
        f"A: {_alt_of(report.a)}. B: {_alt_of(report.b)}.",
        "All requests of all rounds of A (solid) and of B (dashed).",
        partial(draw_compare, report),
    )


def _part_of_side(name: str, run: RunReport) -> Part:
    return Part(f"{name}: {run.label}", list(_of_run(run, f"-{name.lower()}")), run)
