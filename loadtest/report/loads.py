"""The points of a sweep: what the server gave for each load, and what it cost those who waited.

Output is that of the time in which the load was whole, where there was one. A point whose run is not to be
trusted is hollow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.describe import faults_of_point
from loadtest.report.style import (
    PERCENTILES,
    Sheet,
    colour,
    from_zero,
    head,
    latency_axis,
    nothing_to_see,
    on_surface,
    place_across,
    share_axis,
    value_axis,
)
from loadtest.report.words import (
    E2E,
    ITL,
    TPOT,
    TTFT,
    Measure,
    number,
    percent,
    slo_limit,
    value_unit,
    value_words,
)
from loadtest.results import SweepPoint, SweepReport

_COST = (TTFT, ITL, TPOT, E2E)
_PANEL_HEIGHT = 280
_DASH = (0, (4, 3))
_NAME_WIDTH, _NAME_HEIGHT = 0.08, 0.07  # of a point's load, by the panel


def draw_cost(sweep: SweepReport, sheet: Sheet) -> Figure:
    """Latency against throughput: what each further token a second cost."""
    drawn, panels = sheet.figure(len(_COST), _PANEL_HEIGHT)
    for axes, measure in zip(panels, _COST, strict=True):
        _draw_cost(axes, sweep, measure)
    return drawn


def draw_loads(sweep: SweepReport, sheet: Sheet) -> Figure:
    """Throughput and attainment by load, where knee and limit are found."""
    has_slo = any(point.run.slo for point in sweep.points)
    draws: list[Callable[[Axes, SweepReport], None]] = [_draw_throughput]
    draws.append(_draw_attainment if has_slo else _draw_completed)
    drawn, panels = sheet.figure(len(draws), _PANEL_HEIGHT)
    for axes, draw in zip(panels, draws, strict=True):
        value_axis(axes, [point.value for point in sweep.points], f"load, {value_unit(sweep)}")
        draw(axes, sweep)
    return drawn


def _draw_cost(axes: Axes, sweep: SweepReport, measure: Measure) -> None:
    head(axes, f"{measure.name}, ms")
    points = [point for point in sweep.points if measure.of(point.run.summary) is not None]
    if not points:
        return nothing_to_see(axes, "No request has one.")
    limit = slo_limit(points[0].run.slo, measure)
    seen = [] if limit is None else [limit]
    for name, tint in PERCENTILES.items():
        seen += _draw_percentile(axes, points, measure, name, colour(tint))
    latency_axis(axes, seen, "y")
    across = [point.run.summary.sustained_tok_s for point in points]
    axes.set_xlim(0, max(across) * 1.14)
    axes.set_xlabel("output tokens a second")
    if limit is not None:
        axes.axhline(limit, color=colour("danger"), linewidth=1.2, linestyle=_DASH, zorder=2)
        axes.annotate(
            f"SLO {number(limit)}", (0, limit), xytext=(5, 4), textcoords="offset points",
            color=colour("danger"), fontsize=11.5,
        )  # fmt: skip
    _name_points(axes, sweep, points, measure)
    _name_lines(axes, points[-1], measure)
    return None


def _draw_percentile(
    axes: Axes, points: Sequence[SweepPoint], measure: Measure, name: str, tint: str
) -> list[float]:
    """A line with its intervals; gives what the axis has to show."""
    found = [measure.of(point.run.summary) for point in points]
    distributions = [distribution for distribution in found if distribution is not None]
    across = [point.run.summary.sustained_tok_s for point in points]
    up = [float(getattr(distribution, name)) for distribution in distributions]
    axes.plot(across, up, color=tint, linewidth=1.8, zorder=3)
    seen = list(up)
    for x, distribution in zip(across, distributions, strict=True):
        interval = distribution.intervals.get(name)
        if interval is not None:
            axes.plot([x, x], [interval.low, interval.high], color=tint, linewidth=4, alpha=0.35, zorder=3)
            seen += [interval.low, interval.high]
    _draw_points(axes, points, across, up, tint)
    return [value for value in seen if value > 0]


def _draw_points(
    axes: Axes, points: Sequence[SweepPoint], across: Sequence[float], up: Sequence[float], tint: str
) -> None:
    for point, x, y in zip(points, across, up, strict=True):
        fill = colour("surface") if faults_of_point(point.run) else tint
        axes.plot(
            [x], [y], "o", markersize=6, markerfacecolor=fill, markeredgecolor=tint, markeredgewidth=1.6,
            zorder=4,
        )  # fmt: skip


def _name_points(axes: Axes, sweep: SweepReport, points: Sequence[SweepPoint], measure: Measure) -> None:
    """By their loads, over the uppermost line, where there is room for it; knee and limit first."""
    marked = {sweep.knee, sweep.highest_within_slo}
    taken: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: point.value not in marked):
        distribution = measure.of(point.run.summary)
        assert distribution is not None
        at = (point.run.summary.sustained_tok_s, distribution.p99)
        across, up = axes.transAxes.inverted().transform(axes.transData.transform(at))
        if any(abs(across - x) < _NAME_WIDTH and abs(up - y) < _NAME_HEIGHT for x, y in taken):
            continue
        taken.append((across, up))
        axes.annotate(
            number(point.value), at, xytext=(-7, 4), textcoords="offset points", ha="right", fontsize=10.5,
            fontweight="bold" if point.value in marked else "normal", color=colour("ink-2"),
        )  # fmt: skip


def _name_lines(axes: Axes, last: SweepPoint, measure: Measure) -> None:
    """At their ends, apart from each other."""
    distribution = measure.of(last.run.summary)
    assert distribution is not None
    up = -1.0
    for name in PERCENTILES:
        at = (last.run.summary.sustained_tok_s, getattr(distribution, name))
        across, own = axes.transAxes.inverted().transform(axes.transData.transform(at))
        up = max(float(own), up + _NAME_HEIGHT)
        axes.annotate(
            name, (across, up), xycoords="axes fraction", xytext=(10, -4), textcoords="offset points",
            color=colour("ink-2"), fontsize=11.5,
        )  # fmt: skip


def _draw_throughput(axes: Axes, sweep: SweepReport) -> None:
    head(axes, "Throughput, output tokens a second")
    across = [point.value for point in sweep.points]
    up = [point.run.summary.sustained_tok_s for point in sweep.points]
    axes.plot(across, up, color=colour("tide"), zorder=3)
    _draw_points(axes, sweep.points, across, up, colour("tide"))
    from_zero(axes)
    axes.set_ylim(0, max(*up, 1e-9) * 1.15)
    if sweep.knee is not None:
        is_right = place_across(axes, sweep.knee) > 0.5
        axes.axvline(sweep.knee, color=colour("plum"), linewidth=1.4, linestyle=_DASH, zorder=2)
        axes.annotate(
            f"knee: {value_words(sweep, sweep.knee)}", (sweep.knee, 0), xytext=(-6 if is_right else 6, 8),
            textcoords="offset points", ha="right" if is_right else "left", color=colour("plum"),
            fontsize=11.5, bbox=on_surface(),
        )  # fmt: skip


def _draw_attainment(axes: Axes, sweep: SweepReport) -> None:
    head(axes, "Requests within the SLO")
    points = [point for point in sweep.points if point.run.summary.slo_attainment is not None]
    across = [point.value for point in points]
    up = [point.run.summary.slo_attainment or 0.0 for point in points]
    axes.plot(across, up, color=colour("tide"), zorder=3)
    for point in points:
        if point.attainment is not None:
            ends = [point.attainment.low, point.attainment.high]
            axes.plot([point.value] * 2, ends, color=colour("tide"), linewidth=4, alpha=0.35, zorder=3)
    _draw_points(axes, points, across, up, colour("tide"))
    axes.axhline(sweep.attainment, color=colour("danger"), linewidth=1.2, linestyle=_DASH, zorder=2)
    axes.annotate(
        f"asked for: {percent(sweep.attainment)}", (0.01, sweep.attainment),
        xycoords=("axes fraction", "data"), xytext=(0, -15), textcoords="offset points",
        color=colour("danger"), fontsize=11.5,
    )  # fmt: skip
    _draw_limit_band(axes, sweep)
    share_axis(axes)


def _draw_limit_band(axes: Axes, sweep: SweepReport) -> None:
    """Between the highest load that met the SLO and the lowest that did not."""
    high, beyond = sweep.highest_within_slo, sweep.lowest_beyond_slo
    if high is None or beyond is None:
        return
    axes.axvspan(high, beyond, color=colour("plum"), alpha=0.18, linewidth=0, zorder=1)
    axes.annotate(
        f"limit: {number(high)} to {number(beyond)}", (high, 0.04), xytext=(-6, 0),
        textcoords="offset points", ha="right", color=colour("plum"), fontsize=11.5,
    )  # fmt: skip


def _draw_completed(axes: Axes, sweep: SweepReport) -> None:
    head(axes, "Requests that completed")
    points = [point for point in sweep.points if point.run.summary.asked]
    across = [point.value for point in points]
    up = [point.run.summary.completed / point.run.summary.asked for point in points]
    axes.plot(across, up, color=colour("tide"), zorder=3)
    _draw_points(axes, points, across, up, colour("tide"))
    share_axis(axes)
