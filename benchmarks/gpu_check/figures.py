"""What a check of a GPU says: figures, each beside its limit of the same run, and what failed. Pure.

A part of the check is measured in a process of its own and tells what it found line by line, so that what was
measured before it ended, however it ended, is kept. Times are in seconds, rates as their unit says.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

# Figures that others stand beside: a later part finds them under these names.
COPY = "copy within the device"
READ = "read of the device's memory"
MATMUL = "bf16 matmul"
PINNED_OUT = "pinned copy, device to host"
PINNED_IN = "pinned copy, host to device"
PINNED_BOTH = "pinned copy, both ways at once"

DRY_RUN = "dry run"  # a scale


def again(name: str) -> str:
    """Under which a limit is told that was measured once more."""
    return f"{name}, again"


class Verdict(enum.StrEnum):
    """Of a figure with a target. ``UNKNOWN``: its limit was not measured in this run."""

    MET = "met"
    MISSED = "missed"
    UNKNOWN = "unknown"


class Figure(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One measured number.

    ``beside`` names what it is held against, and ``limit`` is that, in the same unit, or None if it was not
    measured in this run. ``target`` is of the ratio of both, or of the value where it stands beside nothing;
    with ``is_ceiling`` it is the most that is allowed, else the least. ``spread``: the middle half of the
    single measurements, by their median.
    """

    name: str
    value: float
    unit: str
    beside: str = ""
    limit: float | None = None
    target: float | None = None
    is_ceiling: bool = False
    spread: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.limit if self.limit else None

    @property
    def verdict(self) -> Verdict | None:
        """None for a figure without a target."""
        if self.target is None:
            return None
        judged = self.ratio if self.beside else self.value
        if judged is None:
            return Verdict.UNKNOWN
        is_met = judged <= self.target if self.is_ceiling else judged >= self.target
        return Verdict.MET if is_met else Verdict.MISSED


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A measurement, or a test, that did not come to its end, and why."""

    name: str
    reason: str


class Facts(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the figures were measured on."""

    facts: dict[str, str]


Line = Figure | Failure | Facts
"""What a part tells, one JSON object a line."""


class Outcome(enum.StrEnum):
    """How a part ended. ``FAILED``: at least one of its measurements did; the others stand."""

    DONE = "done"
    FAILED = "failed"
    OUT_OF_TIME = "out of time"
    INTERRUPTED = "interrupted"
    LEFT_OUT = "left out"


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """A part as it ended. ``reason`` says why it is not ``DONE``."""

    name: str
    outcome: Outcome
    seconds: float = 0.0
    budget_s: float = 0.0
    reason: str = ""
    figures: tuple[Figure, ...] = ()
    failures: tuple[Failure, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole check. ``scale`` names its sizes: in a dry run they are tiny and nothing is judged. Until it
    has ended, parts that have not begun are told as left out."""

    date: str
    scale: str
    machine: dict[str, str]
    parts: tuple[PartReport, ...]

    @property
    def is_dry_run(self) -> bool:
        return self.scale == DRY_RUN

    @property
    def is_incomplete(self) -> bool:
        """Whether any part did not do what it should, or was left out; a missed target is neither."""
        return any(part.outcome is not Outcome.DONE for part in self.parts)


def limits_of(figures: Iterable[Figure]) -> dict[str, float]:
    """By name, what others are held against: of what was measured twice, the larger."""
    values = {figure.name: figure.value for figure in figures}
    return {name: max(value, values.get(again(name), value)) for name, value in values.items()}


def held_against_the_larger(parts: Sequence[PartReport]) -> tuple[PartReport, ...]:
    """The same parts, with the limits of those before a limit was measured again raised to that."""
    values = {figure.name: figure.value for part in parts for figure in part.figures}

    def raised(figure: Figure) -> Figure:
        measured_again = values.get(again(figure.beside))
        if figure.limit is None or measured_again is None or figure.name == again(figure.beside):
            return figure
        return msgspec.structs.replace(figure, limit=max(figure.limit, measured_again))

    return tuple(
        msgspec.structs.replace(part, figures=tuple(raised(figure) for figure in part.figures))
        for part in parts
    )


def as_json(report: Report) -> dict[str, object]:
    """For people and scripts: each figure with its ratio and whether its target was met."""
    parts = [
        {
            **_plain(part, "figures", "failures"),
            "figures": [_figure(figure, report.is_dry_run) for figure in part.figures],
            "failures": [_plain(failure) for failure in part.failures],
        }
        for part in report.parts
    ]
    return {**_plain(report, "parts"), "is_dry_run": report.is_dry_run, "parts": parts}


def _figure(figure: Figure, is_dry_run: bool) -> dict[str, object]:
    verdict = None if is_dry_run else figure.verdict
    return {
        **_plain(figure),
        "ratio": figure.ratio,
        "met": {None: None, Verdict.UNKNOWN: None}.get(verdict, verdict is Verdict.MET),
    }


def _plain(record: msgspec.Struct, *without: str) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(record)
    return {name: value for name, value in fields.items() if name not in ("type", *without)}
