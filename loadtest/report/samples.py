"""Latencies and rates of single requests, out of a report's rows, to draw them. Pure.

The figures are those of ``summary``; a test holds that these samples have them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtest.latency import latency_of_row, samples_ms
from loadtest.report.words import Measure
from loadtest.results import RequestRow, RunReport, Series

_MOST_STEPS = 600  # over time


def samples(rows: Iterable[RequestRow], measure: Measure) -> list[float]:
    """In ms and ascending, of the requests that have latencies."""
    return sorted(sample for row in rows for sample in _samples(row, measure))


def share_within(rows: Iterable[RequestRow], measure: Measure, limit_ms: float) -> float | None:
    """Of all requests but those left on purpose and those read slowly. A failure is a miss, and what an
    answer is too short to have is none, as in ``loadtest.slo``.
    """
    judged = [row for row in rows if row.outcome != "left" and not row.pause_ms]
    met = sum(
        row.outcome == "completed" and all(sample <= limit_ms for sample in _samples(row, measure))
        for row in judged
    )
    return met / len(judged) if judged else None


def _samples(row: RequestRow, measure: Measure) -> list[float]:
    had = latency_of_row(row)
    return [] if had is None else samples_ms(had, measure.field)


def all_rows(run: RunReport) -> list[RequestRow]:
    return [row for repeat in run.repeats for row in repeat.requests]


@dataclass(frozen=True, slots=True)
class Steps:
    """A value from each time to the next. Times in seconds."""

    at_s: list[float]
    values: list[float]


def in_flight(rows: Iterable[RequestRow], until_ms: float) -> Steps:
    """Requests sent whose answers have not ended, as the tool saw it."""
    changes = []
    for row in rows:
        if row.sent_ms is not None:
            changes += [(row.sent_ms, 1), (until_ms if row.ended_ms is None else row.ended_ms, -1)]
    at_s, values, running = [0.0], [0.0], 0
    for at_ms, change in sorted(changes):
        running += change
        at_s.append(at_ms / 1000)
        values.append(float(running))
    return _peaks(Steps(at_s, values))


def _peaks(steps: Steps) -> Steps:
    """Of so many steps that nobody could see them: the highest of those that follow each other."""
    together = -(-len(steps.values) // _MOST_STEPS)
    starts = range(0, len(steps.values), together)
    return Steps(
        [steps.at_s[start] for start in starts],
        [max(steps.values[start : start + together]) for start in starts],
    )


def tokens_per_s(rows: Iterable[RequestRow], until_ms: float, bin_s: float) -> Steps:
    """Tokens as they came, in bins; each piece of an answer counts as many as its pieces have on average."""
    counts = [0.0] * (int(until_ms / 1000 / bin_s) + 1)
    for row in rows:
        pieces = sum(len(times) for times in row.piece_ms)
        weight = (row.completion_tokens or pieces) / pieces if pieces else 0.0
        for times in row.piece_ms:
            for time_ms in times:
                counts[min(int(time_ms / 1000 / bin_s), len(counts) - 1)] += weight
    return Steps([index * bin_s for index in range(len(counts))], [count / bin_s for count in counts])


@dataclass(frozen=True, slots=True)
class Looks:
    """What a server said of several measures at the same times, in seconds; by name."""

    at_s: list[float]
    values: dict[str, list[float]]


def together(series: Mapping[str, Series]) -> Looks:
    """At each time that any of them has; where those are very many, at some. Each keeps its value until its
    next, and is 0 before its first.
    """
    times = sorted({at for one in series.values() for at in one.at_ms})
    times = times[:: -(-len(times) // _MOST_STEPS) or 1]
    values = {name: [_value_at(one, at) for at in times] for name, one in series.items()}
    return Looks([at / 1000 for at in times], values)


def _value_at(series: Series, at_ms: float) -> float:
    place = bisect_right(series.at_ms, at_ms)
    return series.values[place - 1] if place else 0.0


def growth_per_s(looks: Looks) -> Looks:
    """Of counters, between one look and the next; the last look has none after it, and is left out."""
    gaps = [after - before for before, after in pairwise(looks.at_s)]
    return Looks(
        looks.at_s[:-1],
        {
            name: [(more - less) / gap for (less, more), gap in zip(pairwise(values), gaps, strict=True)]
            for name, values in looks.values.items()
        },
    )


def end_ms(rows: Sequence[RequestRow]) -> float:
    """When the last thing that is known of any of them happened."""
    return max((last_ms(row) for row in rows), default=0.0)


def last_ms(row: RequestRow) -> float:
    known = (
        row.intended_ms,
        row.sent_ms,
        row.first_ms,
        row.ended_ms,
        *(times[-1] for times in row.piece_ms if times),
    )
    return max(at for at in known if at is not None)


def round_bin_s(span_s: float, most: int) -> float:
    """The least of 1, 2 and 5 with any number of noughts that makes at most so many bins of a span."""
    size = 0.1
    while True:
        for digit in (1, 2, 5):
            if span_s / (size * digit) <= most:
                return size * digit
        size *= 10
