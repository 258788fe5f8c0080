"""What benchmarks of ``make bench`` tell: rows of one table, each beside what it is held against. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from loadtest.comparison import ratio_interval, ratio_of_medians
from loadtest.intervals import FEWEST
from loadtest.results import Interval

COLUMNS = ("", "measured", "beside", "ratio (95 %)", "goal", "")
_DIGITS = 3  # that a figure is shown with, at least


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure: medians over rounds.

    ``value`` is None where it was not measured, and ``note`` then says why. ``beside`` has what stands beside
    it in the same unit, by name; ``ratio`` is ``value`` by the one of them that is called ``held_to``.
    ``goal`` is of the ratio, or with ``judges_value`` of the value; with ``is_ceiling`` it is the most that
    is allowed, else the least.
    """

    name: str
    unit: str = ""
    value: float | None = None
    beside: dict[str, float] = {}
    held_to: str = ""
    ratio: float | None = None
    interval: Interval | None = None
    goal: float | None = None
    is_ceiling: bool = False
    judges_value: bool = False
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """None for a row without a goal, or without what is judged by it."""
        judged = self.value if self.judges_value else self.ratio
        if self.goal is None or judged is None:
            return None
        return judged <= self.goal if self.is_ceiling else judged >= self.goal


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a report. ``facts``: what is to be known of how it was measured."""

    name: str
    rows: list[Row]
    facts: dict[str, str] = {}


class PartFound(msgspec.Struct, frozen=True, kw_only=True):
    """What one part found, and when. ``is_quick``: its figures only show that it runs."""

    date: str
    is_quick: bool
    sections: list[Section]


def compared(row: Row, ours: Sequence[float], others: Mapping[str, Sequence[float]]) -> Row:
    """``row`` with medians over rounds, held to the best of ``others``: the least with ``is_ceiling``.

    ``ours`` and each of the others have one value a round, in the same order.
    """
    if not ours:
        return row
    beside = {name: _median(values) for name, values in others.items()}
    row = msgspec.structs.replace(row, value=_median(ours), beside=beside)
    if not beside:
        return row
    best = (min if row.is_ceiling else max)(beside, key=beside.__getitem__)
    pairs = list(zip(others[best], ours, strict=True))
    return msgspec.structs.replace(
        row,
        held_to=best,
        ratio=ratio_of_medians(pairs),
        interval=ratio_interval(pairs, random.Random(row.name)) if len(pairs) >= FEWEST else None,
    )


def _median(values: Sequence[float]) -> float:
    return ratio_of_medians([(1.0, value) for value in values])


def cells(sections: Iterable[Section]) -> Iterator[tuple[str, ...]]:
    """The table: for each section that has rows a line of its own, then those."""
    for section in (one for one in sections if one.rows):
        yield (section.name, "", "", "", "", "")
        yield from map(_cells_of, section.rows)


def _cells_of(row: Row) -> tuple[str, ...]:
    beside = ", ".join(f"{name} {number(value)}" for name, value in row.beside.items())
    value = "not measured" if row.value is None else f"{number(row.value)} {row.unit}".strip()
    verdict = {True: "met", False: "MISSED", None: ""}[row.is_met]
    return row.name, value, beside, _ratio(row), _goal(row), "; ".join(filter(None, (verdict, row.note)))


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return ""
    between = "" if row.interval is None else f" ({row.interval.low:.2f} – {row.interval.high:.2f})"
    return f"{row.ratio:.2f}{between}"


def _goal(row: Row) -> str:
    if row.goal is None:
        return ""
    sign = "≤" if row.is_ceiling else "≥"
    return f"{sign} {number(row.goal)}" + (f" {row.unit}" if row.judges_value else "")


def number(value: float) -> str:
    """With three digits, or all that stand before the point."""
    if value == 0 or abs(value) >= 10**_DIGITS:
        return f"{value:,.0f}"
    return f"{value:.{_DIGITS}g}"
