"""A report on a terminal: what is wrong first, then the figures. Readable in 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loadtest.describe import faults_of_point
from loadtest.report.words import (
    MEASURES,
    NO_FIGURE,
    TPOT,
    TTFT,
    Measure,
    alarm_of,
    between,
    faults_of,
    figure,
    intervals_words,
    kept_words,
    limit_words,
    notes_of,
    number,
    percent,
    slo_words,
    value_unit,
)
from loadtest.results import CompareReport, Distribution, Report, RunReport, Summary, SweepPoint, SweepReport


def print_report(report: Report, console: Console) -> None:
    """All figures, behind the faults and notes that go with them."""
    match report:
        case RunReport():
            _print_head(report.label, report, console)
            _print_warnings(report, console)
            _print_run(report, console)
        case SweepReport():
            _print_sweep(report, console)
        case CompareReport():
            _print_compare(report, console)


def _print_head(title: str, run: RunReport, console: Console) -> None:
    server = run.server
    console.print(Text(title, style="bold"))
    console.print(
        Text(
            f"{server.model} on {server.base_url} ({f'{server.kind} {server.version}'.strip()})", style="dim"
        )
    )


def _print_warnings(report: Report, console: Console) -> None:
    faults, notes = faults_of(report), notes_of(report)
    if faults:
        console.print()
        console.print(Text(f" {alarm_of(report).upper()} ", style="bold white on red"))
        _print_list(faults, "red", console)
    else:
        console.print()
        console.print(Text(kept_words(report), style="cyan"))
    if notes:
        console.print()
        _print_list(notes, "yellow", console)
    console.print()


def _print_list(sentences: Iterable[str], style: str, console: Console) -> None:
    for sentence in sentences:
        line = Table.grid(padding=(0, 1))
        line.add_row(Text("•", style=style), Text(sentence))
        console.print(Padding(line, (0, 0, 0, 1)))


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    first, *figures = columns
    table.add_column(Text(first), min_width=6)
    for column in figures:
        table.add_column(Text(column), justify="right", no_wrap=True)
    return table


# ---- a run ----


def _print_run(run: RunReport, console: Console) -> None:
    table = _table(f"Latency in ms ({intervals_words(run)})", ("", "p50", "p90", "p99", "mean"))
    for measure in MEASURES:
        table.add_row(*_latency_row(measure, measure.of(run.summary)))
    console.print(table)
    console.print(_outcome(run))
    _print_failures(run.summary, console)


def _latency_row(measure: Measure, distribution: Distribution | None) -> list[Text]:
    if distribution is None:
        return [Text(measure.name), *(Text(NO_FIGURE) for _ in range(4))]
    found = distribution
    return [
        Text(measure.name),
        _with_interval(found, "p50"),
        Text(figure(found.p90)),
        _with_interval(found, "p99"),
        Text(figure(found.mean)),
    ]


def _with_interval(distribution: Distribution, name: str) -> Text:
    text = Text(figure(getattr(distribution, name)))
    interval = between(distribution.intervals.get(name))
    return text.append(f"\n{interval}", style="dim") if interval else text


def _outcome(run: RunReport) -> Table:
    """Two columns of names and figures."""
    left, right = _throughput_pairs(run), _trust_pairs(run)
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "left", "right"):
        table.add_column(justify=justify)
    blank = ("", "")
    for index in range(max(len(left), len(right))):
        row = (
            *(left[index] if index < len(left) else blank),
            *(right[index] if index < len(right) else blank),
        )
        table.add_row(*(Text(cell, style="dim" if place % 2 == 0 else "") for place, cell in enumerate(row)))
    return table


def _throughput_pairs(run: RunReport) -> list[tuple[str, str]]:
    summary, steady = run.summary, run.summary.steady
    pairs = [
        ("output tokens/s", figure(summary.output_tok_s)),
        ("while the load was whole", figure(None if steady is None else steady.output_tok_s)),
        ("all tokens/s", figure(summary.total_tok_s)),
        ("completed requests/s", figure(summary.request_rate)),
    ]
    if run.slo:
        pairs += [
            ("goodput, requests/s", figure(summary.goodput)),
            (f"within {slo_words(run.slo)}", percent(summary.slo_attainment)),
        ]
    cached = summary.cached_tokens
    share = NO_FIGURE if cached is None else percent(cached / max(1, summary.prompt_tokens))
    return [*pairs, ("prompt tokens from cache", share), ("seconds", figure(summary.duration_s))]


def _trust_pairs(run: RunReport) -> list[tuple[str, str]]:
    schedule, summary = run.schedule, run.summary
    asked, achieved = schedule.asked_rate, schedule.achieved_rate
    return [
        ("asked rate, 1/s", NO_FIGURE if asked is None else number(asked)),
        ("achieved rate, 1/s", NO_FIGURE if achieved is None else f"{achieved:.4g}"),
        ("send lag p99, ms", _p99(schedule.lag_ms)),
        ("loop lag p99, ms", _p99(schedule.loop_lag_ms)),
        ("completed", f"{summary.completed:,}"),
        ("failed", f"{summary.failed:,}"),
        ("left, unfinished", f"{summary.left:,}, {summary.unfinished:,}"),
        *([("read slowly", f"{summary.slow:,}")] if summary.slow else []),
    ]


def _p99(distribution: Distribution | None) -> str:
    return figure(None if distribution is None else distribution.p99)


def _print_failures(summary: Summary, console: Console) -> None:
    if not summary.failures:
        return
    console.print()
    table = _table("Failures", ("reason", "requests"))
    for reason, count in sorted(summary.failures.items(), key=lambda pair: -pair[1]):
        table.add_row(Text(reason), Text(f"{count:,}"))
    console.print(table)


# ---- a sweep ----


def _print_sweep(sweep: SweepReport, console: Console) -> None:
    if sweep.points:
        _print_head(f"Sweep over {sweep.over}", sweep.points[0].run, console)
    _print_warnings(sweep, console)
    if any(point.run.slo for point in sweep.points):
        slo = slo_words(sweep.points[0].run.slo)
        console.print(Text(f"SLO: {slo}, for {percent(sweep.attainment)} of the requests", style="dim"))
    console.print(Text(limit_words(sweep), style="bold"))
    console.print(Text(sweep.knee_note))
    columns = ("load", "TTFT p50", "p99", "TPOT p50", "tokens/s", "in SLO", "failed")
    table = _table(f"Load in {value_unit(sweep)}, latency in ms from the intended time", columns)
    table.add_column("")
    for point in sweep.points:
        table.add_row(*(Text(cell) for cell in _point_row(sweep, point)))
    console.print(table)


def _point_row(sweep: SweepReport, point: SweepPoint) -> list[str]:
    summary = point.run.summary
    ttft, tpot = TTFT.of(summary), TPOT.of(summary)
    return [
        number(point.value),
        figure(ttft.p50 if ttft else None),
        figure(ttft.p99 if ttft else None),
        figure(tpot.p50 if tpot else None),
        figure(summary.sustained_tok_s),
        _attainment(point),
        f"{summary.failed:,}",
        ", ".join(point_remarks(sweep, point)),
    ]


def _attainment(point: SweepPoint) -> str:
    found, interval = percent(point.run.summary.slo_attainment), point.attainment
    return found if interval is None else f"{found}\n{interval.low * 100:.0f}–{interval.high * 100:.0f}"


def point_remarks(sweep: SweepReport, point: SweepPoint) -> list[str]:
    """What a point is, in a word or two each."""
    remarks = {
        "not borne": not point.sustained,
        "limit": sweep.lowest_beyond_slo is not None and point.value == sweep.highest_within_slo,
        "knee": point.value == sweep.knee,
        "untrusted": bool(faults_of_point(point.run)),
    }
    return [remark for remark, holds in remarks.items() if holds]


# ---- a comparison ----


def _print_compare(report: CompareReport, console: Console) -> None:
    for name, run in (("A", report.a), ("B", report.b)):
        _print_head(f"{name}: {run.label}", run, console)
    _print_warnings(report, console)
    console.print(Text(report.verdict, style="bold"))
    table = _table(f"Medians over pairs of runs, {''.join(report.order)}", ("", "A", "B", "B/A", "95 %"))
    table.add_column("", overflow="fold")
    for ratio in report.ratios:
        cells = [
            ratio.measure,
            figure(ratio.a),
            figure(ratio.b),
            figure(ratio.ratio),
            between(ratio.interval),
        ]
        table.add_row(*(Text(cell) for cell in (*cells, ratio.verdict)))
    console.print(table)
