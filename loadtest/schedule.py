"""Whether the tool did as it was asked, and if not, whose doing that was. Pure.

The verdict has two halves. Did the requests leave at the rate that was planned? And was the tool on time, in
sending and, all through the run, in looking at what came? A tool that is late books its own lateness as the
server's latency.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from loadtest.measured import Measured
from loadtest.plan import Load, Plan
from loadtest.results import Distribution, Schedule
from loadtest.stats import distribution

RATE_TOLERANCE = 0.01
MAX_LAG_MS = 5.0  # at p99
_BUSY = 0.9  # of a processor: a process of one thread can do little more


def schedule(plan: Plan, run: Measured) -> Schedule:
    """Of one run."""
    lag, loop_lag = distribution(_lags_ms(run)), distribution([late_s * 1e3 for late_s in run.loop_lag_s])
    planned, achieved = _rates(plan, run)
    capped = sum(timeline.capped_s > 0 for timeline in run.timelines)
    faults = []
    if planned is not None and achieved is not None and achieved < planned * (1 - RATE_TOLERANCE):
        faults.append(_rate_fault(planned, achieved, capped, plan.max_concurrency))
    if _is_late(lag) or _is_late(loop_lag):
        faults += _lag_faults(lag, loop_lag, run.processor_share)
    return Schedule(
        asked_rate=plan.asked_rate,
        achieved_rate=achieved,
        lag_ms=lag,
        loop_lag_ms=loop_lag,
        capped=capped,
        peak_concurrency=run.peak_concurrency,
        on_schedule=not faults,
        faults=faults,
    )


def schedule_of_repeats(plans: Sequence[Plan], runs: Sequence[Measured]) -> Schedule:
    """Of all together. One that was off schedule is enough for all to be: its figures are in theirs."""
    each = [schedule(plan, run) for plan, run in zip(plans, runs, strict=True)]
    if len(each) == 1:
        return each[0]
    achieved = [one.achieved_rate for one in each if one.achieved_rate is not None]
    return Schedule(
        asked_rate=each[0].asked_rate,
        achieved_rate=statistics.fmean(achieved) if achieved else None,
        lag_ms=distribution([late_ms for run in runs for late_ms in _lags_ms(run)]),
        loop_lag_ms=distribution([late_s * 1e3 for run in runs for late_s in run.loop_lag_s]),
        capped=sum(one.capped for one in each),
        peak_concurrency=max(one.peak_concurrency for one in each),
        on_schedule=all(one.on_schedule for one in each),
        faults=[f"Repeat {number}: {fault}" for number, one in enumerate(each, 1) for fault in one.faults],
    )


def _lags_ms(run: Measured) -> list[float]:
    return [
        (timeline.sent_at - timeline.intended_at - timeline.capped_s) * 1e3
        for timeline in run.timelines
        if timeline.sent_at is not None
    ]


def _rates(plan: Plan, run: Measured) -> tuple[float | None, float | None]:
    """Planned and achieved of those that were due, counted like the plan's ``asked_rate``; None where it is.

    A plan is behind by as much as its last conversation is, and by those that were due and not sent.
    """
    begun = [timeline for timeline in run.timelines if timeline.turn == 0]
    sent = [timeline.sent_at for timeline in begun if timeline.sent_at is not None]
    intended = [timeline.intended_at for timeline in begun]
    if plan.load is not Load.OPEN or not sent or max(intended) == min(intended):
        return None, None
    planned_s, took_s = (last_at - min(intended) for last_at in (max(intended), max(*intended, *sent)))
    return (len(begun) - 1) / planned_s, (len(sent) - 1) / took_s


def _rate_fault(planned: float, achieved: float, capped: int, cap: int | None) -> str:
    behind = f"{achieved:.4g} a second were sent where {planned:.4g} were planned"
    if not capped:
        return f"{behind}: the tool was late."
    return (
        f"{behind}: the server did not keep up, and {_times(capped, 'request')} had to wait because no more"
        f" than {cap} may run at a time. Latencies from the intended time count that wait."
    )


def _is_late(lag: Distribution | None) -> bool:
    return lag is not None and lag.p99 >= MAX_LAG_MS


def _lag_faults(lag: Distribution | None, loop_lag: Distribution | None, share: float) -> list[str]:
    faults = []
    if lag is not None and _is_late(lag):
        faults.append(
            f"Requests were sent late, by {lag.p99:.1f} ms at p99, where {MAX_LAG_MS:g} ms is the limit."
        )
    if loop_lag is not None and _is_late(loop_lag):
        faults.append(
            f"The tool's own event loop was late, by {loop_lag.p99:.1f} ms at p99, where {MAX_LAG_MS:g} ms is"
            " the limit: as much of any latency may be its own."
        )
    if share >= _BUSY:
        faults.append(f"The tool used {share:.0%} of a processor, and cannot use more: ask for less.")
    else:
        faults.append(f"The tool used {share:.0%} of a processor: something else kept it from running.")
    return faults


def _times(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
