"""Whether the tool says of itself that it did not do as it was asked, and whose doing that was."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from loadtest.measured import GRID_S, Measured
from loadtest.plan import Conversation, Load, Plan, PlannedRequest
from loadtest.results import Schedule, Summary
from loadtest.schedule import schedule, schedule_of_repeats
from loadtest.summary import summarize
from loadtest.timeline import Timeline
from tests.support.scripted_driver import steady
from tests.support.virtual_runs import VirtualRun, closed_plan, open_plan, requests, run_plan


def judged(run: VirtualRun) -> Schedule:
    return schedule(run.plan, run.measured)


def tenths(count: int) -> list[float]:
    return [number / 10 for number in range(1, count + 1)]


@pytest.mark.case("G1")
def test_a_cap_hides_no_wait() -> None:
    """A server of 500 ms, 10 requests a second, 8 of them, one at a time."""
    run = run_plan(open_plan(requests(tenths(8)), rate=10.0, max_concurrency=1), steady(0.5))
    found, verdict = summarize([run.measured], None), judged(run)
    waits = [500.0 + 400.0 * number for number in range(8)]  # ms from schedule, up to 3,300
    assert found.ttft_ms is not None and found.ttft_from_send_ms is not None
    assert found.ttft_ms.max == pytest.approx(waits[-1])
    assert found.ttft_ms.p99 == pytest.approx(waits[-2] + 0.93 * 400.0)
    assert (found.ttft_from_send_ms.p50, found.ttft_from_send_ms.p99) == pytest.approx((500.0, 500.0))
    assert found.queue_ms is not None and found.queue_ms.max == pytest.approx(2800.0)
    fields = list(Summary.__struct_fields__)
    assert fields.index("ttft_ms") < fields.index("ttft_from_send_ms")
    assert fields.index("e2e_ms") < fields.index("e2e_from_send_ms")
    assert (verdict.asked_rate, verdict.capped, verdict.peak_concurrency) == (10.0, 7, 1)
    assert verdict.achieved_rate == pytest.approx(7 / 3.5)
    assert not verdict.on_schedule
    assert verdict.lag_ms is not None and verdict.lag_ms.max == pytest.approx(0.0, abs=1e-9)
    (fault,) = verdict.faults
    assert fault.startswith("2 a second were sent where 10 were planned: the server did not keep up")
    assert "7 requests had to wait because no more than 1 may run" in fault


def test_a_server_with_a_backlog_of_its_own_is_no_fault_of_the_schedule() -> None:
    run = run_plan(open_plan(requests(tenths(50)), rate=10.0), steady(0.5), places=1)
    assert judged(run).on_schedule
    assert judged(run).achieved_rate == pytest.approx(10.0)
    found = summarize([run.measured], None)
    assert found.ttft_from_send_ms is not None and found.ttft_from_send_ms.max == pytest.approx(20_100.0)


def test_a_cap_that_costs_nothing_in_the_end_is_counted_and_no_fault() -> None:
    times = [*tenths(3), 0.31, *(1.0 + at for at in tenths(50))]
    run = run_plan(open_plan(requests(times), rate=10.0, max_concurrency=1), steady(0.09))
    assert judged(run).on_schedule
    assert judged(run).capped == 1


@pytest.mark.case("G7")
def test_requests_are_prepared_first_so_the_rate_is_the_one_that_was_asked() -> None:
    times = [number / 1000 for number in range(1, 501)]
    run = run_plan(open_plan(requests(times), rate=1000.0), steady(0.2), prepare_s=0.005)
    assert (judged(run).on_schedule, judged(run).faults) == (True, [])
    assert judged(run).achieved_rate == pytest.approx(1000.0)


@pytest.mark.case("G7")
def test_a_tool_that_cannot_send_as_fast_says_so_beside_the_rate_that_was_asked() -> None:
    times = [number / 1000 for number in range(1, 501)]
    run = run_plan(open_plan(requests(times), rate=1000.0), steady(0.2), send_s=0.005)
    verdict = judged(run)
    assert verdict.asked_rate == 1000.0
    assert verdict.achieved_rate == pytest.approx(200.0, rel=0.01)
    assert not verdict.on_schedule
    rate_fault, lag_fault, *_ = verdict.faults
    assert rate_fault.endswith("a second were sent where 1000 were planned: the tool was late.")
    assert lag_fault.startswith("Requests were sent late, by ")


@pytest.mark.parametrize(("late_by", "is_on_schedule"), [(0.008, True), (0.010, False)])
def test_the_rate_may_be_off_by_a_hundredth(late_by: float, is_on_schedule: bool) -> None:
    plan = open_plan(requests(tenths(10)), rate=10.0)
    timelines = [
        Timeline(one, 0, 5, intended_at=at, sent_at=at)
        for one, at in zip(plan.requests, tenths(10), strict=True)
    ]
    timelines[-1].sent_at = 1.0 + late_by
    timelines[-1].capped_s = late_by  # not the tool's own lag
    assert schedule(plan, Measured(timelines, [], 1, False)).on_schedule is is_on_schedule


@pytest.mark.case("G2")
def test_lag_of_the_tool_is_not_booked_as_the_servers_latency_without_a_word() -> None:
    """The server writes a token every 10 ms; the tool takes 4 ms to read each, of three streams at a time."""
    run = run_plan(open_plan(requests([0.0, 0.001, 0.002])), steady(2.0, 200), piece_s=0.004)
    true_e2e_s = [written.ended_at - written.asked_at for written in run.written.values()]
    found, verdict = summarize([run.measured], None), judged(run)
    assert (
        found.e2e_ms is not None and found.e2e_ms.p50 > 1.1 * max(true_e2e_s) * 1e3
    )  # as it was seen: wrong
    assert not verdict.on_schedule
    assert verdict.loop_lag_ms is not None and verdict.loop_lag_ms.p99 > 5.0
    assert any("The tool's own event loop was late, by " in fault for fault in verdict.faults)


@pytest.mark.parametrize(
    ("share", "sentence"),
    [
        (0.97, "The tool used 97% of a processor, and cannot use more: ask for less."),
        (0.40, "The tool used 40% of a processor: something else kept it from running."),
    ],
)
def test_a_late_tool_says_whether_it_was_too_busy_or_was_starved(share: float, sentence: str) -> None:
    late = Measured([], [0.0] * 90 + [0.02] * 10, 0, False, share)
    assert schedule(Plan((), Load.OPEN), late).faults[-1] == sentence
    on_time = Measured([], [0.0] * 995 + [0.02] * 5, 0, False, share)
    assert schedule(Plan((), Load.OPEN), on_time).on_schedule


def stalled(at_s: float, for_s: float, run_s: float = 200.0) -> list[float]:
    """Lag at each point of the grid of a loop that stood still once."""
    points = [GRID_S * number for number in range(1, round(run_s / GRID_S))]
    return [max(0.0, at_s + for_s - due_at) if due_at >= at_s else 0.0 for due_at in points]


def ended(intended_at: float, took_s: float) -> Timeline:
    planned = PlannedRequest(0, "", 5, 5, intended_at)
    return Timeline(planned, 0, 5, intended_at, sent_at=intended_at, ended_at=intended_at + took_s)


def test_a_stall_that_no_percentile_shows_is_a_fault_if_requests_were_under_way() -> None:
    """1.9 s of 200 are 0.95 % of the grid."""
    lag_s = stalled(50.0, 1.9)
    under_way = [ended(float(number), 5.0) for number in range(200)]
    verdict = schedule(Plan((), Load.OPEN), Measured(under_way, lag_s, 0, False, 0.3))
    assert verdict.loop_lag_ms is not None and verdict.loop_lag_ms.p99 < 5.0
    assert (verdict.on_schedule, verdict.stalled) == (False, 7)  # from those of 45 s to those of 51 s
    assert verdict.faults[0].startswith("The tool stood still for 1,9")
    assert "7 of 200 requests were under way" in verdict.faults[0]
    assert verdict.faults[1].startswith("The tool used 30% of a processor")
    nobody = [ended(float(number), 0.5) for number in range(200) if not 48 <= number <= 52]
    assert schedule(Plan((), Load.OPEN), Measured(nobody, lag_s, 0, False)).on_schedule


def test_a_stall_that_meets_hardly_anybody_or_is_short_is_none() -> None:
    short = [ended(number / 10, 0.05) for number in range(2000)]
    meets_one = schedule(Plan((), Load.OPEN), Measured(short, stalled(50.02, 0.06), 0, False))
    assert (meets_one.on_schedule, meets_one.stalled) == (True, 1)
    under_way = [ended(float(number), 5.0) for number in range(200)]
    assert schedule(Plan((), Load.OPEN), Measured(under_way, stalled(50.0, 0.045), 0, False)).stalled == 0


def test_users_that_were_not_there_are_a_fault() -> None:
    verdict = judged(run_plan(closed_plan(requests([None] * 10), users=16), steady(0.5)))
    (fault,) = verdict.faults
    assert fault.startswith("There were never more than 10 users where 16 were asked for")
    assert judged(run_plan(closed_plan(requests([None] * 16), users=16), steady(0.5))).on_schedule


def test_users_that_think_are_there() -> None:
    singles = [replace(one, think_s=1.0 + one.index) for one in requests([None] * 4)]
    verdict = judged(run_plan(closed_plan(singles, users=4), steady(0.25)))
    assert (verdict.peak_concurrency, verdict.on_schedule) == (1, True)
    few = judged(run_plan(closed_plan(singles[:3], users=4), steady(0.25)))
    assert few.faults[0].startswith("There were never more than 3 users where 4 were asked for")


def test_a_run_that_mostly_ends_says_how_many_users_it_had() -> None:
    """Eight users, 12 requests of 1 s: eight for a second, four for another."""
    verdict = judged(run_plan(closed_plan(requests([None] * 12), users=8), steady(1.0)))
    assert (verdict.on_schedule, verdict.mean_users) == (True, 6.0)
    (note,) = verdict.notes
    assert note.startswith("Of 8 users 6 had something to ask in the mean")
    assert judged(run_plan(closed_plan(requests([None] * 32), users=8), steady(1.0))).notes == []


def test_a_user_that_thinks_has_something_to_ask() -> None:
    singles = [replace(one, think_s=3.0) for one in requests([None] * 8)]
    verdict = judged(run_plan(closed_plan(singles, users=4), steady(1.0)))
    assert (verdict.mean_users, verdict.notes) == (4.0, [])


def test_later_turns_that_miss_their_time_are_told() -> None:
    def conversation(start: float, index: int) -> Conversation:
        times = [start, start + 1.0, start + 2.0]
        return Conversation(tuple(PlannedRequest(index + at, "", 5, 5, due) for at, due in enumerate(times)))

    plan = Plan(tuple(conversation(float(10 * number), 3 * number) for number in range(10)), Load.OPEN, 0.1)
    late = judged(run_plan(plan, steady(3.0)))
    assert (late.on_schedule, late.later_turns) == (True, 20), "conversations began on time"
    assert late.slip_ms is not None
    assert (late.slip_ms.count, late.slip_ms.max) == (20, pytest.approx(4000.0))
    assert late.notes[0].startswith("20 of 20 later turns came after their time, half of them by over 3 s")
    in_time = judged(run_plan(plan, steady(0.5)))
    assert (in_time.later_turns, in_time.slip_ms, in_time.notes) == (20, None, [])
    together = schedule_of_repeats([plan] * 2, [run_plan(plan, steady(took)).measured for took in (0.5, 3.0)])
    assert together.notes[0].startswith("20 of 40 later turns")


def test_a_closed_load_has_no_rate_to_keep() -> None:
    verdict = judged(run_plan(closed_plan(requests([None] * 8), users=2), steady(0.5)))
    assert (verdict.asked_rate, verdict.achieved_rate, verdict.on_schedule) == (None, None, True)
    assert verdict.peak_concurrency == 2


def test_without_a_rate_the_plans_own_times_are_what_was_planned() -> None:
    verdict = judged(run_plan(open_plan(requests([0.0, 1.0, 4.0])), steady(0.5)))
    assert (verdict.asked_rate, verdict.on_schedule) == (None, True)
    assert verdict.achieved_rate == pytest.approx(2 / 4)


def test_all_at_once_has_no_rate() -> None:
    assert judged(run_plan(open_plan(requests([0.0] * 4)), steady(0.5))).achieved_rate is None


def test_a_run_that_was_stopped_is_judged_by_what_was_due() -> None:
    plan = open_plan(requests(tenths(100)), rate=10.0)
    in_time = judged(run_plan(plan, steady(0.5), stop_at=5.05))
    assert (in_time.achieved_rate, in_time.on_schedule) == (pytest.approx(10.0), True)
    capped = open_plan(requests(tenths(100)), rate=10.0, max_concurrency=1)
    behind = judged(run_plan(capped, steady(0.5), stop_at=5.05))
    assert behind.achieved_rate == pytest.approx(
        9 / 4.9
    )  # the tenth was sent at 4.6 s, the last one due at 5 s
    assert not behind.on_schedule


def test_a_run_of_which_nothing_was_due_has_no_figures() -> None:
    verdict = judged(run_plan(open_plan(requests([9.0])), steady(0.5), stop_at=0.001))
    assert (verdict.lag_ms, verdict.loop_lag_ms, verdict.achieved_rate) == (None, None, None)


def test_one_repeat_off_schedule_is_enough() -> None:
    plan = open_plan(requests(tenths(20)), rate=10.0, max_concurrency=1)
    good, bad = run_plan(plan, steady(0.05)), run_plan(plan, steady(0.2))
    assert schedule_of_repeats([plan], [good.measured]) == judged(good)
    together = schedule_of_repeats([plan] * 3, [good.measured, bad.measured, good.measured])
    assert not together.on_schedule
    assert together.faults == [f"Repeat 2: {fault}" for fault in judged(bad).faults]
    assert together.capped == judged(bad).capped == 19
    rates = [judged(run).achieved_rate for run in (good, bad, good)]
    assert together.achieved_rate == pytest.approx(sum(rate or 0.0 for rate in rates) / 3)
    assert together.lag_ms is not None and together.lag_ms.count == 60


def test_the_verdict_is_the_same_for_any_arrivals_on_time() -> None:
    drawn = random.Random(0)
    times = sorted(drawn.uniform(0.0, 10.0) for _ in range(200))
    rate = 199 / (times[-1] - times[0])
    verdict = judged(run_plan(open_plan(requests(times), rate), steady(1.0, 10), places=3))
    assert (verdict.on_schedule, verdict.achieved_rate) == (True, pytest.approx(rate))
