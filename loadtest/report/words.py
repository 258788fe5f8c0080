"""Figures as they are printed, and what is to be said before anybody reads one. Pure.

The terminal and the page say the same, in these words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.describe import faults_of_all, faults_of_point, faults_of_run
from loadtest.intervals import FEWEST
from loadtest.results import (
    CompareReport,
    Distribution,
    Interval,
    Report,
    RunReport,
    Summary,
    SweepReport,
)

NO_FIGURE = "–"


@dataclass(frozen=True, slots=True)
class Measure:
    """A latency. ``field`` is its name in Summary, ``short`` the one that ``--slo`` knows."""

    field: str
    short: str
    name: str
    meaning: str

    def of(self, summary: Summary) -> Distribution | None:
        found: Distribution | None = getattr(summary, self.field)
        return found


TTFT = Measure(
    "ttft_ms", "ttft", "Time to first token", "from the time a request was intended to its first text"
)
ITL = Measure("itl_ms", "itl", "Inter-token latency", "between one piece of text and the next, as they came")
TPOT = Measure(
    "tpot_ms",
    "tpot",
    "Time per output token",
    "a request's time after its first text, by its tokens after it",
)
E2E = Measure("e2e_ms", "e2e", "End to end", "from the intended time to the end of the answer")
TTFT_FROM_SEND = Measure(
    "ttft_from_send_ms",
    "ttft_from_send",
    "Time to first token, from send",
    "leaves out what it waited to be sent",
)
E2E_FROM_SEND = Measure(
    "e2e_from_send_ms", "e2e_from_send", "End to end, from send", "leaves out what it waited to be sent"
)
NORMALIZED = Measure(
    "normalized_ms", "normalized", "Normalized latency", "end to end, by tokens of the answer"
)
QUEUE = Measure("queue_ms", "queue", "Queue in the client", "from the intended time to the actual send")

MEASURES = (TTFT, ITL, TPOT, E2E, NORMALIZED, TTFT_FROM_SEND, E2E_FROM_SEND, QUEUE)
"""In the order in which they are shown: by the intended time first."""


def figure(value: float | None) -> str:
    """Three digits, or all of a whole number: 0.0123, 4.56, 78.9, 12,345. A dash where there is none."""
    if value is None:
        return NO_FIGURE
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def number(value: float) -> str:
    """A rate, a limit or a count as its user would write it: 4, 0.5, 1,200."""
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float | None) -> str:
    return NO_FIGURE if share is None else f"{share * 100:.1f} %"


def intervals_words(run: RunReport) -> str:
    """What the intervals beside its figures are: of few repeats they do not hold 95 %."""
    is_few = 1 < len(run.repeats) < FEWEST
    return f"intervals of {len(run.repeats)} repeats" if is_few else "95 % intervals"


def between(interval: Interval | None) -> str:
    return "" if interval is None else f"{figure(interval.low)}–{figure(interval.high)}"


def moment(iso: str) -> str:
    """Of a time in ISO 8601, UTC: to the second, for people."""
    return f"{iso[:19].replace('T', ' ')} UTC"


def joined(items: Sequence[str]) -> str:
    """One, one and another, or one, another and a third."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def slo_words(slo: Mapping[str, float]) -> str:
    """All limits in one line; empty without any."""
    return ", ".join(f"{name.removesuffix('_ms')} ≤ {number(limit)} ms" for name, limit in slo.items())


def slo_limit(slo: Mapping[str, float], measure: Measure) -> float | None:
    return slo.get(measure.short, slo.get(measure.field))


def has_turns(run: RunReport) -> bool:
    """Whether conversations were asked for rather than single requests."""
    return any(row.turn for repeat in run.repeats for row in repeat.requests)


_ONE = {"users": "user", "requests/s": "request/s", "conversations/s": "conversation/s"}


def value_unit(sweep: SweepReport) -> str:
    """Of its points' values."""
    if sweep.over == "concurrency":
        return "users"
    return "conversations/s" if any(has_turns(point.run) for point in sweep.points) else "requests/s"


def value_words(sweep: SweepReport, value: float) -> str:
    unit = value_unit(sweep)
    return f"{number(value)} {_ONE[unit] if value == 1 else unit}"


def limit_words(sweep: SweepReport) -> str:
    """What is known of the highest load that meets the SLO."""
    high, beyond = sweep.highest_within_slo, sweep.lowest_beyond_slo
    if not any(point.run.slo for point in sweep.points):
        return "No SLO was given, so there is no highest load within one."
    values = [point.value for point in sweep.points]
    if high is None and beyond is None:
        return "Nothing that was tried met the SLO beyond doubt."
    if high is None and beyond == min(values):
        return f"Nothing that was tried met the SLO: not even {value_words(sweep, min(values))} did."
    if high is None:
        return (
            "Nothing that was tried met the SLO beyond doubt, and"
            f" {value_words(sweep, beyond or 0)} did not: the limit lies below that."
        )
    if beyond is None:
        met = "All that was tried met the SLO, up to" if high == max(values) else "The SLO was met up to"
        return f"{met} {value_words(sweep, high)}; the limit lies above that."
    return (
        f"{value_words(sweep, high)} met the SLO and {value_words(sweep, beyond)} did not: the limit lies"
        " between the two."
    )


def faults_of(report: Report) -> list[str]:
    """Why its figures are not to be believed; empty when they may be."""
    match report:
        case RunReport():
            return faults_of_run(report)
        case SweepReport():
            of_points = _gathered(
                (value_words(report, point.value), faults_of_point(point.run)) for point in report.points
            )
            return [*faults_of_all(report), *of_points]
        case CompareReport():
            of_sides = _gathered((("A", faults_of_run(report.a)), ("B", faults_of_run(report.b))))
            return [*faults_of_all(report), *of_sides]


def alarm_of(report: Report) -> str:
    """What stands over its faults."""
    is_partly = isinstance(report, SweepReport) and not all(
        faults_of_point(point.run) for point in report.points
    )
    return f"{'Some of these' if is_partly else 'These'} figures are not to be trusted"


def notes_of(report: Report) -> list[str]:
    """What a reader must know before he believes a figure."""
    match report:
        case RunReport():
            found = [*_losses(report), *_remarks(report)]
        case SweepReport():
            labelled = [(value_words(report, point.value), _remarks(point.run)) for point in report.points]
            found = [*report.notes, *_losses_of_points(report), *_gathered(_with_ranges(labelled))]
        case CompareReport():
            sides = (("A", report.a), ("B", report.b))
            found = [
                *report.notes,
                *_gathered((name, [*_losses(run), *_remarks(run)]) for name, run in sides),
            ]
    return list(dict.fromkeys(found))


_NO_LATENCY = (
    "They have no latency, and a server that refuses what is hard looks fast: read the percentiles with that"
    " in mind."
)


def _losses(run: RunReport) -> list[str]:
    summary, notes = run.summary, []
    total = summary.asked
    if summary.failed:
        share = percent(summary.failed / total)
        notes.append(f"{summary.failed:,} of {total:,} requests failed ({share}). {_NO_LATENCY}")
    if summary.unfinished:
        notes.append(
            f"{summary.unfinished:,} of {total:,} requests were unfinished at the end and have no latency."
        )
    return notes


def _losses_of_points(sweep: SweepReport) -> list[str]:
    lossy = [point for point in sweep.points if point.run.summary.failed]
    if not lossy:
        return []
    where = joined([number(point.value) for point in lossy])
    most = max(point.run.summary.failed / point.run.summary.asked for point in lossy)
    return [f"At {where} {value_unit(sweep)} requests failed, up to {percent(most)} of them. {_NO_LATENCY}"]


def _remarks(run: RunReport) -> list[str]:
    notes = ["It was interrupted: the figures are of what was done until then."] if run.interrupted else []
    if run.summary.completed and run.summary.tokens_per_piece is None:
        notes.append(
            "Nobody knows how many tokens a piece of text is: inter-token latency is between pieces."
        )
    elif run.summary.completed and not run.summary.exact_token_times:
        notes.append("Not every piece of text was one token: inter-token latency is that between pieces.")
    if (run.summary.together_share or 0.0) > _MANY_TOGETHER:
        notes.append(
            f"{percent(run.summary.together_share)} of the pieces came with the one before them: the server"
            " or something on the way sends several at once. Inter-token latency is then that of its habits."
        )
    if run.summary.slow:
        notes.append(
            f"{run.summary.slow:,} requests were read slowly, as planned: they are in no latency and no SLO."
        )
    return [*notes, *run.schedule.notes, *run.notes]


_MANY_TOGETHER = 0.1


def kept_words(report: Report) -> str:
    """What is said where there is no fault."""
    match report:
        case RunReport():
            runs = [report]
        case SweepReport():
            runs = [point.run for point in report.points]
        case CompareReport():
            runs = [report.a, report.b]
    if all(run.server.forces_lengths for run in runs):
        return "The tool kept its schedule, and the server counted the tokens that were planned."
    return (
        "The tool kept its schedule, and the server counted the tokens that were planned in prompts; it ended"
        " answers when it liked."
    )


def _gathered(labelled: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Each sentence once: what holds for all as it is, the rest behind whom it holds for."""
    everyone = list(labelled)
    whose: dict[str, list[str]] = {}
    for label, sentences in everyone:
        for sentence in dict.fromkeys(sentences):
            whose.setdefault(sentence, []).append(label)
    return [
        sentence if len(labels) == len(everyone) else f"{joined(labels)}: {sentence}"
        for sentence, labels in whose.items()
    ]


_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def _with_ranges(labelled: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, list[str]]]:
    """The same with one sentence in place of those that differ in one number, from its least to its most."""
    alike: dict[str, list[str]] = {}
    for sentence in (sentence for _, sentences in labelled for sentence in sentences):
        alike.setdefault(_NUMBER.sub("#", sentence), []).append(sentence)
    in_one = {form: _range_of(sentences) for form, sentences in alike.items()}
    return [
        (label, [in_one[_NUMBER.sub("#", sentence)] or sentence for sentence in sentences])
        for label, sentences in labelled
    ]


def _range_of(sentences: Sequence[str]) -> str | None:
    """None if they differ in more than one number."""
    columns = list(zip(*map(_NUMBER.findall, sentences), strict=True))
    differing = [index for index, column in enumerate(columns) if len(set(column)) > 1]
    if len(differing) > 1:
        return None
    if not differing:
        return sentences[0]
    (index,) = differing
    found = sorted(columns[index], key=lambda digits: float(digits.replace(",", "")))
    place = list(_NUMBER.finditer(sentences[0]))[index]
    return f"{sentences[0][: place.start()]}{found[0]} to {found[-1]}{sentences[0][place.end() :]}"
