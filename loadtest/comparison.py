"""Whether B differs from A: pairs of runs, measured in turn, and what their ratios show. Pure.

The two take turns in the order A B B A, so that what changes slowly (heat, a neighbour, a cache that fills)
meets both alike. Each round is a pair. What is compared is the median over rounds, B by A, with an interval
by bootstrap over whole pairs: what the rounds have in common cancels out. That is of one measure; what is
said of all together is beyond chance for as many.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import structs

from loadtest.intervals import FEWEST, tail
from loadtest.results import FORMAT, CompareReport, Interval, Ratio, RunReport, Summary
from loadtest.shares import wilson
from loadtest.significance import beyond_chance, chance

FEWEST_ROUNDS = FEWEST
_ROUNDS_OF_BOOTSTRAP = 4_000
_LATENCIES = (
    "ttft_ms p50", "ttft_ms p99", "itl_ms p50", "itl_ms p99", "tpot_ms p50", "e2e_ms p50", "e2e_ms p99",
)  # fmt: skip
_RATES = ("output_tok_s", "request_rate", "goodput")
_SHARES = ("slo_attainment",)


@dataclass(frozen=True, slots=True)
class Pair:
    """What one round found of each."""

    a: Summary
    b: Summary


@dataclass(frozen=True, slots=True)
class Compared:
    """``left_out``: measures that at least one round has, but that have no ratio; each with the reason."""

    ratios: list[Ratio]
    left_out: list[str]


def order(num_rounds: int) -> list[str]:
    """Who is measured when: ABBA, over and over."""
    return [name for index in range(num_rounds) for name in ("AB", "BA")[index % 2]]


def compare(pairs: Sequence[Pair], *, is_open: bool = False, seed: int = 0) -> Compared:
    """Every measure that all rounds have of both.

    Under an open load rates are what was asked, and the share within the SLO stands for goodput.
    """
    if len(pairs) < 2:
        return Compared([], [])
    ratios, chances, left_out = list[Ratio](), dict[str, float](), list[str]()
    for measure in (*_LATENCIES, *(_SHARES if is_open else _RATES)):
        values = [(_value(pair.a, measure), _value(pair.b, measure)) for pair in pairs]
        known = [(a, b) for a, b in values if a is not None and b is not None]
        if len(known) < len(pairs):
            if any(value is not None for pair in values for value in pair):
                left_out.append(f"{measure} (not had in every round)")
            continue
        ratio = _ratio(measure, known, seed)
        if math.isinf(ratio.interval.high):
            left_out.append(f"{measure} (in the median {ratio.a:.3g} at A, {ratio.b:.3g} at B: no ratio)")
            continue
        ratios.append(ratio)
        chances[measure] = chance(known)
    if len(pairs) < FEWEST_ROUNDS:
        return Compared(ratios, left_out)
    seen = beyond_chance(chances)
    return Compared([_judged(ratio, ratio.measure in seen, len(ratios)) for ratio in ratios], left_out)


def verdict(compared: Compared, num_rounds: int, failing: str = "") -> str:
    """All of it in a sentence or two. ``failing``: which of the two fails more, which comes first."""
    said = [failing] * bool(failing)
    if num_rounds < FEWEST_ROUNDS:
        said.append(
            f"Too few rounds to tell A from B: {num_rounds}. An interval of 95 % takes {FEWEST_ROUNDS}."
        )
    elif not compared.ratios:
        said.append("Nothing to compare: no measure was had of both in every round.")
    else:
        said += _differences(compared.ratios, "in what completed " if failing else "")
    if compared.left_out:
        said.append(f"Not compared: {', '.join(compared.left_out)}.")
    return " ".join(said)


def _differences(ratios: Sequence[Ratio], where: str) -> list[str]:
    """``where``: if not in all that was asked."""
    by_kind = {
        kind: [ratio.measure for ratio in ratios if ratio.difference == kind] for kind in ("better", "worse")
    }
    said = [f"B is {kind} in {', '.join(names)}" for kind, names in by_kind.items() if names]
    if not said:
        return [f"No difference beyond chance was seen {where}between A and B."]
    rest = ["What else was compared shows no difference beyond chance."]
    return [f"{'; '.join(said)}.", *(rest if sum(map(len, by_kind.values())) < len(ratios) else [])]


def comparison_report(a: RunReport, b: RunReport) -> CompareReport:
    """Of the repeats of both, the first with the first and so on. A round that was broken off is no pair."""
    pairs = [Pair(one.summary, other.summary) for one, other in zip(a.repeats, b.repeats, strict=False)]
    is_cut = (a.interrupted or b.interrupted) and len(a.repeats) == len(b.repeats)
    pairs = pairs[: len(pairs) - is_cut]
    is_open = a.schedule.asked_rate is not None
    compared, failing = compare(pairs, is_open=is_open), _failing(a.summary, b.summary)
    return CompareReport(
        format=FORMAT,
        a=a,
        b=b,
        order=order(max(len(a.repeats), len(b.repeats)))[: len(a.repeats) + len(b.repeats)],
        ratios=compared.ratios,
        verdict=verdict(compared, len(pairs), failing),
        notes=[
            *([] if failing else _notes_of_failures(a, b)),
            *([_OPEN_NOTE] if is_open else []),
        ],
    )


_OPEN_NOTE = "Rates are not compared: under an open load they are what was asked."


def _failing(a: Summary, b: Summary) -> str:
    """Which one fails more, in a sentence; empty if none does beyond doubt."""
    counts = [(found.failed, found.failed + found.completed + found.unfinished) for found in (a, b)]
    if not all(of for _, of in counts):
        return ""
    at_a, at_b = (wilson(failed / of, of) for failed, of in counts)
    if at_a.low <= at_b.high and at_b.low <= at_a.high:
        return ""
    (failed_a, of_a), (failed_b, of_b) = counts
    return (
        f"{'B' if at_b.low > at_a.high else 'A'} fails more: {failed_a} of {of_a} requests failed at A,"
        f" {failed_b} of {of_b} at B. Latencies are of those that completed, perhaps the easier ones."
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


def _ratio(measure: str, values: Sequence[tuple[float, float]], seed: int) -> Ratio:
    """Not judged yet."""
    return Ratio(
        measure=measure,
        a=_median([a for a, _ in values]),
        b=_median([b for _, b in values]),
        ratio=ratio_of_medians(values),
        interval=ratio_interval(values, random.Random(f"{seed} {measure}")),
        verdict="Too few rounds to tell.",
        lower_is_better=measure in _LATENCIES,
    )


def _judged(ratio: Ratio, is_beyond_chance: bool, num_measures: int) -> Ratio:
    """No difference is a finding only with the size that would have been seen.

    That is the width of the whole interval: a true difference as large moves an interval like this one off 1
    in nine of ten comparisons.
    """
    low, high = ratio.interval.low, ratio.interval.high
    if low <= 1 <= high:
        size = high / low - 1 if low > 0 else math.inf
        seen = f"only one of more than {_percent(1)}" if size > 1 else f"one of {_percent(size)}"
        return structs.replace(ratio, verdict=f"No difference seen; {seen} would have been.")
    ends = sorted((abs(low - 1), abs(high - 1)))
    by = f"{_percent(abs(ratio.ratio - 1))} {'lower' if ratio.ratio < 1 else 'higher'}"
    found = f"B is {by} ({_percent(ends[0])} to {_percent(ends[1])})"
    if not is_beyond_chance:
        doubt = f"{found}, but of {num_measures} measures one may look so by chance."
        return structs.replace(ratio, verdict=doubt, difference="perhaps")
    is_better = (ratio.ratio < 1) == ratio.lower_is_better
    kind: Literal["better", "worse"] = "better" if is_better else "worse"
    return structs.replace(ratio, verdict=f"{found}: {kind}.", difference=kind)


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.1 else f"{share * 100:.0f} %"


def ratio_interval(values: Sequence[tuple[float, float]], draws: random.Random) -> Interval:
    """Of the ratio of medians, over pairs."""
    ratios = sorted(
        ratio_of_medians(draws.choices(values, k=len(values))) for _ in range(_ROUNDS_OF_BOOTSTRAP)
    )
    at = min(int(tail(len(values)) * len(ratios)), len(ratios) // 2)
    return Interval(ratios[at], ratios[-1 - at])


def ratio_of_medians(values: Sequence[tuple[float, float]]) -> float:
    """Infinite where only B has any; where neither has, there is no telling how they differ either."""
    a, b = _median([a for a, _ in values]), _median([b for _, b in values])
    return b / a if a else math.inf


def _median(values: list[float]) -> float:
    """As the one of statistics, which takes several times as long."""
    values.sort()
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def _value(summary: Summary, measure: str) -> float | None:
    name, _, percentile = measure.partition(" ")
    found: float | None = getattr(summary, name)
    return getattr(found, percentile) if percentile and found is not None else found
