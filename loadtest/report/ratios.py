"""What B is by A, measure by measure, each with its interval."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from loadtest.report.style import Sheet, colour, head, nothing_to_see, on_surface
from loadtest.report.words import figure
from loadtest.results import CompareReport, Ratio

_ROW_HEIGHT = 36
_ROOM_FOR_WORDS = 0.45  # to the right, by the range of the intervals
_LEAST = 0.05  # less is drawn at this
_TICKS = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10)


def draw_ratios(report: CompareReport, sheet: Sheet) -> Figure:
    """On which side of 1 is better depends on the measure, so mark, colour and words say it."""
    drawn, (axes,) = Sheet(sheet.width, columns=1).figure(1, 96 + _ROW_HEIGHT * max(1, len(report.ratios)))
    head(axes, "B by A, with 95 % intervals")
    if not report.ratios:
        nothing_to_see(axes, "No measure was had of both.")
        return drawn
    for place, ratio in enumerate(report.ratios):
        _draw_ratio(axes, place, ratio, is_narrow=sheet.columns == 1)
    axes.axvline(1, color=colour("ink-2"), linewidth=1.2, zorder=2)
    axes.set_yticks(range(len(report.ratios)), [ratio.measure for ratio in report.ratios])
    axes.set_ylim(len(report.ratios) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    _scale(axes, report, most_ticks=sheet.width // 75)
    axes.set_xlabel("B / A")
    return drawn


_SEEN = {
    "better": ("tide", "o", "better"),
    "worse": ("danger", "s", "worse"),
    "perhaps": ("ink-2", "D", "perhaps by chance"),
    "none": ("ink-2", "D", "no difference seen"),
}


def _draw_ratio(axes: Axes, place: int, ratio: Ratio, is_narrow: bool) -> None:
    name, mark, words = _SEEN[ratio.difference]
    tint = colour(name)
    between = "\n" if is_narrow else "  "
    ends = [_drawn_at(ratio.interval.low), _drawn_at(ratio.interval.high)]
    axes.plot(ends, [place, place], color=tint, linewidth=5, alpha=0.4, zorder=3)
    axes.plot([_drawn_at(ratio.ratio)], [place], mark, color=tint, markersize=8, zorder=4)
    axes.annotate(
        between.join((figure(ratio.ratio), words)), (ends[1], place), xytext=(9, 0),
        textcoords="offset points", va="center", fontsize=11, color=tint, bbox=on_surface(), zorder=3,
    )  # fmt: skip


def _drawn_at(ratio: float) -> float:
    """A logarithm has no place for nothing."""
    return max(_LEAST, ratio)


def _scale(axes: Axes, report: CompareReport, most_ticks: int) -> None:
    """By logarithm, so that half and double are as far from 1; room on the right for the words."""
    low = min(1.0, *(_drawn_at(ratio.interval.low) for ratio in report.ratios)) / 1.02
    high = max(1.0, *(_drawn_at(ratio.interval.high) for ratio in report.ratios)) * 1.02
    right = high * (high / low) ** _ROOM_FOR_WORDS
    axes.set_xscale("log")
    axes.set_xlim(low / (high / low) ** 0.05, right)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(_ticks(low, high, math.log(right / low) / most_ticks)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _ticks(low: float, high: float, apart: float) -> list[float]:
    """1, and whatever else has room."""
    kept = [1.0]
    for tick in sorted(_TICKS, key=lambda tick: -abs(math.log(tick))):
        if low <= tick <= high and all(abs(math.log(tick / other)) >= apart for other in kept):
            kept.append(tick)
    return kept
