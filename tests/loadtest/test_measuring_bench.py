"""How much is made ready for users who have a time."""

from __future__ import annotations

from loadtest.measured import Measured
from loadtest.measuring.bench import supply
from loadtest.spec import WorkloadSpec
from tests.support.scripted_driver import steady
from tests.support.virtual_runs import closed_plan, requests, run_plan

TIMED = WorkloadSpec(max_concurrency=3, duration_s=10.0)


def warmed(seconds: float) -> list[Measured]:
    return [run_plan(closed_plan(requests([None] * 4), users=2), steady(seconds)).measured]


def test_users_have_more_to_ask_than_they_get_answered() -> None:
    assert supply(TIMED, warmed(0.5)) == 3 * 41
    assert supply(TIMED, warmed(50.0)) == 3 * 2
    assert supply(TIMED, []) == 3 * 201


def test_what_is_made_ready_has_an_end() -> None:
    assert supply(TIMED, warmed(1e-6)) == 50_000
