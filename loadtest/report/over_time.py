"""What happened when: the server beside the load it had, and each request's way through it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from loadtest.report.samples import (
    end_ms,
    growth_per_s,
    in_flight,
    last_ms,
    round_bin_s,
    together,
    tokens_per_s,
)
from loadtest.report.style import Sheet, colour, from_zero, head, legend_above, nothing_to_see, share_axis
from loadtest.report.words import number
from loadtest.results import Repeat, RequestRow, Series

_GAUGES = {"running": "tide", "restoring": "low", "swapped": "plum", "waiting": "sand"}
_TIERS = {"device": "tide", "host": "sand", "disk": "plum"}
_DASHES: dict[str, str | tuple[float, tuple[float, ...]]] = {
    "device": "-",
    "host": (0, (5, 2)),
    "disk": (0, (1, 1)),
}
_DOWN = {"swap_out": "plum", "demote": "sand"}
_UP = {"swap_in": "plum", "promote": "sand"}
_MOST_BINS = 120
_MOST_LINES = 240  # of a waterfall
_PANEL_HEIGHT = 190


def draw_timeline(repeat: Repeat, sheet: Sheet) -> Figure:
    """Panels above each other over the same seconds; those that there is nothing for are left out."""
    until_ms = end_ms(repeat.requests)
    draws: list[Callable[[Axes, Repeat, float], None]] = [_draw_requests, _draw_tokens]
    if _series(repeat, "kv_room", _TIERS) or _series(repeat, "", {"kv_share": ""}):
        draws.append(_draw_occupancy)
    if _series(repeat, "bytes", {**_DOWN, **_UP}):
        draws.append(_draw_bytes)
    drawn, panels = Sheet(sheet.width, columns=1).figure(len(draws), _PANEL_HEIGHT)
    for axes, draw in zip(panels, draws, strict=True):
        draw(axes, repeat, until_ms)
        axes.set_xlim(0, max(until_ms / 1000, 1e-3))
    panels[-1].set_xlabel("seconds from the start of the run")
    return drawn


def _series(repeat: Repeat, group: str, names: dict[str, str]) -> dict[str, Series]:
    """What there is of a group of the server's measures, by the last word of their names, in this order."""
    there = {series.name: series for series in repeat.server}
    return {name: there[full] for name in names if (full := f"{group} {name}".strip()) in there}


def _draw_requests(axes: Axes, repeat: Repeat, until_ms: float) -> None:
    head(axes, "Requests in flight")
    gauges = together(_series(repeat, "", _GAUGES))
    if gauges.values:
        axes.stackplot(
            gauges.at_s,
            list(gauges.values.values()),
            labels=list(gauges.values),
            colors=[colour(_GAUGES[name]) for name in gauges.values],
            step="post",
            alpha=0.8,
            linewidth=0,
        )
    sent = in_flight(repeat.requests, until_ms)
    axes.step(
        sent.at_s, sent.values, where="post", color=colour("ink"), linewidth=1.1, label="sent by the tool"
    )
    from_zero(axes, "requests")
    legend_above(axes)


def _draw_tokens(axes: Axes, repeat: Repeat, until_ms: float) -> None:
    bin_s = round_bin_s(until_ms / 1000, _MOST_BINS)
    head(axes, f"Output tokens a second, as they came, in bins of {number(bin_s)} s")
    rate = tokens_per_s(repeat.requests, until_ms, bin_s)
    if not any(rate.values):
        return nothing_to_see(axes, "No text came.")
    axes.fill_between(rate.at_s, rate.values, step="post", color=colour("tide"), alpha=0.25, linewidth=0)
    axes.step(rate.at_s, rate.values, where="post", color=colour("tide"), linewidth=1.4)
    from_zero(axes)
    return None


def _draw_occupancy(axes: Axes, repeat: Repeat, until_ms: float) -> None:
    """How full each tier is."""
    head(axes, "KV in use, by tier (thin: with what is cached)")
    for tier in _TIERS:
        _draw_tier(axes, repeat, tier)
    for series in _series(repeat, "", {"kv_share": ""}).values():
        at_s = [at / 1000 for at in series.at_ms]
        axes.step(at_s, series.values, where="post", color=colour("tide"), label="KV cache")
    share_axis(axes)
    legend_above(axes)


def _draw_tier(axes: Axes, repeat: Repeat, tier: str) -> None:
    """A strong line for what is in use, and a thin one for that and what is only cached."""
    groups = ("kv_blocks", "kv_cached", "kv_room")
    looks = together(
        {group: found[tier] for group in groups if tier in (found := _series(repeat, group, _TIERS))}
    )
    room = looks.values.get("kv_room", [])
    if not any(room):
        return
    nothing = [0.0] * len(room)
    used, cached = (looks.values.get(group, nothing) for group in groups[:2])
    line = [part / whole if whole else 0.0 for part, whole in zip(used, room, strict=True)]
    top = [
        (part + more) / whole if whole else 0.0 for part, more, whole in zip(used, cached, room, strict=True)
    ]
    tint = colour(_TIERS[tier])
    axes.step(looks.at_s, top, where="post", color=tint, linewidth=0.9, linestyle=_DASHES[tier])
    axes.step(looks.at_s, line, where="post", color=tint, linewidth=2.4, label=tier, linestyle=_DASHES[tier])


def _draw_bytes(axes: Axes, repeat: Repeat, until_ms: float) -> None:
    rates = growth_per_s(together(_series(repeat, "bytes", {**_UP, **_DOWN})))
    scale, unit = _byte_unit(max((value for rate in rates.values.values() for value in rate), default=0.0))
    head(axes, f"KV moved, {unit}/s: up the tiers above the line, down below it")
    for names, sign in ((_UP, 1 / scale), (_DOWN, -1 / scale)):
        found = [name for name in names if name in rates.values]
        if not found:
            continue
        axes.stackplot(
            rates.at_s,
            [[sign * value for value in rates.values[name]] for name in found],
            labels=[name.replace("_", " ") for name in found],
            colors=[colour(names[name]) for name in found],
            step="post",
            alpha=0.9 if sign > 0 else 0.5,
            linewidth=0,
        )
    axes.axhline(0, color=colour("ink-2"), linewidth=1)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(abs(value))))
    legend_above(axes)


def _byte_unit(most: float) -> tuple[float, str]:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if most >= 1024**power:
            return 1024.0**power, unit
    return 1.0, "bytes"


# ---- each request ----


@dataclass(frozen=True, slots=True)
class _Phase:
    name: str
    colour: str
    begins: Callable[[RequestRow], float | None]
    ends: Callable[[RequestRow], float | None]


_PHASES = (
    _Phase("not sent yet", "haze", lambda row: row.intended_ms, lambda row: row.sent_ms),
    _Phase(
        "waiting for its first token",
        "sand",
        lambda row: row.sent_ms,
        lambda row: row.first_ms or row.ended_ms,
    ),
    _Phase("its answer", "tide", lambda row: row.first_ms, lambda row: row.ended_ms),
)


@dataclass(frozen=True, slots=True)
class _Mark:
    """Of how a request ended, other than as it should."""

    name: str
    shape: str
    colour: str


_MARKS = {
    "failed": _Mark("failed", "x", "danger"),
    "left": _Mark("left, as planned", "|", "ink"),
    "unfinished": _Mark("unfinished", ">", "ink-2"),
}


@dataclass(frozen=True, slots=True)
class _Line:
    """A request in its place from the top; ``is_aligned``: its time begins when it was intended."""

    place: int
    row: RequestRow
    is_aligned: bool

    def across_s(self, at_ms: float) -> float:
        return (at_ms - self.row.intended_ms if self.is_aligned else at_ms) / 1000


def draw_waterfall(repeat: Repeat, sheet: Sheet) -> Figure:
    """A line for each request, in the order in which they were intended: when it was, how long it took."""
    ordered = sorted(repeat.requests, key=lambda row: (row.intended_ms, row.index))
    shown = some_of(ordered, _MOST_LINES)
    height = int(min(560, max(180, 110 + 8 * len(shown))))
    drawn, (when, how_long) = sheet.figure(2, height)
    head(when, _waterfall_title(len(shown), len(ordered)))
    head(how_long, "The same, each from when it was intended")
    until_ms = end_ms(ordered)
    for axes, is_aligned in ((when, False), (how_long, True)):
        _draw_lines(
            axes, [_Line(place, row, is_aligned) for place, row in enumerate(shown)], until_ms, height
        )
    when.set_xlabel("seconds from the start of the run")
    how_long.set_xlabel("seconds from its intended time")
    legend_above(when)
    return drawn


def _draw_lines(axes: Axes, lines: Sequence[_Line], until_ms: float, height: int) -> None:
    if not lines:
        return nothing_to_see(axes, "No request was planned.")
    thickness = max(1.0, min(6.0, 0.72 * (height - 110) / len(lines)))
    for phase in _PHASES:
        _draw_phase(axes, lines, phase, until_ms, thickness)
    for outcome, mark in _MARKS.items():
        _draw_ends(axes, [line for line in lines if line.row.outcome == outcome], mark)
    axes.set_xlim(left=0)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
    return None


def some_of(ordered: Sequence[RequestRow], most: int) -> list[RequestRow]:
    """All, or so many of them that are evenly spaced; failures are left out last."""
    if len(ordered) <= most:
        return list(ordered)
    failed = [place for place, row in enumerate(ordered) if row.outcome == "failed"]
    kept = set(_spaced(failed, most // 2))
    others = [place for place in range(len(ordered)) if place not in kept]
    kept |= set(_spaced(others, most - len(kept)))
    return [ordered[place] for place in sorted(kept)]


def _spaced(places: Sequence[int], most: int) -> list[int]:
    if len(places) <= most:
        return list(places)
    return [places[index * len(places) // most] for index in range(most)]


def _waterfall_title(shown: int, there: int) -> str:
    if shown == there:
        return f"All {there:,} requests, the first on top"
    return f"{shown:,} of {there:,} requests, evenly spaced"


def _draw_phase(axes: Axes, lines: Sequence[_Line], phase: _Phase, until_ms: float, thickness: float) -> None:
    """One path for all of them: a page has to carry it."""
    across: list[float] = []
    down: list[float] = []
    for line in lines:
        begins, ends = phase.begins(line.row), phase.ends(line.row)
        if begins is None:
            continue
        if ends is None:
            ends = until_ms if line.row.outcome == "unfinished" else begins
        across += [line.across_s(begins), line.across_s(ends), math.nan]
        down += [line.place, line.place, math.nan]
    axes.plot(across, down, color=colour(phase.colour), linewidth=thickness, label=phase.name)


def _draw_ends(axes: Axes, lines: Sequence[_Line], mark: _Mark) -> None:
    if not lines:
        return
    axes.plot(
        [line.across_s(last_ms(line.row)) for line in lines], [line.place for line in lines], mark.shape,
        color=colour(mark.colour), markersize=8, markeredgewidth=1.8, label=mark.name, clip_on=False,
        zorder=5,
    )  # fmt: skip
