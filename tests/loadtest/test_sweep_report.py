"""What a sweep asks at each load, and what its report says."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from loadtest.results import RunReport, Schedule
from loadtest.sweep import Sweep
from loadtest.sweep_report import first_rate, point_of, sweep_report, workload_alone, workload_at
from loadtest.workload import Arrival, WorkloadSpec
from tests.loadtest.test_describe import SCHEDULE, SUMMARY, report


def run(output: float, attainment: float | None = None, *, schedule: Schedule = SCHEDULE) -> RunReport:
    changed = replace(report(), schedule=schedule)
    return replace(changed, summary=replace(SUMMARY, output_tok_s=output, slo_attainment=attainment))


# ---- how much is asked -----------------------------------------------------------------------------


def test_a_high_rate_lasts_as_long_as_a_low_one_and_a_low_one_has_enough_requests() -> None:
    spec = WorkloadSpec()
    assert workload_at(spec, "rate", 0.1).num_requests == 50
    assert workload_at(spec, "rate", 100.0).num_requests == 3000
    assert workload_at(WorkloadSpec(num_requests=200, duration_s=10), "rate", 30.0).num_requests == 300
    assert workload_at(WorkloadSpec(num_requests=200, duration_s=10), "rate", 1.0).num_requests == 200
    assert workload_at(WorkloadSpec(duration_s=10), "rate", 1.0).duration_s is None


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


@pytest.mark.parametrize(
    ("asked", "achieved", "offered"),
    [(10.0, 9.95, True), (10.0, 9.5, False), (None, None, True), (10.0, None, True)],
)
def test_a_load_that_was_not_there_is_no_point_of_the_curve(
    asked: float | None, achieved: float | None, offered: bool
) -> None:
    schedule = replace(SCHEDULE, asked_rate=asked, achieved_rate=achieved)
    assert point_of(1.0, run(100, schedule=schedule)).offered is offered
    assert not point_of(1.0, replace(run(100), interrupted=True)).offered
    sweep, runs = swept({1.0: (100, 1.0)}, schedule=schedule)
    notes = sweep_report(sweep, runs, "rate", 0.9, []).notes
    assert notes[0].startswith("At 1 the load was not what was asked") is not offered


def test_loads_that_asked_different_parts_of_a_trace_are_told() -> None:
    sweep, runs = swept({8.0: (410, 0.2), 1.0: (100, 1.0), 2.0: (200, 1.0), 4.0: (400, 0.95)})
    repeat = runs[8.0].repeats[0]
    longer = [replace(row, output_len=2 * row.output_len) for row in repeat.requests] * 2
    runs[8.0] = replace(runs[8.0], repeats=[replace(repeat, requests=longer)])
    (note,) = sweep_report(sweep, runs, "rate", 0.9, []).notes
    assert "answers have 5 to 10 tokens" in note
    assert "With 120 requests at each" in note
