"""Whether B differs from A: pairs of runs, measured in turn, and what their ratios show. Pure.

The two take turns in the order A B B A, so that what changes slowly (heat, a neighbour, a cache that fills)
meets both alike. Each round is a pair. What is compared is the median over rounds, B by A, with an interval
by bootstrap over whole pairs: what the rounds have in common cancels out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.intervals import FEWEST, tail
from loadtest.results import FORMAT, CompareReport, Interval, Ratio, RunReport, Summary

FEWEST_ROUNDS = FEWEST
_ROUNDS_OF_BOOTSTRAP = 4_000
_LATENCIES = (
    "ttft_ms p50", "ttft_ms p99", "itl_ms p50", "itl_ms p99", "tpot_ms p50", "e2e_ms p50", "e2e_ms p99",
)  # fmt: skip
_RATES = ("output_tok_s", "request_rate", "goodput")


@dataclass(frozen=True, slots=True)
class Pair:
    """What one round found of each."""

    a: Summary
    b: Summary


def order(num_rounds: int) -> list[str]:
    """Who is measured when: ABBA, over and over."""
    return [name for index in range(num_rounds) for name in ("AB", "BA")[index % 2]]


def compare(pairs: Sequence[Pair], seed: int = 0) -> list[Ratio]:
    """Every measure that all rounds have of both. A measure that one round lacks is left out."""
    found = []
    for measure in (*_LATENCIES, *_RATES):
        values = [(_value(pair.a, measure), _value(pair.b, measure)) for pair in pairs]
        known = [(a, b) for a, b in values if a and b]
        if len(known) == len(pairs) >= 2:
            found.append(_ratio(measure, known, seed))
    return found


def verdict(ratios: Sequence[Ratio], num_rounds: int) -> str:
    """All of it in a sentence or two."""
    if num_rounds < FEWEST_ROUNDS:
        return f"Too few rounds to tell A from B: {num_rounds}. An interval of 95 % takes {FEWEST_ROUNDS}."
    if not ratios:
        return "Nothing to compare: no measure was had of both in every round."
    better = [ratio.measure for ratio in ratios if _sign(ratio) > 0]
    worse = [ratio.measure for ratio in ratios if _sign(ratio) < 0]
    if not better and not worse:
        return "No difference seen between A and B in any measure."
    said = [
        f"B is {word} in {', '.join(names)}"
        for word, names in (("better", better), ("worse", worse))
        if names
    ]
    return f"{'; '.join(said)}. In what is not named no difference was seen."


def comparison_report(a: RunReport, b: RunReport, notes: Sequence[str] = ()) -> CompareReport:
    """Of the repeats of both, the first with the first and so on. A round that was broken off is no pair.

    ``notes``: of how it went.
    """
    pairs = [Pair(one.summary, other.summary) for one, other in zip(a.repeats, b.repeats, strict=False)]
    is_cut = (a.interrupted or b.interrupted) and len(a.repeats) == len(b.repeats)
    pairs = pairs[: len(pairs) - is_cut]
    ratios = compare(pairs)
    return CompareReport(
        format=FORMAT,
        a=a,
        b=b,
        order=order(max(len(a.repeats), len(b.repeats)))[: len(a.repeats) + len(b.repeats)],
        ratios=ratios,
        verdict=verdict(ratios, len(pairs)),
        notes=[*notes, *_notes_of_failures(a, b), *_notes_of_chance(ratios)],
    )


def _notes_of_failures(a: RunReport, b: RunReport) -> list[str]:
    """Latencies are of what completed: with failures they are of different requests."""
    if not a.summary.failed and not b.summary.failed:
        return []
    counts = [f"{run.summary.failed} of {run.summary.failed + run.summary.completed}" for run in (a, b)]
    return [
        f"{counts[0]} requests failed at A, {counts[1]} at B. Latencies are of those that completed: perhaps"
        " the easier ones."
    ]


def _notes_of_chance(ratios: Sequence[Ratio]) -> list[str]:
    if len(ratios) < 2:
        return []
    return [
        f"{len(ratios)} measures are compared, each by itself at 95 %: of twenty that do not differ, one"
        " looks as if it did."
    ]


def _ratio(measure: str, values: Sequence[tuple[float, float]], seed: int) -> Ratio:
    lower_is_better = measure in _LATENCIES
    interval = _interval(values, random.Random(f"{seed} {measure}"))
    ratio = _of_medians(values)
    is_enough = len(values) >= FEWEST_ROUNDS
    return Ratio(
        measure=measure,
        a=_median([a for a, _ in values]),
        b=_median([b for _, b in values]),
        ratio=ratio,
        interval=interval,
        verdict=_sentence(ratio, interval, lower_is_better) if is_enough else "Too few rounds to tell.",
        lower_is_better=lower_is_better,
    )


def _sentence(ratio: float, interval: Interval, lower_is_better: bool) -> str:
    """No difference is a finding only with the size that would have been seen.

    That is the width of the whole interval: a true difference as large moves an interval like this one off 1
    in nine of ten comparisons.
    """
    if interval.low <= 1 <= interval.high:
        size = interval.high / interval.low - 1
        if size > 1:
            return "No difference seen; only one of more than 100 % would have been."
        return f"No difference seen; one of {_percent(size)} would have been."
    is_better = (ratio < 1) == lower_is_better
    way = "lower" if ratio < 1 else "higher"
    ends = sorted((abs(interval.low - 1), abs(interval.high - 1)))
    return (
        f"B is {_percent(abs(ratio - 1))} {way} ({_percent(ends[0])} to {_percent(ends[1])}):"
        f" {'better' if is_better else 'worse'}."
    )


def _sign(ratio: Ratio) -> int:
    """1: B is better, -1: worse, 0: no difference seen."""
    if ratio.interval.low <= 1 <= ratio.interval.high:
        return 0
    return 1 if (ratio.ratio < 1) == ratio.lower_is_better else -1


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.1 else f"{share * 100:.0f} %"


def _interval(values: Sequence[tuple[float, float]], draws: random.Random) -> Interval:
    """Of the ratio of medians, over pairs."""
    ratios = sorted(_of_medians(draws.choices(values, k=len(values))) for _ in range(_ROUNDS_OF_BOOTSTRAP))
    at = min(int(tail(len(values)) * len(ratios)), len(ratios) // 2)
    return Interval(ratios[at], ratios[-1 - at])


def _of_medians(values: Sequence[tuple[float, float]]) -> float:
    return _median([b for _, b in values]) / _median([a for a, _ in values])


def _median(values: list[float]) -> float:
    """As the one of statistics, which takes several times as long."""
    values.sort()
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def _value(summary: Summary, measure: str) -> float | None:
    name, _, percentile = measure.partition(" ")
    found: float | None = getattr(summary, name)
    return getattr(found, percentile) if percentile and found is not None else found
