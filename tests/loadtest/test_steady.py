"""Rates while the load was whole, of runs whose true rates are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.plan import PlannedRequest
from loadtest.results import Steady
from loadtest.steady import steady
from loadtest.summary import summarize
from tests.support.scripted_driver import Answer, Script
from tests.support.scripted_driver import steady as even
from tests.support.virtual_runs import VirtualRun, closed_plan, open_plan, requests, run_plan


def found(*runs: VirtualRun) -> Steady:
    result = steady([run.measured for run in runs])
    assert result is not None
    return result


def test_an_open_load_that_the_server_keeps_up_with_has_the_rate_that_was_asked() -> None:
    """Answers of 30 s, 2 a second: over all of the run, 1.26 a second completed."""
    run = run_plan(open_plan(requests([number / 2 for number in range(100)]), 2.0), even(30.0, 60))
    whole = summarize([run.measured], None)
    assert whole.request_rate == pytest.approx(100 / 79.5)
    assert (found(run).from_ms, found(run).to_ms) == (30_000.0, 49_500.0)
    assert found(run).request_rate == pytest.approx(2.0, rel=0.01)
    assert found(run).output_tok_s == pytest.approx(120.0, rel=0.01)
    assert whole.sustained_tok_s == found(run).output_tok_s


def test_a_full_server_under_an_open_load_has_the_rate_that_it_can() -> None:
    """One second each, two at a time."""
    times = [number / 10 for number in range(100)]
    run = run_plan(open_plan(requests(times), 10.0), even(1.0, 10), places=2)
    assert found(run).request_rate == pytest.approx(2.0, rel=0.05)
    assert found(run).output_tok_s == pytest.approx(20.0, rel=0.05)


def sixteen_times_one_and_a_long_one(planned: PlannedRequest) -> Answer:
    return even(20.0 if planned.index == 16 else 1.0, 10)(planned)


def test_a_closed_load_is_whole_until_a_user_finds_nothing_to_ask() -> None:
    """Four users for a second each, and a last answer of 20 s that one of them alone waits for."""
    run = run_plan(closed_plan(requests([None] * 17), users=4), sixteen_times_one_and_a_long_one)
    assert summarize([run.measured], None).request_rate == pytest.approx(17 / 24)
    assert (found(run).from_ms, found(run).to_ms) == (0.0, 4000.0)
    assert found(run).request_rate == pytest.approx(4.0)
    assert found(run).output_tok_s == pytest.approx(40.0)


def test_repeats_count_by_their_time() -> None:
    def run(ends: float) -> VirtualRun:
        return run_plan(closed_plan(requests([None] * 8), users=2), even(ends, 2))

    both = found(run(1.0), run(3.0))
    assert (both.from_ms, both.to_ms) == (0.0, 8000.0)
    assert both.request_rate == pytest.approx(16 / 16)


def fails_at_last(planned: PlannedRequest) -> Answer:
    return Answer([[0.5, 1.0]], 1.0, fails="http 500" if planned.index % 2 else "")


def test_what_failed_counts_in_no_rate() -> None:
    run = run_plan(closed_plan(requests([None] * 20), users=2), fails_at_last)
    assert found(run).request_rate == pytest.approx(1.0)


@pytest.mark.parametrize("script", [even(60.0, 10), lambda planned: Answer([[]], 0.5, fails="timeout")])
def test_there_is_none_where_the_load_was_never_whole(script: Script) -> None:
    run = run_plan(open_plan(requests([0.0, 1.0, 2.0])), script)
    assert steady([run.measured]) is None
    assert summarize([run.measured], None).sustained_tok_s == summarize([run.measured], None).output_tok_s


def test_a_run_that_was_stopped_and_one_with_too_many_users_have_none() -> None:
    stopped = run_plan(closed_plan(requests([None] * 20), users=2), even(1.0), stop_at=5.5)
    too_many = run_plan(closed_plan(requests([None] * 2), users=3), even(1.0))
    assert steady([stopped.measured]) is steady([too_many.measured]) is None


def test_later_turns_do_not_make_a_load_whole_for_longer() -> None:
    run = run_plan(open_plan(requests([0.0, 1.0, 2.0, 3.0])), even(1.0, 4))
    later = [replace(timeline, turn=1) for timeline in run.measured.timelines[2:]]
    run.measured.timelines[2:] = later
    assert steady([run.measured]) is None, "the first answer ended when the last conversation began"
