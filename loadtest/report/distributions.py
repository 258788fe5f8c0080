"""How latencies are distributed: for each, the share of requests (or of gaps) that took no longer.

The marks at p50, p90 and p99 are the report's own figures, with their intervals; the curves are drawn from
the single requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.report.samples import all_rows, samples, share_within
from loadtest.report.style import (
    PERCENTILES,
    Sheet,
    colour,
    head,
    latency_axis,
    legend_above,
    nothing_to_see,
    on_surface,
    place_across,
    ramp,
    share_axis,
)
from loadtest.report.words import (
    E2E,
    E2E_FROM_SEND,
    ITL,
    TPOT,
    TTFT,
    TTFT_FROM_SEND,
    Measure,
    figure,
    number,
    percent,
    slo_limit,
    value_words,
)
from loadtest.results import CompareReport, Distribution, RunReport, SweepReport

SHOWN = (TTFT, ITL, TPOT, E2E)
_FROM_SEND = {TTFT: TTFT_FROM_SEND, E2E: E2E_FROM_SEND}
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_MOST_POINTS = 500  # of a curve
_TAIL = 50  # of its last samples are always among them
_PANEL_HEIGHT = 270


@dataclass(frozen=True, slots=True)
class _Line:
    colour: str
    width: float = 2.2
    dash: str = "-"
    label: str = ""
    layer: int = 3


def draw_run(run: RunReport, sheet: Sheet) -> Figure:
    drawn, panels = sheet.figure(len(SHOWN), _PANEL_HEIGHT)
    for axes, measure in zip(panels, SHOWN, strict=True):
        _draw_measure(axes, run, measure)
    return drawn


def draw_compare(report: CompareReport, sheet: Sheet) -> Figure:
    lines = {"A": _Line(colour("tide"), label="A"), "B": _Line(colour("sand"), dash="--", label="B")}
    runs = {"A": report.a, "B": report.b}
    drawn, panels = sheet.figure(len(SHOWN), _PANEL_HEIGHT)
    for axes, measure in zip(panels, SHOWN, strict=True):
        _draw_several(axes, measure, [(runs[side], lines[side]) for side in runs])
    return drawn


def draw_sweep(sweep: SweepReport, sheet: Sheet) -> Figure:
    """All points in one, from the least load to the greatest; only the ends of what is seen are named."""
    drawn, panels = sheet.figure(len(SHOWN), _PANEL_HEIGHT)
    seen = [index for index, point in enumerate(sweep.points) if point.run.summary.completed]
    lines = [
        _Line(tint, label=value_words(sweep, point.value) if index in (seen[:1] + seen[-1:]) else "")
        for index, (point, tint) in enumerate(zip(sweep.points, ramp(len(sweep.points)), strict=True))
    ]
    for axes, measure in zip(panels, SHOWN, strict=True):
        _draw_several(
            axes, measure, [(point.run, line) for point, line in zip(sweep.points, lines, strict=True)]
        )
    return drawn


def _draw_measure(axes: Axes, run: RunReport, measure: Measure) -> None:
    head(axes, f"{measure.name}, ms")
    pooled, distribution = samples(all_rows(run), measure), measure.of(run.summary)
    if distribution is None:
        return nothing_to_see(axes, "No request has one.")
    if not pooled:
        return nothing_to_see(axes, "The report has no single requests.")
    if len(run.repeats) > 1:
        for repeat in run.repeats:
            is_last = repeat is run.repeats[-1]
            line = _Line(colour("haze"), 1.0, label="each repeat" if is_last else "", layer=2)
            _draw_curve(axes, samples(repeat.requests, measure), line)
    _draw_curve(axes, pooled, _Line(colour("tide"), label="as intended" if measure in _FROM_SEND else ""))
    seen = [*pooled, *_draw_from_send(axes, run, measure)]
    limit = slo_limit(run.slo, measure)
    latency_axis(axes, [*_ends(seen), *([] if limit is None else [limit])], "x")
    share_axis(axes)
    _draw_limit(axes, limit, None if limit is None else share_within(all_rows(run), measure, limit))
    _draw_marks(axes, distribution)
    legend_above(axes)
    return None


def _draw_from_send(axes: Axes, run: RunReport, measure: Measure) -> Sequence[float]:
    """The same as it looks from the actual send: a server's backlog is hidden in the difference."""
    from_send = _FROM_SEND.get(measure)
    if from_send is None:
        return ()
    found = samples(all_rows(run), from_send)
    _draw_curve(axes, found, _Line(colour("ink"), 1.3, "--", label="as sent", layer=2))
    return found


def _draw_several(axes: Axes, measure: Measure, lines: Sequence[tuple[RunReport, _Line]]) -> None:
    head(axes, f"{measure.name}, ms")
    drawn: list[float] = []
    for run, line in lines:
        found = samples(all_rows(run), measure)
        _draw_curve(axes, found, line)
        drawn += _ends(found)
    if not drawn:
        return nothing_to_see(axes, "No request has one.")
    limit = slo_limit(lines[0][0].slo, measure)
    latency_axis(axes, [*drawn, *([] if limit is None else [limit])], "x")
    share_axis(axes)
    _draw_limit(axes, limit)
    legend_above(axes)
    return None


def _ends(ascending: Sequence[float]) -> list[float]:
    """The range that an axis has to show, from the least above 0, which pieces read at once are not."""
    above = [value for value in ascending if value > 0]
    return [above[0], above[-1]] if above else []


def _draw_curve(axes: Axes, ascending: Sequence[float], line: _Line) -> None:
    if not ascending:
        return
    count = len(ascending)
    if count <= _MOST_POINTS:
        at = list(range(count))
    else:
        body = _MOST_POINTS - _TAIL
        at = sorted({*(index * count // body for index in range(body)), *range(count - _TAIL, count)})
    axes.step(
        [ascending[0], *(ascending[index] for index in at)],
        [0.0, *((index + 1) / count for index in at)],
        where="post",
        color=line.colour,
        linewidth=line.width,
        linestyle=line.dash,
        label=line.label or None,
        zorder=line.layer,
    )


def _draw_marks(axes: Axes, distribution: Distribution) -> None:
    for name, share in _SHARES.items():
        value, interval = getattr(distribution, name), distribution.intervals.get(name)
        tint = colour(PERCENTILES["p99"])
        if interval is not None:
            axes.plot(
                [interval.low, interval.high], [share, share], color=tint, linewidth=5, alpha=0.35, zorder=4
            )
        axes.plot([value], [share], "o", color=tint, markersize=5, zorder=5)
        is_right = place_across(axes, value) > 0.62
        axes.annotate(
            f"{name}  {figure(value)}",
            (value, share),
            xytext=(-9, 5) if is_right else (9, -13),
            textcoords="offset points",
            ha="right" if is_right else "left",
            fontsize=11.5,
            color=colour("ink"),
            bbox=on_surface(),
            zorder=6,
        )


def _draw_limit(axes: Axes, limit: float | None, within: float | None = None) -> None:
    """``within``: the share of the requests, which is not that of a curve: failures have no latency, and of
    inter-token latency a curve is of gaps.
    """
    if limit is None:
        return
    axes.axvline(limit, color=colour("danger"), linewidth=1.2, linestyle=(0, (4, 3)), zorder=2)
    is_right = place_across(axes, limit) > 0.6
    axes.annotate(
        f"SLO {number(limit)}" + ("" if within is None else f", kept by {percent(within)}"),
        (limit, 0.03),
        xytext=(-5 if is_right else 5, 0),
        textcoords="offset points",
        ha="right" if is_right else "left",
        fontsize=11.5,
        color=colour("danger"),
        bbox=on_surface(),
        zorder=5,
    )
