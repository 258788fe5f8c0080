"""Whether the tool did as it was asked, and if not, whose doing that was. Pure.

The verdict has three parts. Was the load there: requests that left at the rate that was planned, or as many
users as were asked for? Was the tool on time, in sending and, all through the run, in looking at what came? A
tool that is late books its own lateness as the server's latency. And did it stand still? A long stop is too
short a part of a run for a percentile of its lag, and still in the latency of whatever was under way.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain

from loadtest.measured import GRID_S, Measured
from loadtest.plan import Load, Plan
from loadtest.results import RATE_TOLERANCE, Distribution, Schedule
from loadtest.stats import distribution

MAX_LAG_MS = 5.0  # at p99
STALL_S = 0.05  # from that on the tool stood still
_STALLED = 0.01  # share of the requests that may have been under way then
_SLIPPED = 0.01  # share of the later turns that may miss their time without a word
_USERS_KEPT = 0.9  # of the users of a closed load, in the mean
_BUSY = 0.9  # of a processor: a process of one thread can do little more


def schedule(plan: Plan, run: Measured) -> Schedule:
    """Of one run."""
    lag, loop_lag = distribution(_lags_ms(run)), distribution([late_s * 1e3 for late_s in run.loop_lag_s])
    _, achieved = _rates(plan, run)
    stalled = sum(_met_stalls(run))
    slips_ms, users = _slips_ms(run), _mean_users(plan, run)
    faults = [*_load_faults(plan, run), *_tool_faults(run, lag, loop_lag)]
    return Schedule(
        asked_rate=plan.asked_rate,
        achieved_rate=achieved,
        lag_ms=lag,
        loop_lag_ms=loop_lag,
        capped=_num_capped(run),
        peak_concurrency=run.peak_concurrency,
        on_schedule=not faults,
        faults=faults,
        notes=[*_notes_of_users(plan, users), *_notes_of_slips(slips_ms)],
        stalled=stalled,
        later_turns=len(slips_ms),
        slip_ms=_distribution_of_slips(slips_ms),
        mean_users=users,
    )


def schedule_of_repeats(plans: Sequence[Plan], runs: Sequence[Measured]) -> Schedule:
    """Of all together. One that was off schedule is enough for all to be: its figures are in theirs."""
    each = [schedule(plan, run) for plan, run in zip(plans, runs, strict=True)]
    if len(each) == 1:
        return each[0]
    achieved = [one.achieved_rate for one in each if one.achieved_rate is not None]
    means = [one.mean_users for one in each if one.mean_users is not None]
    slips_ms, users = list(chain.from_iterable(map(_slips_ms, runs))), statistics.fmean(means or [0.0])
    return Schedule(
        asked_rate=each[0].asked_rate,
        achieved_rate=statistics.fmean(achieved) if achieved else None,
        lag_ms=distribution([late_ms for run in runs for late_ms in _lags_ms(run)]),
        loop_lag_ms=distribution([late_s * 1e3 for run in runs for late_s in run.loop_lag_s]),
        capped=sum(one.capped for one in each),
        peak_concurrency=max(one.peak_concurrency for one in each),
        on_schedule=all(one.on_schedule for one in each),
        faults=[f"Repeat {number}: {fault}" for number, one in enumerate(each, 1) for fault in one.faults],
        notes=[*_notes_of_users(plans[0], users if means else None), *_notes_of_slips(slips_ms)],
        stalled=sum(one.stalled for one in each),
        later_turns=len(slips_ms),
        slip_ms=_distribution_of_slips(slips_ms),
        mean_users=users if means else None,
    )


# ---- the load --------------------------------------------------------------------------------------


def _load_faults(plan: Plan, run: Measured) -> Iterator[str]:
    planned, achieved = _rates(plan, run)
    if planned is not None and achieved is not None and achieved < planned * (1 - RATE_TOLERANCE):
        yield _rate_fault(planned, achieved, _num_capped(run), plan.max_concurrency)
    users = _num_users(plan)
    if users is not None and (there := _users_seen(plan, run)) < users and not run.interrupted:
        yield (
            f"There were never more than {_times(there, 'user')} where {users} were asked for: there was too"
            " little for them to ask. Give more requests, sessions or time."
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


def _num_capped(run: Measured) -> int:
    return sum(timeline.capped_s > 0 for timeline in run.timelines)


def _num_users(plan: Plan) -> int | None:
    return plan.max_concurrency if plan.load is Load.CLOSED else None


def _users_seen(plan: Plan, run: Measured) -> int:
    """Users that think are not all under way at any time: each has a conversation at least."""
    if any(request.think_s for request in plan.requests):
        return sum(timeline.turn == 0 for timeline in run.timelines)
    return run.peak_concurrency


def _mean_users(plan: Plan, run: Measured) -> float | None:
    """Of a closed load: those that thought or waited for an answer, over all of its time."""
    ended = [
        (timeline.intended_at - timeline.planned.think_s, timeline.ended_at)
        for timeline in run.timelines
        if timeline.ended_at is not None
    ]
    if plan.load is not Load.CLOSED or not ended:
        return None
    span_s = max(ended_at for _, ended_at in ended) - min(free_at for free_at, _ in ended)
    return sum(ended_at - free_at for free_at, ended_at in ended) / span_s if span_s else None


def _notes_of_users(plan: Plan, mean: float | None) -> Iterator[str]:
    users = _num_users(plan)
    if users is not None and mean is not None and mean < _USERS_KEPT * users:
        yield (
            f"Of {_times(users, 'user')} {mean:.3g} had something to ask in the mean: towards its end a run"
            " has fewer and fewer. With more requests that end weighs less; rates while the load was whole"
            " leave it out."
        )


def _slips_ms(run: Measured) -> list[float]:
    """Of each later turn that has a time of its own and was sent: by how much it came after that."""
    return [
        (timeline.intended_at - timeline.planned.at_s) * 1e3
        for timeline in run.timelines
        if timeline.turn and timeline.planned.at_s is not None and timeline.sent_at is not None
    ]


def _distribution_of_slips(slips_ms: Sequence[float]) -> Distribution | None:
    return distribution([slip_ms for slip_ms in slips_ms if slip_ms > 0])


def _notes_of_slips(slips_ms: Sequence[float]) -> Iterator[str]:
    slipped = [slip_ms for slip_ms in slips_ms if slip_ms > 0]
    if len(slipped) > _SLIPPED * len(slips_ms):
        yield (
            f"{len(slipped)} of {_times(len(slips_ms), 'later turn')} came after their time, half of them by"
            f" over {statistics.median(slipped) / 1e3:.3g} s, since the answer before them was not there: it"
            " was less load than planned."
        )


# ---- the tool --------------------------------------------------------------------------------------


def _is_late(lag: Distribution | None) -> bool:
    return lag is not None and lag.p99 >= MAX_LAG_MS


def _tool_faults(run: Measured, lag: Distribution | None, loop_lag: Distribution | None) -> list[str]:
    faults, met_stalls = list[str](), _met_stalls(run)
    if lag is not None and _is_late(lag):
        faults.append(
            f"Requests were sent late, by {lag.p99:.1f} ms at p99, where {MAX_LAG_MS:g} ms is the limit."
        )
    if loop_lag is not None and _is_late(loop_lag):
        faults.append(
            f"The tool's own event loop was late, by {loop_lag.p99:.1f} ms at p99, where {MAX_LAG_MS:g} ms is"
            " the limit: as much of any latency may be its own."
        )
    if sum(met_stalls) > _STALLED * len(met_stalls):
        faults.append(
            f"The tool stood still for {max(run.loop_lag_s) * 1e3:,.0f} ms at worst, and {sum(met_stalls)} of"
            f" {_times(len(met_stalls), 'request')} were under way when it did: as much of their latency may"
            " be its own."
        )
    share = run.processor_share
    if not faults:
        return []
    if share >= _BUSY:
        faults.append(f"The tool used {share:.0%} of a processor, and cannot use more: ask for less.")
    else:
        faults.append(f"The tool used {share:.0%} of a processor: something else kept it from running.")
    return faults


def _met_stalls(run: Measured) -> list[bool]:
    """Of each request that was sent: whether the tool stood still between its intended time and its end."""
    stalls = list(_stalls(run.loop_lag_s))
    ends = [ended_at for _, ended_at in stalls]

    def met_one(from_s: float, to_s: float) -> bool:
        first = bisect_left(ends, from_s)
        return first < len(stalls) and stalls[first][0] <= to_s

    return [
        met_one(timeline.intended_at, timeline.ended_at)
        for timeline in run.timelines
        if timeline.sent_at is not None and timeline.ended_at is not None
    ]


def _stalls(loop_lag_s: Sequence[float]) -> Iterator[tuple[float, float]]:
    """From when to when, one after the other. Each point of the grid that it slept through is late."""
    over_at = 0.0
    for point, late_s in enumerate(loop_lag_s, start=1):
        due_at = point * GRID_S
        if late_s >= STALL_S and due_at > over_at:
            over_at = due_at + late_s
            yield due_at, over_at


def _times(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
