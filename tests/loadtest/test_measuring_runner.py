"""When requests are sent, and what is written down of them: in virtual time, so to the last bit."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import pytest

from loadtest.clock import MonotonicClock
from loadtest.drivers.base import PastTurn
from loadtest.measured import Progress
from loadtest.measuring.runner import BROKEN_OFF, Runner
from loadtest.plan import Conversation, Load, Plan, PlannedRequest, Reading
from loadtest.timeline import Outcome, Timeline
from tests.support.scripted_driver import Answer, Call, ScriptedDriver, steady
from tests.support.virtual_runs import closed_plan, open_plan, requests, run_plan
from tests.support.virtual_time import VirtualClock, run_virtually


def intended(timelines: list[Timeline]) -> list[float]:
    return [timeline.intended_at for timeline in timelines]


def sent(timelines: list[Timeline]) -> list[float | None]:
    return [timeline.sent_at for timeline in timelines]


def test_an_open_load_is_sent_on_schedule_whatever_the_server_does() -> None:
    times = [0.0, 0.25, 0.25, 1.5, 7.0]
    run = run_plan(open_plan(requests(times)), steady(10.0))
    assert intended(run.measured.timelines) == sent(run.measured.timelines) == times
    assert [timeline.ended_at for timeline in run.measured.timelines] == [at + 10 for at in times]
    assert run.measured.peak_concurrency == 5
    assert not run.measured.interrupted


def test_a_cap_delays_sending_but_not_what_was_intended() -> None:
    run = run_plan(open_plan(requests([0.0, 0.5, 1.0]), max_concurrency=1), steady(2.0))
    timelines = run.measured.timelines
    assert intended(timelines) == [0.0, 0.5, 1.0]
    assert sent(timelines) == [0.0, 2.0, 4.0]
    assert [timeline.capped_s for timeline in timelines] == [0.0, 1.5, 3.0]
    assert run.measured.peak_concurrency == 1


def test_users_of_a_closed_load_ask_again_when_they_are_free() -> None:
    durations = [1.0, 4.0, 1.0, 1.0, 1.0]
    run = run_plan(
        closed_plan(requests([None] * 5), users=2), lambda planned: steady(durations[planned.index])(planned)
    )
    assert intended(run.measured.timelines) == sent(run.measured.timelines) == [0.0, 0.0, 1.0, 2.0, 3.0]
    assert run.measured.peak_concurrency == 2


def test_users_think_before_they_ask() -> None:
    singles = [replace(one, think_s=0.5) for one in requests([None] * 4)]
    run = run_plan(closed_plan(singles, users=1), steady(1.0))
    assert intended(run.measured.timelines) == sent(run.measured.timelines) == [0.5, 2.0, 3.5, 5.0]


def test_users_stop_when_their_time_is_over_and_what_runs_then_goes_on() -> None:
    plan = replace(closed_plan(requests([None] * 9), users=2), stop_s=2.5)
    run = run_plan(plan, steady(1.0))
    assert intended(run.measured.timelines) == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    assert {timeline.outcome for timeline in run.measured.timelines} == {Outcome.COMPLETED}
    assert not run.measured.interrupted
    thinking = [replace(one, think_s=0.5) for one in requests([None] * 9)]
    run = run_plan(replace(closed_plan(thinking, users=1), stop_s=2.0), steady(1.0))
    assert intended(run.measured.timelines) == [0.5]


def test_no_turn_is_asked_when_the_time_of_the_users_is_over() -> None:
    talks = tuple(conversation(*(turn(3 * number + index) for index in range(3))) for number in range(3))
    run = run_plan(Plan(talks, Load.CLOSED, max_concurrency=1, stop_s=4.0), steady(1.0))
    assert intended(run.measured.timelines) == [0.0, 1.0, 2.0, 3.0]


def test_a_user_is_free_when_the_answer_ended_however_late_the_tool_is() -> None:
    run = run_plan(closed_plan(requests([None] * 2), users=1), steady(1.0), end_s=0.25)
    first, second = run.measured.timelines
    assert (first.ended_at, second.intended_at, second.sent_at) == (1.0, 1.0, 1.25)


def conversation(*turns: PlannedRequest) -> Conversation:
    return Conversation(tuple(turns))


def turn(
    index: int,
    at_s: float | None = None,
    *,
    think_s: float = 0.0,
    output_len: int = 3,
    reading: Reading = Reading(),  # noqa: B008 - frozen
) -> PlannedRequest:
    return PlannedRequest(index, f"prompt {index}", 10 + index, output_len, at_s, think_s, reading=reading)


def test_a_turn_waits_for_the_answer_before_it_for_its_pause_and_for_its_time() -> None:
    turns = (turn(0, 1.0), turn(1, think_s=0.5), turn(2, 9.0, think_s=1.0), turn(3, 9.5, think_s=1.0))
    run = run_plan(Plan((conversation(*turns),), Load.OPEN), steady(2.0, 3))
    assert intended(run.measured.timelines) == [1.0, 3.5, 9.0, 12.0]
    assert [timeline.turn for timeline in run.measured.timelines] == [0, 1, 2, 3]


def test_a_turn_brings_its_history_and_expects_the_server_to_count_it() -> None:
    run = run_plan(Plan((conversation(turn(0, 0.0), turn(1), turn(2)),), Load.OPEN), steady(1.0, 4))
    past = [PastTurn("prompt 0", "answer 0"), PastTurn("prompt 1", "answer 1")]
    assert [run.written[index].history for index in range(3)] == [[], past[:1], past]
    expected = [timeline.expected_prompt_tokens for timeline in run.measured.timelines]
    assert expected == [10, 10 + 4 + 11, 10 + 4 + 11 + 4 + 12]  # answers as the server counted them


@pytest.mark.parametrize("load", list(Load))
def test_turns_that_cannot_be_asked_share_the_fate_of_the_one_that_broke_off(load: Load) -> None:
    def script(planned: PlannedRequest) -> Answer:
        return Answer([[0.5, 0.6]], 1.0, fails="http 500" if planned.index == 1 else "")

    leaves = turn(4, 20.0, reading=Reading(leave_after=1))
    plan = Plan(
        (conversation(turn(0, 0.0), turn(1), turn(2), turn(3)), conversation(leaves, turn(5))), load, None, 1
    )
    run = run_plan(plan, script)
    failed, not_asked = (Outcome.FAILED, "http 500"), (Outcome.FAILED, BROKEN_OFF)
    assert [(timeline.outcome, timeline.reason) for timeline in run.measured.timelines] == [
        (Outcome.COMPLETED, ""), failed, not_asked, not_asked, (Outcome.LEFT, ""), (Outcome.LEFT, ""),
    ]  # fmt: skip
    assert [timeline.sent_at is None for timeline in run.measured.timelines] == [False] * 2 + [True] * 2 + [
        False,
        True,
    ]
    assert run.measured.timelines[2].intended_at == 2.0
    counts = run.progress
    assert (counts.planned, counts.sent, counts.completed, counts.failed, counts.left) == (6, 3, 1, 3, 2)


def test_a_stop_keeps_what_was_measured_and_nothing_goes_on() -> None:
    run = run_plan(
        open_plan(requests([0.0, 1.0, 2.0, 3.0, 9.0]), max_concurrency=2), steady(2.5, 5), stop_at=3.25
    )
    assert run.measured.interrupted
    done, cut, other_cut, never_sent = run.measured.timelines  # the last one's time had not come
    assert (done.outcome, done.ended_at) == (Outcome.COMPLETED, 2.5)
    assert (cut.outcome, cut.ended_at, cut.piece_times) == (
        Outcome.UNFINISHED, 3.25, [[1.5, 2.0, 2.5, 3.0]],
    )  # fmt: skip
    assert (other_cut.sent_at, other_cut.ended_at) == (2.5, 3.25)
    assert (never_sent.intended_at, never_sent.sent_at, never_sent.ended_at) == (3.0, None, None)
    assert run.progress.running == 0


def test_a_user_who_thinks_when_the_run_is_stopped_has_asked_nothing() -> None:
    singles = [replace(one, think_s=5.0) for one in requests([None] * 3)]
    run = run_plan(closed_plan(singles, users=1), steady(1.0), stop_at=8.0)
    assert intended(run.measured.timelines) == [5.0]


def test_the_clock_starts_when_all_is_prepared() -> None:
    run = run_plan(open_plan(requests([0.0, 0.01, 0.02])), steady(1.0), prepare_s=5.0)
    assert sent(run.measured.timelines) == pytest.approx([0.0, 0.01, 0.02])
    assert max(run.measured.loop_lag_s) < 1e-9


def test_the_tools_lag_is_measured_all_the_time_that_a_run_takes() -> None:
    run = run_plan(open_plan(requests([0.0])), steady(2.0))
    assert len(run.measured.loop_lag_s) == pytest.approx(2.0 / 0.005, abs=1)


def test_what_goes_on_beside_a_run_begins_and_ends_with_it() -> None:
    async def main() -> None:
        clock, seen = VirtualClock(), list[float]()

        async def watch() -> None:
            try:
                while True:
                    seen.append(clock.now())
                    await clock.sleep_until(clock.now() + 1.0)
            finally:
                seen.append(clock.now())

        await clock.sleep_until(50.0)
        runner = Runner(ScriptedDriver(clock, steady(2.5)), clock, Progress(), asyncio.Event())
        for _ in range(2):
            await runner.run(open_plan(requests([0.0])), [watch])
        assert seen == pytest.approx([0.0, 1.0, 2.0, 2.5] * 2)

    run_virtually(main())


def test_what_a_stop_cut_off_ended_then_however_long_the_rest_takes_to_end() -> None:
    async def main() -> None:
        clock, stop = VirtualClock(), asyncio.Event()

        async def scrape() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await clock.sleep_until(clock.now() + 1.0)  # a last look

        asyncio.get_running_loop().call_at(2.0, stop.set)
        runner = Runner(ScriptedDriver(clock, steady(9.0)), clock, Progress(), stop)
        measured = await runner.run(open_plan(requests([0.0])), [scrape])
        assert (clock.now(), measured.timelines[0].ended_at) == (3.0, 2.0)

    run_virtually(main())


def test_users_have_work_until_the_first_of_them_finds_none() -> None:
    durations = [1.0, 4.0, 1.0, 1.5, 9.0]

    def script(planned: PlannedRequest) -> Answer:
        return steady(durations[planned.index])(planned)

    run = run_plan(closed_plan(requests([None] * 5), users=2), script)
    assert run.measured.had_work_until_s == 4.0, "the other one has the last request, to 12.5"
    too_many = run_plan(closed_plan(requests([None] * 2), users=3), steady(1.0))
    assert too_many.measured.had_work_until_s == 0.0
    for run in (
        run_plan(open_plan(requests([0.0])), steady(1.0)),
        run_plan(closed_plan(requests([None] * 9), users=2), steady(1.0), stop_at=2.5),
    ):
        assert run.measured.had_work_until_s is None


def test_an_error_of_ours_is_raised_and_nothing_goes_on() -> None:
    class Broken(ScriptedDriver):
        async def perform(self, *args: object) -> None:
            await asyncio.sleep(1.0)
            raise ZeroDivisionError

    async def main() -> None:
        clock = VirtualClock()
        runner = Runner(Broken(clock, steady(1.0)), clock, Progress(), asyncio.Event())
        with pytest.raises(ExceptionGroup) as raised:
            await runner.run(open_plan(requests([0.0, 0.5, 5.0])))
        assert raised.group_contains(ZeroDivisionError)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert gc.isenabled() and not gc.get_freeze_count()

    run_virtually(main())


async def test_in_real_time_nothing_is_sent_before_it_is_intended() -> None:
    class Quick(ScriptedDriver):
        def prepare(self, planned: PlannedRequest) -> Call:
            return Call(planned)

        async def perform(self, call: object, past: object, timeline: Timeline) -> None:
            timeline.sent_at = timeline.ended_at = clock.now()
            timeline.outcome = Outcome.COMPLETED

    clock = MonotonicClock()
    runner = Runner(Quick(VirtualClock(), steady(0.0)), clock, Progress(), asyncio.Event())
    times = [number / 200 for number in range(20)]
    measured = await runner.run(open_plan(requests(times)))
    lags_s = [(timeline.sent_at or 0.0) - timeline.intended_at for timeline in measured.timelines]
    assert len(lags_s) == 20
    assert min(lags_s) >= 0.0


def test_no_garbage_is_collected_while_the_clock_runs() -> None:
    class Looking(ScriptedDriver):
        found: list[tuple[bool, bool]] = []  # noqa: RUF012 - one test's

        async def perform(self, *args: object) -> None:
            self.found.append((gc.isenabled(), gc.get_freeze_count() > 0))
            await super().perform(*args)  # type: ignore[arg-type]

    async def main() -> None:
        clock = VirtualClock()
        await Runner(Looking(clock, steady(1.0)), clock, Progress(), asyncio.Event()).run(
            open_plan(requests([0.0]))
        )

    run_virtually(main())
    assert Looking.found == [(False, True)]
    assert gc.isenabled() and not gc.get_freeze_count()


def test_progress_can_be_read_while_a_run_goes_on_and_begins_anew_with_the_next() -> None:
    async def main() -> None:
        clock, progress = VirtualClock(), Progress()
        runner = Runner(ScriptedDriver(clock, steady(2.0, 4)), clock, progress, asyncio.Event())
        plan = open_plan(requests([0.0, 1.0, 1.0, 8.0]), max_concurrency=2)
        for _ in range(2):
            running = asyncio.create_task(runner.run(plan))
            await asyncio.sleep(1.8)
            assert (progress.planned, progress.sent) == (4, 2)
            assert (progress.running, progress.completed) == (2, 0)
            assert progress.pieces == 3 + 1
            await running
            assert (progress.running, progress.completed, progress.pieces) == (0, 4, 16)

    run_virtually(main())
