"""What a sweep asks at each load, and what its report says."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from loadtest.results import RunReport, Schedule, UsageCheck
from loadtest.spec import Arrival, WorkloadSpec
from loadtest.sweep import Sweep
from loadtest.sweep_report import first_rate, point_of, sweep_report, workload_alone, workload_at
from tests.loadtest.test_describe import SCHEDULE, SUMMARY, report, scheduled


def run(output: float, attainment: float | None = None, *, schedule: Schedule = SCHEDULE) -> RunReport:
    changed = scheduled(schedule)
    return replace(changed, summary=replace(SUMMARY, output_tok_s=output, slo_attainment=attainment))


# ---- how much is asked -----------------------------------------------------------------------------


def test_a_high_rate_lasts_as_long_as_a_low_one_and_a_low_one_has_enough_requests() -> None:
    spec = WorkloadSpec()
    assert workload_at(spec, "rate", 0.1).num_requests == 50
    assert workload_at(spec, "rate", 100.0).num_requests == 3000
    assert workload_at(WorkloadSpec(num_requests=200, duration_s=10), "rate", 30.0).num_requests == 300
    assert workload_at(WorkloadSpec(num_requests=200, duration_s=10), "rate", 1.0).num_requests == 200
    assert workload_at(WorkloadSpec(duration_s=10), "rate", 1.0).duration_s is None


def test_users_send_for_the_duration_where_one_is_given() -> None:
    found = workload_at(WorkloadSpec(num_requests=10, duration_s=60.0), "concurrency", 64)
    assert (found.num_requests, found.sessions, found.duration_s) == (None, None, 60.0)


def test_each_user_asks_more_than_once() -> None:
    assert workload_at(WorkloadSpec(num_requests=10), "concurrency", 64).num_requests == 256
    assert workload_at(WorkloadSpec(num_requests=10), "concurrency", 1).num_requests == 10


def test_of_conversations_it_is_their_number() -> None:
    for spec in (WorkloadSpec(turns="3"), WorkloadSpec(sessions=20)):
        found = workload_at(spec, "rate", 100.0)
        assert (found.sessions, found.num_requests) == (3000, None)


def test_one_user_alone_takes_any_workload() -> None:
    found = workload_alone(WorkloadSpec(burstiness=0.2, ramp_to=5.0, return_s="3", duration_s=9.0))
    assert (found.arrival, found.max_concurrency, found.num_requests) == (Arrival.CLOSED, 1, 8)
    assert (found.burstiness, found.ramp_to, found.return_s, found.duration_s) == (1.0, None, None, None)


def test_rates_begin_at_half_of_what_one_user_gets() -> None:
    alone = report()
    alone = replace(alone, summary=replace(alone.summary, duration_s=30.0), repeats=alone.repeats[:1])
    assert first_rate(alone) == 1.0, "60 conversations in 30 s"
    assert first_rate(replace(alone, repeats=[])) is None


# ---- what is said ----------------------------------------------------------------------------------


def swept(
    outputs: dict[float, tuple[float, float]], *, schedule: Schedule = SCHEDULE
) -> tuple[Sweep, dict[float, RunReport]]:
    """By value: output tokens a second, and the share that met the SLO."""
    sweep, runs = Sweep(list(outputs), whole=False, attainment=0.9), dict[float, RunReport]()
    for value, (output, attainment) in outputs.items():
        runs[value] = run(output, attainment, schedule=schedule)
        sweep.add(point_of(value, runs[value]))
    return sweep, runs


def test_a_sweep_tells_its_points_its_limit_and_its_knee() -> None:
    sweep, runs = swept({8.0: (410, 0.2), 1.0: (100, 1.0), 2.0: (200, 1.0), 4.0: (400, 0.95)})
    found = sweep_report(sweep, runs, "rate", 0.9, ["It began at 1."])
    assert [(point.value, point.meets_slo) for point in found.points] == [
        (1.0, True),
        (2.0, True),
        (4.0, True),
        (8.0, False),
    ]
    assert [point.run for point in found.points] == [runs[value] for value in (1.0, 2.0, 4.0, 8.0)]
    assert (found.highest_within_slo, found.lowest_beyond_slo) == (4.0, 8.0)
    assert found.knee == 4.0
    assert "2 times as much load as that changes it by +2%" in found.knee_note
    assert found.notes == ["It began at 1."]


def test_what_a_sweep_did_not_find_is_said() -> None:
    growing, runs = swept({1.0: (100, 1.0), 2.0: (200, 0.1), 4.0: (400, 0.95), 8.0: (800, 0.1)})
    found = sweep_report(growing, runs, "rate", 0.9, [])
    assert found.knee is None
    assert "There is no knee" in found.knee_note
    assert "4 met the SLO though 2 did not" in found.notes[0]
    assert "The server was not saturated: a higher rate" in found.notes[1]
    few, runs = swept({1.0: (100, 1.0)})
    assert "Too few" in sweep_report(few, runs, "concurrency", 0.9, []).knee_note


LATE = replace(SCHEDULE, on_schedule=False, faults=["The tool's own event loop was late."])
CAPPED = replace(SCHEDULE, achieved_rate=1.9, capped=9, on_schedule=False, faults=["1.9 were sent: the cap."])


@pytest.mark.parametrize(
    ("schedule", "offered", "sustained"),
    [
        (SCHEDULE, True, True),
        (replace(SCHEDULE, asked_rate=None, achieved_rate=None), True, True),
        (LATE, False, True),
        (replace(LATE, achieved_rate=1.9), False, False),
        (CAPPED, True, False),
        (replace(CAPPED, faults=[*CAPPED.faults, *LATE.faults]), False, False),
    ],
)
def test_a_load_that_the_tool_did_not_offer_is_no_point_and_one_that_the_cap_held_back_a_miss(
    schedule: Schedule, offered: bool, sustained: bool
) -> None:
    point = point_of(1.0, run(100, 1.0, schedule=schedule))
    assert (point.offered, point.is_sustained) == (offered, sustained)
    sweep, runs = swept({1.0: (100, 1.0)}, schedule=schedule)
    found = sweep_report(sweep, runs, "rate", 0.9, [])
    assert found.points[0].meets_slo is (sustained if offered else None)
    said = " ".join(found.notes)
    assert ("At 1 the load was not what was asked" in said) is not offered
    assert ("At 1 the server did not bear the load" in said) is (offered and not sustained)


def test_an_interrupted_load_and_one_with_other_tokens_decide_nothing() -> None:
    assert not point_of(1.0, replace(run(100), interrupted=True)).offered
    unequal = UsageCheck(10, 13, 10, 10, False, "")
    assert not point_of(1.0, replace(run(100), usage=unequal)).offered


def test_a_load_whose_queue_grew_misses_the_slo_however_many_kept_it() -> None:
    """As at 1.07 times the capacity with a generous limit: nine of ten are within it after half a minute."""
    behind = report([100.0 + 50 * index for index in range(60)], slo_attainment=0.97)
    assert point_of(1.0, behind).offered
    assert not point_of(1.0, behind).is_sustained
    assert point_of(1.0, report(slo_attainment=0.97)).is_sustained


def test_few_requests_leave_loads_in_doubt_and_the_report_says_which() -> None:
    sweep, runs = Sweep([1.0, 2.0, 4.0], whole=False, attainment=0.9), dict[float, RunReport]()
    for value, attainment in ((1.0, 1.0), (2.0, 0.92), (4.0, 0.5)):
        runs[value] = report(slo_attainment=attainment, completed=100)
        sweep.add(point_of(value, runs[value]))
    found = sweep_report(sweep, runs, "rate", 0.9, [])
    assert [point.meets_slo for point in found.points] == [True, None, False]
    assert (found.highest_within_slo, found.lowest_beyond_slo) == (1.0, 4.0)
    in_doubt = found.points[1].attainment
    assert in_doubt is not None
    assert in_doubt.low < 0.9 < in_doubt.high
    assert "At 2 too few requests" in found.notes[0]


def test_a_curve_that_is_flat_is_not_said_to_grow() -> None:
    for outputs in ((100, 101, 99, 100), (200, 150, 100, 90)):
        sweep, runs = swept({float(2**n): (output, 1.0) for n, output in enumerate(outputs)})
        found = sweep_report(sweep, runs, "rate", 0.9, [])
        assert found.knee is None
        assert "more brought no more output" in found.knee_note


def test_loads_that_asked_different_parts_of_a_trace_are_told() -> None:
    sweep, runs = swept({8.0: (410, 0.2), 1.0: (100, 1.0), 2.0: (200, 1.0), 4.0: (400, 0.95)})
    repeat = runs[8.0].repeats[0]
    longer = [replace(row, output_len=2 * row.output_len) for row in repeat.requests] * 2
    runs[8.0] = replace(runs[8.0], repeats=[replace(repeat, requests=longer)])
    (note,) = sweep_report(sweep, runs, "rate", 0.9, []).notes
    assert "answers have 5 to 10 tokens" in note
    assert "With 120 requests at each" in note
