"""Figures of runs in virtual time: each must be the one that the server's own stamps give."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest

from loadtest.plan import Conversation, Load, Plan, PlannedRequest, Reading
from loadtest.results import Distribution, Repeat, RequestRow, Summary
from loadtest.schedule import schedule
from loadtest.slo import parse
from loadtest.summary import rows, summarize, usage_check
from loadtest.timeline import Usage
from tests.support.scripted_driver import Answer, Script, Written, steady
from tests.support.virtual_runs import VirtualRun, closed_plan, open_plan, requests, run_plan


def random_answers(seed: int) -> Script:
    """Of 1 to 20 pieces at random times, the last of them before the end."""
    drawn = random.Random(seed)

    def answer(planned: PlannedRequest) -> Answer:
        times = [sorted(drawn.uniform(0, 2) for _ in range(drawn.randint(1, 20))) for _ in range(planned.n)]
        return Answer(times, max(map(max, times)) + 0.125)

    return answer


def random_times(count: int, span_s: float, seed: int = 0) -> list[float]:
    drawn = random.Random(seed)
    return sorted(drawn.uniform(0, span_s) for _ in range(count))


def assert_is(found: Distribution | None, samples_s: Iterable[float]) -> None:
    """Exactly the percentiles of these, by code that is not ours."""
    samples = [sample * 1e3 for sample in samples_s]
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    assert found is not None
    assert found.count == len(samples)
    assert (found.p50, found.p90, found.p95, found.p99) == pytest.approx(
        (cuts[49], cuts[89], cuts[94], cuts[98]), rel=1e-9
    )
    assert (found.mean, found.max) == pytest.approx((statistics.fmean(samples), max(samples)), rel=1e-9)


def of_each(run: VirtualRun, figure: Callable[[Written, float], float]) -> list[float]:
    """A figure of each request, of what the server wrote and when it should have been asked."""
    return [
        figure(run.written[timeline.planned.index], timeline.intended_at)
        for timeline in run.measured.timelines
    ]


@pytest.mark.parametrize(
    ("places", "max_concurrency", "n"), [(1000, None, 1), (2, None, 1), (1000, 2, 1), (2, 5, 3)]
)
def test_every_percentile_is_that_of_the_servers_own_stamps(
    places: int, max_concurrency: int | None, n: int
) -> None:
    """With a server that keeps up, one that is saturated, one that a cap spares, and several choices."""
    singles = [replace(one, n=n) for one in requests(random_times(150, 100.0))]
    run = run_plan(open_plan(singles, 1.5, max_concurrency=max_concurrency), random_answers(1), places=places)
    found = summarize([run.measured], None)
    assert_is(found.ttft_ms, of_each(run, lambda wrote, due: min(map(min, wrote.pieces)) - due))
    assert_is(
        found.ttft_from_send_ms, of_each(run, lambda wrote, _: min(map(min, wrote.pieces)) - wrote.asked_at)
    )
    assert_is(found.e2e_ms, of_each(run, lambda wrote, due: wrote.ended_at - due))
    assert_is(found.e2e_from_send_ms, of_each(run, lambda wrote, _: wrote.ended_at - wrote.asked_at))
    assert_is(found.queue_ms, of_each(run, lambda wrote, due: wrote.asked_at - due))
    assert_is(
        found.normalized_ms,
        of_each(run, lambda wrote, due: (wrote.ended_at - due) / (sum(map(len, wrote.pieces)) / n)),
    )
    gaps = [
        after - before
        for wrote in run.written.values()
        for times in wrote.pieces
        for before, after in pairwise(times)
    ]
    assert_is(found.itl_ms, gaps)


def test_tpot_is_of_the_tokens_after_the_first() -> None:
    run = run_plan(open_plan(requests(random_times(50, 20.0))), random_answers(2))
    tpots = [
        (wrote.pieces[0][-1] - wrote.pieces[0][0]) / (len(wrote.pieces[0]) - 1)
        for wrote in run.written.values()
        if len(wrote.pieces[0]) > 1
    ]
    assert_is(summarize([run.measured], None).tpot_ms, tpots)


def test_an_answer_in_one_piece_has_no_tpot() -> None:
    """It would be 0, as of no server that hands out tokens."""
    run = run_plan(open_plan(requests([0.0])), lambda planned: Answer([[2.0]], 2.0, tokens=5))
    assert summarize([run.measured], None).tpot_ms is None


def test_rates_are_over_the_time_from_the_first_intended_send_to_the_last_end() -> None:
    run = run_plan(open_plan(requests([2.0, 3.0, 4.0, 5.0])), steady(5.0, 10))
    found = summarize([run.measured], None)
    assert found.duration_s == 8.0
    assert (found.request_rate, found.output_tok_s, found.total_tok_s) == (4 / 8, 40 / 8, (40 + 20) / 8)
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (20, 40, None)


def test_repeats_together_are_all_of_their_requests_over_all_of_their_time() -> None:
    runs = [run_plan(open_plan(requests([0.0, 1.0])), steady(ends)).measured for ends in (1.0, 3.0)]
    found = summarize(runs, None)
    assert (found.completed, found.duration_s, found.request_rate) == (4, 2.0 + 4.0, 4 / 6)
    assert found.e2e_ms is not None and found.e2e_ms.p50 == 2000.0


def every_fifth_fails(planned: PlannedRequest) -> Answer:
    if planned.index % 5 == 4:
        return Answer([[]], 0.001, fails="http 503" if planned.index % 2 else "connection reset")
    return Answer([[0.5, 1.0]], 1.0)


@pytest.mark.case("G5")
def test_failures_are_apart_by_reason_and_in_no_latency() -> None:
    run = run_plan(open_plan(requests([number / 10 for number in range(100)]), 10.0), every_fifth_fails)
    found = summarize([run.measured], parse("ttft=600ms"))
    assert (found.completed, found.failed) == (80, 20)
    assert found.failures == {"connection reset": 10, "http 503": 10}
    for measure in (found.ttft_ms, found.e2e_ms, found.e2e_from_send_ms, found.queue_ms):
        assert measure is not None and measure.count == 80
    assert found.e2e_ms is not None
    assert (found.e2e_ms.p50, found.e2e_ms.mean, found.e2e_ms.max) == pytest.approx((1000.0,) * 3)
    duration_s = 9.8 + 1.0  # the last one failed at once
    assert found.duration_s == pytest.approx(duration_s)
    assert (found.request_rate, found.output_tok_s) == pytest.approx((80 / duration_s, 160 / duration_s))
    assert (found.goodput, found.slo_attainment) == (
        pytest.approx(80 / duration_s),
        0.8,
    )  # a failure is a miss


@pytest.mark.case("G5")
def test_a_conversation_that_fails_early_misses_with_all_of_its_turns() -> None:
    turns = tuple(PlannedRequest(index, "", 5, 1, 0.0 if index == 0 else None) for index in range(4))
    run = run_plan(
        Plan((Conversation(turns),), Load.OPEN), lambda planned: Answer([[]], 0.1, fails="http 500")
    )
    found = summarize([run.measured], parse("e2e=1s"))
    assert (found.failed, found.slo_attainment, found.e2e_ms) == (4, 0.0, None)
    assert found.failures == {"not asked, a turn before it failed": 3, "http 500": 1}


def test_goodput_is_what_met_the_slo_and_nobody_who_left_counts() -> None:
    def script(planned: PlannedRequest) -> Answer:
        return Answer([[0.1, 0.2, 2.0 if planned.index < 2 else 0.3]], 2.0)

    singles = requests([0.0] * 10)
    singles[9] = replace(singles[9], reading=Reading(leave_after=2))
    found = summarize([run_plan(open_plan(singles), script).measured], parse("itl=1s"))
    assert (found.completed, found.left) == (9, 1)
    assert (found.goodput, found.slo_attainment) == (7 / 2.0, 7 / 9)


def test_what_a_stop_cut_off_is_no_failure_but_no_success_either() -> None:
    run = run_plan(open_plan(requests([0.0, 1.0, 2.0, 9.0])), steady(2.0), stop_at=3.5)
    found = summarize([run.measured], parse("e2e=5s"))
    assert (found.completed, found.failed, found.unfinished) == (2, 0, 1)
    assert (found.duration_s, found.slo_attainment) == (3.5, 2 / 3)


def test_a_run_without_a_completed_request_has_no_latencies() -> None:
    run = run_plan(open_plan(requests([0.0])), lambda planned: Answer([[]], 0.5, fails="timeout"))
    found = summarize([run.measured], None)
    assert [getattr(found, name) for name in Summary.__struct_fields__ if name.endswith("_ms")] == [None] * 8
    assert (found.goodput, found.slo_attainment, found.tokens_per_piece) == (None, None, None)
    assert not found.exact_token_times


def test_a_run_that_was_stopped_at_once_has_no_figures() -> None:
    found = summarize(
        [run_plan(open_plan(requests([1.0])), steady(1.0), stop_at=0.5).measured], parse("e2e=1s")
    )
    assert (found.duration_s, found.request_rate, found.goodput, found.slo_attainment) == (
        0.0,
        0.0,
        0.0,
        None,
    )


def several_tokens(planned: PlannedRequest) -> Answer:
    return Answer([[0.5, 1.0]], 1.0, tokens=8)


def test_token_times_are_exact_only_where_every_piece_is_known() -> None:
    one_each = run_plan(open_plan(requests([0.0])), steady(1.0, 4)).measured
    in_pieces = run_plan(open_plan(requests([0.0, 1.0])), several_tokens).measured
    found = summarize([one_each], None)
    assert (found.exact_token_times, found.tokens_per_piece) == (True, 1.0)
    found = summarize([one_each, in_pieces], None)
    assert (found.exact_token_times, found.tokens_per_piece) == (False, 20 / 8)


def test_token_times_are_not_exact_because_the_server_tells_how_many_came() -> None:
    def told(*tokens: int) -> Script:
        times = [0.5 + number / 8 for number in range(len(tokens))]
        return lambda planned: Answer([times], 2.0, tokens=sum(tokens), piece_tokens=[list(tokens)])

    assert summarize([run_plan(open_plan(requests([0.0])), told(1, 1, 1)).measured], None).exact_token_times
    found = summarize([run_plan(open_plan(requests([0.0])), told(4, 4, 2)).measured], None)
    assert (found.exact_token_times, found.tokens_per_piece) == (False, 10 / 3)
    assert found.itl_ms is not None and found.itl_ms.p50 == pytest.approx(125.0), "between pieces"


def test_pieces_that_came_together_are_counted() -> None:
    times = [0.5, 0.5, 0.50001, 0.6, 0.6, 0.7]  # three gaps of five in no time
    found = summarize(
        [run_plan(open_plan(requests([0.0])), lambda planned: Answer([times], 1.0)).measured], None
    )
    assert found.together_share == 3 / 5


def test_slow_readers_are_counted_and_in_no_latency_and_no_slo() -> None:
    def script(planned: PlannedRequest) -> Answer:
        slow = planned.reading.pause_s > 0
        return Answer([[0.5, 9.0] if slow else [0.1, 0.2]], 9.5 if slow else 0.25)

    singles = requests([0.0] * 10)
    for index in (2, 7):
        singles[index] = replace(singles[index], reading=Reading(pause_s=0.2))
    found = summarize([run_plan(open_plan(singles), script).measured], parse("e2e=1s"))
    assert (found.completed, found.slow, found.slo_attainment) == (10, 2, 1.0)
    for measure in (found.ttft_ms, found.tpot_ms, found.e2e_ms, found.itl_ms):
        assert measure is not None and measure.count == 8 and measure.max < 1000.0
    assert found.completion_tokens == 20, "the server made them all the same"
    assert found.goodput == pytest.approx(8 / found.duration_s)


def test_cached_tokens_are_those_that_were_told() -> None:
    run = run_plan(open_plan(requests([0.0, 0.0])), steady(1.0)).measured
    run.timelines[0].usage = Usage(5, 1, cached_tokens=4)
    assert summarize([run], None).cached_tokens == 4


@pytest.mark.parametrize(("prompt_tokens", "within"), [(50, True), (51, True), (52, False), (48, False)])
def test_usage_may_be_off_by_a_fiftieth(prompt_tokens: int, within: bool) -> None:
    singles = [replace(one, input_len=50) for one in requests([0.0] * 3)]
    run = run_plan(open_plan(singles), lambda planned: Answer([[1.0]], 1.0, prompt_tokens=prompt_tokens))
    check = usage_check([run.measured], forced=True)
    assert (check.planned_prompt_tokens, check.counted_prompt_tokens) == (150, 3 * prompt_tokens)
    assert check.within is within


def test_usage_is_compared_request_by_request() -> None:
    singles = [replace(one, input_len=50) for one in requests([0.0] * 2)]
    run = run_plan(
        open_plan(singles), lambda planned: Answer([[1.0]], 1.0, prompt_tokens=(40, 60)[planned.index])
    )
    check = usage_check([run.measured], forced=True)
    assert check.planned_prompt_tokens == check.counted_prompt_tokens
    assert not check.within
    assert check.note.startswith("Prompts are off by 20.00%, request by request")


@pytest.mark.parametrize("forced", [True, False])
def test_the_length_of_answers_counts_where_it_is_forced(forced: bool) -> None:
    singles = [replace(one, output_len=10, n=2) for one in requests([0.0])]
    run = run_plan(open_plan(singles), steady(1.0, 9))
    check = usage_check([run.measured], forced)
    assert (check.planned_completion_tokens, check.counted_completion_tokens) == (20, 18)
    assert check.within is not forced
    assert ("not forced" in check.note) is not forced


def test_no_answer_may_be_longer_than_was_allowed() -> None:
    run = run_plan(open_plan(requests([0.0])), lambda planned: Answer([[1.0]], 1.0, tokens=100))
    check = usage_check([run.measured], forced=False)
    assert not check.within
    assert "longer than was allowed" in check.note


def test_where_the_server_counts_nothing_there_are_no_rates_of_tokens() -> None:
    run = run_plan(open_plan(requests([0.0, 1.0, 2.0]), 1.0), steady(1.5, 3))
    for timeline in run.measured.timelines:
        timeline.usage = None
    found = summarize([run.measured], None)
    assert (found.output_tok_s, found.total_tok_s, found.tokens_per_piece) == (None, None, None)
    assert found.steady is not None
    assert (found.steady.output_tok_s, found.sustained_tok_s) == (None, 0.0)
    assert found.request_rate > 0


def test_where_nothing_can_be_compared_nothing_is_right() -> None:
    run = run_plan(open_plan(requests([0.0])), lambda planned: Answer([[]], 0.5, fails="timeout"))
    check = usage_check([run.measured], forced=True)
    assert not check.within
    assert check.note == "No request completed and told its usage: there is nothing to compare."


def test_rows_tell_what_happened_to_each_request() -> None:
    run = run_plan(
        open_plan(requests([0.0, 0.25, 1.0]), max_concurrency=1),
        lambda planned: Answer([[0.5, 0.75]], 1.0, fails="http 500" if planned.index else ""),
        stop_at=1.5,
    )
    assert rows(run.measured) == [
        RequestRow(0, 0, 5, 1, 0.0, 0.0, 500.0, 1000.0, "completed", "", 5, 2, None, [[500.0, 750.0]]),
        RequestRow(
            1, 0, 5, 1, 250.0, 1000.0, 1500.0, 1500.0, "unfinished", piece_ms=[[1500.0]], capped_ms=750.0
        ),
        RequestRow(2, 0, 5, 1, 1000.0, None, None, None, "unfinished"),
    ]


def test_a_row_says_what_explains_it() -> None:
    one = replace(requests([0.0])[0], n=2, reading=Reading(leave_after=7, pause_s=0.2))
    run = run_plan(open_plan([one]), steady(1.0)).measured
    run.timelines[0].finish_reasons = ["length", "stop"]
    (row,) = rows(run)
    assert (row.n, row.pause_ms, row.leave_after, row.finish_reasons) == (2, 200.0, 7, ["length", "stop"])
    (plain,) = rows(run_plan(open_plan(requests([0.0])), steady(1.0)).measured)
    assert not {"n", "pause_ms", "leave_after", "capped_ms"} & set(msgspec.to_builtins(plain))


def test_a_row_says_that_its_request_was_sent_again() -> None:
    run = run_plan(open_plan(requests([0.0, 1.0])), steady(0.5)).measured
    run.timelines[1].resent = 1
    assert [row.resent for row in rows(run)] == [0, 1]


def test_all_of_it_goes_through_json_and_back() -> None:
    run = run_plan(closed_plan(requests([None] * 40), users=3), random_answers(3))
    measured = run.measured
    repeat = Repeat(
        "salt", "2026-01-01T00:00:00Z", summarize([measured], parse("e2e=1s")), schedule(run.plan, measured),
        rows(measured), [],
    )  # fmt: skip
    encoded = msgspec.json.encode(repeat)
    assert msgspec.json.decode(encoded, type=Repeat) == repeat
    assert "from_send" in encoded.decode()
