"""Reports of load tests that never were: a queue with a few servers, in imagined time.

Everything in one fits together: the figures are those of its rows, the server's measures those of the queue.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from loadtest.results import (
    FORMAT,
    CompareReport,
    Distribution,
    Interval,
    Ratio,
    Repeat,
    RequestRow,
    RunReport,
    Schedule,
    Series,
    Server,
    Summary,
    SweepPoint,
    SweepReport,
    Tool,
    UsageCheck,
)
from loadtest.shares import wilson

_CAPPED_MS = 40.0  # later than that was not the tool's lag
SLO = {"ttft": 500.0, "tpot": 60.0}


@dataclass(frozen=True, slots=True)
class Setting:
    """A server that answers ``seats`` requests at once, and what it is asked."""

    rate: float | None = 4.0
    num_requests: int = 120
    seats: int = 6
    cap: int | None = None  # most that the client has under way
    prefill_ms: float = 90.0
    token_ms: float = 22.0
    output_len: int = 40
    failing: float = 0.0  # share of requests
    leaving: float = 0.0
    repeats: int = 1
    has_metrics: bool = True
    slo: bool = True
    interrupted: bool = False
    lag_ms: float = 0.4
    seed: int = 7


def run_report(setting: Setting | None = None, **changes: object) -> RunReport:
    setting = replace(setting or Setting(), **changes)  # type: ignore[arg-type]
    repeats = [_repeat(setting, index) for index in range(setting.repeats)]
    rows = [row for repeat in repeats for row in repeat.requests]
    summary = _summary(rows, setting, sum(repeat.summary.duration_s for repeat in repeats))
    return RunReport(
        format=FORMAT,
        tool=Tool(
            "0.1.0", "3.11.7", "Linux 6.1 x86_64", 2, ["run", "--rate", str(setting.rate), "--seed", "7"]
        ),
        server=Server(
            "http://127.0.0.1:8000", "SmolLM2-135M-Instruct", "tidegate", "0.1.0", 8192, True, 9214, True
        ),
        workload={"trace": "azure-conv", "trace_scale": 0.1, "num_requests": setting.num_requests, "seed": 7},
        label=f"{setting.num_requests} requests of azure-conv, {setting.rate}/s",
        slo=SLO if setting.slo else {},
        warmup_requests=10,
        interrupted=setting.interrupted,
        usage=UsageCheck(9000, 9000, summary.completion_tokens, summary.completion_tokens, True, ""),
        summary=summary,
        schedule=_schedule(setting, rows, max(repeat.schedule.peak_concurrency for repeat in repeats)),
        repeats=repeats,
        notes=["The prefix cache was kept out by a fresh salt for each repeat."],
    )


def sweep_report(
    setting: Setting | None = None, rates: Sequence[float] = (1, 2, 4, 5.66, 6.73, 8, 16), knee: float = 6.73
) -> SweepReport:
    setting = setting or Setting(num_requests=150)
    points = [_sweep_point(rate, run_report(replace(setting, rate=rate))) for rate in rates]
    met = [point.value for point in points if point.meets_slo]
    missed = [point.value for point in points if point.meets_slo is False]
    return SweepReport(
        format=FORMAT,
        over="rate",
        points=points,
        knee=knee if knee in rates else None,
        knee_note=f"The knee is at {knee:g} requests/s: more load brings little more throughput.",
        highest_within_slo=max(met, default=None),
        lowest_beyond_slo=min(missed, default=None),
        attainment=0.9,
        notes=[],
    )


def _sweep_point(rate: float, run: RunReport) -> SweepPoint:
    share = run.summary.slo_attainment
    if share is None:
        return SweepPoint(rate, None, run)
    interval = wilson(share, len(run.repeats[0].requests))
    meets = True if interval.low >= 0.9 else False if interval.high < 0.9 else None
    return SweepPoint(rate, meets, run, True, interval)


def compare_report(setting: Setting | None = None) -> CompareReport:
    setting = setting or Setting(repeats=6, num_requests=60)
    a, b = run_report(setting), run_report(replace(setting, prefill_ms=70.0, token_ms=22.5, seed=8))
    ratios = [
        _ratio("ttft_ms p50", 180.0, 141.0, 0.74, 0.83, "B is 22 % lower (17 % to 26 %): better."),
        _ratio("ttft_ms p99", 900.0, 871.0, 0.86, 1.09, "No difference seen; one of 27 % would have been."),
        _ratio("tpot_ms p50", 23.0, 23.5, 1.012, 1.031, "B is 2.2 % higher (1.2 % to 3.1 %): worse."),
        _ratio(
            "slo_attainment", 0.91, 0.92, 0.99, 1.02, "No difference seen; one of 3 % would have been.", False
        ),
    ]
    seen = "B is better in ttft_ms p50; B is worse in tpot_ms p50."
    verdict = f"{seen} What else was compared shows no difference beyond chance."
    return CompareReport(FORMAT, a, b, list("ABBAABBAABBA"), ratios, verdict, [])


def _ratio(
    measure: str, a: float, b: float, low: float, high: float, verdict: str, lower: bool = True
) -> Ratio:
    kind: Literal["better", "worse", "none"] = "none"
    if verdict.endswith(("better.", "worse.")):
        kind = "better" if verdict.endswith("better.") else "worse"
    return Ratio(measure, a, b, b / a, Interval(low, high), verdict, lower, kind)


def _repeat(setting: Setting, index: int) -> Repeat:
    draws = random.Random(f"{setting.seed} {index}")
    rows = list(_rows(setting, draws))
    return Repeat(
        salt=f"{draws.getrandbits(48):012x}",
        started_at=f"2026-03-01T10:{index:02}:00Z",
        summary=_summary(rows, setting, _span_s(rows)),
        schedule=_schedule(setting, rows, max(_running(rows, row.intended_ms) for row in rows)),
        requests=rows,
        server=_server(setting, rows) if setting.has_metrics else [],
    )


def _rows(setting: Setting, draws: random.Random) -> Iterable[RequestRow]:
    """Each request takes the seat that is free first; a closed load has a user for each seat and a half."""
    seats = [0.0] * setting.seats
    places = [0.0] * (setting.cap or setting.num_requests)
    users = [0.0] * (setting.seats * 3 // 2)
    at_ms = 0.0
    for index in range(setting.num_requests):
        if setting.rate is not None:
            at_ms += draws.expovariate(setting.rate) * 1000
        else:
            at_ms = heapq.heappop(users)
        sent_ms = max(at_ms, heapq.heappop(places)) + draws.expovariate(1 / setting.lag_ms)
        if draws.random() < setting.failing:
            reason = draws.choice(
                ["http 429 rate_limit_exceeded", "http 429 rate_limit_exceeded", "connection reset"]
            )
            heapq.heappush(places, sent_ms + 3)
            heapq.heappush(users, sent_ms + 3)
            yield RequestRow(
                index, 0, 75, setting.output_len, at_ms, sent_ms, None, sent_ms + 3, "failed", reason
            )
            continue
        begins_ms = max(sent_ms, heapq.heappop(seats))
        busy = sum(free_ms > begins_ms for free_ms in seats)
        row = _answered(setting, draws, index, at_ms, sent_ms, begins_ms, busy)
        assert row.ended_ms is not None
        for line in (seats, places, users):
            heapq.heappush(line, row.ended_ms)
        yield row


def _answered(
    setting: Setting,
    draws: random.Random,
    index: int,
    at_ms: float,
    sent_ms: float,
    begins_ms: float,
    busy: int,
) -> RequestRow:
    """Slower where ``busy`` others are answered."""
    tokens = max(2, int(draws.lognormvariate(0, 0.5) * setting.output_len))
    now_ms = begins_ms + setting.prefill_ms * draws.lognormvariate(0, 0.3)
    pieces = [now_ms]
    for _ in range(tokens - 1):
        stall_ms = setting.prefill_ms if draws.random() < 0.03 else 0.0
        now_ms += setting.token_ms * (1 + 0.12 * busy) * draws.lognormvariate(0, 0.12) + stall_ms
        pieces.append(now_ms)
    leaves = draws.random() < setting.leaving
    pieces = pieces[: max(1, tokens // 3)] if leaves else pieces
    outcome = "left" if leaves else "completed"
    return RequestRow(
        index, 0, 75, tokens, at_ms, sent_ms, pieces[0], pieces[-1] + 0.5, outcome, "",
        75, None if leaves else tokens, 16, [pieces],
    )  # fmt: skip


def _span_s(rows: Sequence[RequestRow]) -> float:
    return max((row.ended_ms or 0.0 for row in rows), default=0.0) / 1000


def _summary(rows: Sequence[RequestRow], setting: Setting, duration_s: float) -> Summary:
    done = [row for row in rows if row.outcome == "completed"]
    counts = {
        outcome: sum(row.outcome == outcome for row in rows) for outcome in ("failed", "left", "unfinished")
    }
    met = sum(_ttft(row) <= SLO["ttft"] and _tpot(row) <= SLO["tpot"] for row in done)
    stay = len(rows) - counts["left"]
    tokens = sum(row.completion_tokens or 0 for row in done)
    prompts = sum(row.prompt_tokens or 0 for row in done)
    failures: dict[str, int] = {}
    for row in rows:
        if row.reason:
            failures[row.reason] = failures.get(row.reason, 0) + 1
    seconds = max(duration_s, 1e-9)
    return Summary(
        ttft_ms=distribution([_ttft(row) for row in done]),
        ttft_from_send_ms=distribution([(row.first_ms or 0) - (row.sent_ms or 0) for row in done]),
        itl_ms=distribution([b - a for row in done for times in row.piece_ms for a, b in pairwise(times)]),
        tpot_ms=distribution([_tpot(row) for row in done]),
        e2e_ms=distribution([(row.ended_ms or 0) - row.intended_ms for row in done]),
        e2e_from_send_ms=distribution([(row.ended_ms or 0) - (row.sent_ms or 0) for row in done]),
        normalized_ms=distribution(
            [((row.ended_ms or 0) - row.intended_ms) / row.output_len for row in done]
        ),
        queue_ms=distribution([(row.sent_ms or 0) - row.intended_ms for row in done]),
        duration_s=duration_s,
        output_tok_s=tokens / seconds,
        total_tok_s=(tokens + prompts) / seconds,
        request_rate=len(done) / seconds,
        goodput=met / seconds if setting.slo else None,
        slo_attainment=met / max(1, stay) if setting.slo else None,
        completed=len(done),
        failed=counts["failed"],
        left=counts["left"],
        unfinished=counts["unfinished"],
        failures=failures,
        tokens_per_piece=1.0 if done else None,
        exact_token_times=True,
        prompt_tokens=prompts,
        completion_tokens=tokens,
        cached_tokens=sum(row.cached_tokens or 0 for row in done),
    )


def _ttft(row: RequestRow) -> float:
    return (row.first_ms or 0.0) - row.intended_ms


def _tpot(row: RequestRow) -> float:
    (times,) = row.piece_ms
    return (times[-1] - times[0]) / (row.output_len - 1)


def distribution(samples: Sequence[float]) -> Distribution | None:
    """With intervals that are only there to be seen."""
    if not samples:
        return None
    ordered = sorted(samples)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    intervals = {
        name: Interval(at(share - 0.2 * (1 - share)), at(min(1, share + 0.2 * (1 - share))))
        for name, share in shares.items()
    }
    mean = statistics.fmean(ordered)
    intervals["mean"] = Interval(mean * 0.96, mean * 1.04)
    return Distribution(len(ordered), mean, *(at(share) for share in shares.values()), ordered[-1], intervals)


def _schedule(setting: Setting, rows: Sequence[RequestRow], peak: int) -> Schedule:
    late = setting.lag_ms > 2
    faults = [
        "Sends were late by 23 ms at p99, and more than 5 ms is too late: the tool had not enough CPU.",
        "The tool sent 3.62 requests a second of the 4 that were asked for.",
    ]
    return Schedule(
        asked_rate=setting.rate,
        achieved_rate=None if setting.rate is None else setting.rate * (0.905 if late else 0.999),
        lag_ms=distribution(
            [lag for row in rows if (lag := (row.sent_ms or 0) - row.intended_ms) < _CAPPED_MS]
        ),
        loop_lag_ms=distribution([setting.lag_ms * factor for factor in (0.2, 0.3, 0.5, 0.9)]),
        capped=sum((row.sent_ms or 0) - row.intended_ms >= _CAPPED_MS for row in rows),
        peak_concurrency=peak,
        on_schedule=not late,
        faults=faults if late else [],
    )


def _running(rows: Sequence[RequestRow], at_ms: float) -> int:
    return sum((row.sent_ms or 0) <= at_ms < (row.ended_ms or 0) for row in rows)


def _server(setting: Setting, rows: Sequence[RequestRow]) -> list[Series]:
    """Looked at twice a second. What does not fit the device is said to go down the tiers."""
    at_ms = [500.0 * index for index in range(int(_span_s(rows) * 2) + 2)]
    sent = [_running(rows, at) for at in at_ms]
    running = [float(min(count, setting.seats)) for count in sent]
    over = [float(max(0, count - setting.seats)) for count in sent]
    swapped = [min(2.0, count) for count in over]
    waiting = [count - parked for count, parked in zip(over, swapped, strict=True)]

    def gauge(name: str, source: str, unit: str, values: list[float]) -> Series:
        return Series(name, source, unit, False, at_ms, values)  # type: ignore[arg-type]

    def counter(kind: str, grows: Callable[[float, float], float]) -> Series:
        total, values = 0.0, [0.0]
        for before, after in pairwise(swapped):
            total += grows(before, after)
            values.append(total)
        return Series(
            f"bytes {kind}",
            f'tidegate_kv_transfer_bytes_total{{kind="{kind}"}}',
            "bytes",
            True,
            at_ms,
            values,
        )

    mib = 1024.0**2
    return [
        gauge("running", "tidegate_requests_running", "requests", running),
        gauge("waiting", "tidegate_requests_waiting", "requests", waiting),
        gauge("swapped", "tidegate_requests_swapped", "requests", swapped),
        gauge("kv_blocks device", "tidegate_kv_blocks", "blocks", [count * 9 for count in running]),
        gauge("kv_cached device", "tidegate_kv_blocks", "blocks", [(6 - count) * 8 for count in running]),
        gauge("kv_room device", "tidegate_kv_blocks", "blocks", [60.0 for _ in at_ms]),
        gauge("kv_blocks host", "tidegate_kv_blocks", "blocks", [12 * count for count in swapped]),
        gauge(
            "kv_cached host", "tidegate_kv_blocks", "blocks", [min(90.0, 2.0 * i) for i in range(len(at_ms))]
        ),
        gauge("kv_room host", "tidegate_kv_blocks", "blocks", [120.0 for _ in at_ms]),
        counter("swap_out", lambda before, after: 6 * mib * max(0.0, after - before)),
        counter("swap_in", lambda before, after: 6 * mib * max(0.0, before - after)),
        counter("demote", lambda before, after: 0.7 * mib),
        counter("promote", lambda before, after: 0.3 * mib * (after > 1)),
    ]
