"""The benchmark of sessions: its plan, its figures, and a short run of it whole."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.session_drive import HitWatch
from benchmarks.session_figures import (
    COMPUTED,
    Prices,
    Run,
    differing_tokens,
    hit_rates,
    starts,
    unequal,
    where,
)
from benchmarks.session_plan import TEMPLATE_TOKENS, LoadPlan, LoadShape, PlannedTurn, Spread
from benchmarks.session_report import print_report, report
from benchmarks.session_results import TIERS, Hits, Reply, TurnResult, hits_name
from benchmarks.sessions import Bench, Setting
from tests.support.kv_room import kv_bytes

BLOCK_BYTES = 1000
SHAPE = LoadShape(num_sessions=50)


def num_words(text: str) -> int:
    return len(text.replace(".", " .").split())


# ---- the plan ----------------------------------------------------------------------------------


def test_a_seed_says_all_of_a_plan() -> None:
    one, same, other = (LoadPlan(LoadShape(num_sessions=50, seed=seed)) for seed in (1, 1, 2))
    assert (one.openings(), one.returns(1.0, 60)) == (same.openings(), same.returns(1.0, 60))
    assert one.openings() != other.openings()
    assert one.returns(1.0, 60) != other.returns(1.0, 60)


def test_histories_have_the_lengths_that_are_stated_and_nothing_in_common() -> None:
    plan = LoadPlan(SHAPE)
    openings = plan.openings()
    assert sorted(turn.session for turn in openings) == [*range(50)]
    for turn in openings:
        stated = plan.history_tokens[turn.session]
        assert SHAPE.history.least <= stated <= SHAPE.history.most
        assert num_words(turn.message) + TEMPLATE_TOKENS == stated
    assert len({turn.message[:60] for turn in openings}) == 50


def test_turns_come_at_the_rate_asked_for_and_a_faster_schedule_is_the_same_one() -> None:
    plan = LoadPlan(SHAPE)
    turns = plan.returns(1.0, 2000)
    assert len(turns) == pytest.approx(2000, rel=0.15)
    assert sum(turn.at < 200 for turn in turns) == pytest.approx(200, rel=0.3), (
        "it has been going on for long"
    )
    for turn, quick in zip(turns, plan.returns(10.0, 200), strict=True):
        assert quick.at == pytest.approx(turn.at / 10)
        assert (quick.session, quick.number, quick.message) == (turn.session, turn.number, turn.message)
    by_session = Counter(turn.session for turn in turns)
    for session, count in by_session.items():
        own = [turn for turn in turns if turn.session == session]
        assert [turn.number for turn in own] == [*range(1, count + 1)]
        assert own == sorted(own, key=lambda turn: turn.at)


# ---- what turns found --------------------------------------------------------------------------


async def test_turns_that_begin_together_share_what_was_found_meanwhile() -> None:
    totals = Counter[str]()

    async def read() -> dict[str, float]:
        return dict(totals)

    watch = HitWatch(read)
    first, second = await watch.enter(), await watch.enter()
    totals[hits_name("disk")] += 60
    watch.leave()
    totals[hits_name("host")] += 40
    watch.leave()
    third = await watch.enter()
    totals[hits_name("disk")] += 16
    watch.leave()
    await watch.finish()
    assert first is second
    assert first.tokens == {"device": 0, "host": 40, "disk": 60}
    assert third.tokens == {"device": 0, "host": 0, "disk": 16}
    assert [turn(0, 1, cached=50, hits=one).is_alone for one in (first, third)] == [False, True]
    assert turn(0, 1, cached=50, hits=first).found == {"device": 0, "host": 20, "disk": 30}


# ---- figures -----------------------------------------------------------------------------------


def reply(num_input: int, cached: int, ttft_s: float = 0.1, text: str = "So.", num_output: int = 3) -> Reply:
    return Reply(
        5.0, 5.0 + ttft_s, 6.0, "resp_1", text, num_input, cached, num_output, [("So", -0.5), (".", -0.25)]
    )


def turn(session: int, number: int, cached: int, hits: Hits | None = None, **more: float) -> TurnResult:
    """After a history of 330 tokens; 30 new ones follow those."""
    planned = PlannedTurn(session, number, 0.0, "And then?", 4)
    previous = reply(327, 0)
    return TurnResult(planned, reply(360, cached, **more), previous, hits=hits or Hits())  # type: ignore[arg-type]


def found(**tokens: float) -> Hits:
    return Hits(1, {**dict.fromkeys(TIERS, 0.0), **tokens})


def run_of(*results: TurnResult) -> Run:
    """Copies at 1 MB/s from host, 0.1 MB/s on each thread from disk; a step is 10 ms and 1 ms a token."""
    after = {
        "tidegate_kv_transfer_bytes_total{kind=swap_in}": 2e6,
        "tidegate_kv_transfer_seconds_sum{kind=swap_in}": 2.0,
        "tidegate_kv_transfer_bytes_total{kind=promote}": 1e6,
        "tidegate_kv_transfer_seconds_sum{kind=promote}": 10.0,
        "tidegate_step_seconds_sum{stage=execute}": 6.0,
    }
    costs = {"step_s": 0.01, "token_s": 0.001, "pair_s": 0.0}
    return Run("on", results=list(results), seconds=10.0, after=after, costs=costs)


def test_hits_are_counted_against_all_full_blocks_of_the_history() -> None:
    run = run_of(
        turn(0, 1, cached=320, hits=found(host=320)),
        turn(1, 1, cached=160, hits=found(device=64, disk=96)),
    )
    rates = hit_rates(run)
    assert rates["ceiling_tokens"] == 640
    assert rates["host"] == 0.5
    assert rates["disk"] == pytest.approx(0.15)
    assert rates["all"] == pytest.approx(0.75)
    assert run.busy == 0.6


def test_a_turn_is_where_most_of_its_history_was() -> None:
    assert where(turn(0, 1, cached=320, hits=found(host=200, disk=120))) == "host"
    assert where(turn(0, 1, cached=320, hits=found(device=160, disk=160.5))) == "disk"
    assert where(turn(0, 1, cached=144, hits=found(host=144))) == COMPUTED


def test_the_bound_is_the_load_at_the_rate_of_its_tier_and_a_step_for_what_is_new() -> None:
    from_disk = turn(0, 1, cached=320, hits=found(disk=320), ttft_s=0.25)
    from_host = turn(1, 1, cached=320, hits=found(host=320), ttft_s=0.14)
    run = run_of(from_disk, from_host)
    prices = Prices.of(run, BLOCK_BYTES)
    assert prices.bytes_of(from_disk) == 20 * BLOCK_BYTES
    assert prices.bound_s(from_disk) == pytest.approx(0.05 + 0.01 + 0.04)  # four threads read
    assert prices.bound_s(from_host) == pytest.approx(0.02 + 0.01 + 0.04)
    off = run_of(turn(1, 1, cached=0, ttft_s=0.7), turn(0, 1, cached=0, ttft_s=0.5))
    rows = starts(run, off, prices)
    assert rows["disk"]["median_over_bound"] == pytest.approx(2.5)
    assert rows["host"]["median_over_bound"] == pytest.approx(2.0)
    assert rows["disk"]["off_median_ms"] == pytest.approx(500)
    assert rows["host or disk"]["turns"] == 2


def test_what_differs_is_found() -> None:
    one = {(0, 0): reply(10, 0), (0, 1): reply(30, 16)}
    assert unequal(one, {(0, 0): reply(10, 0), (0, 1): reply(30, 0)}) == [], "where it was does not matter"
    assert unequal(one, {(0, 0): reply(10, 0), (0, 1): reply(30, 16, text="No.")}) == ["turn 1 of session 0"]
    assert unequal(one, {(0, 1): reply(30, 16)}) == ["turn 0 of session 0"]
    nudged = reply(10, 0)
    nudged.tokens[1] = (".", -0.2500001)
    assert unequal(one, {**one, (0, 0): nudged}) == ["turn 0 of session 0"]


def test_tokens_that_were_read_in_another_way_cost_blocks() -> None:
    lost = differing_tokens([turn(0, 1, cached=320), turn(1, 1, cached=304), turn(2, 1, cached=288)])
    assert lost == {"turns": 3, "share": pytest.approx(2 / 3), "blocks": 1.5}


# ---- the whole, shortly ------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_sessions_come_back_from_host_and_disk_with_the_tokens_of_an_unlimited_pool(tmp_path: Path) -> None:
    shape = LoadShape(num_sessions=16, history=Spread(150, 0.2, 100, 200), message=Spread(8, 0.3, 4, 12))
    block_bytes = kv_bytes(360 * 2**10)
    setting = Setting(shape, seconds=4.0, lead_s=1.0, turns_per_s=3.0, num_sampled=4, block_bytes=block_bytes)
    bench = Bench(setting, tmp_path)
    on = bench.on()
    print_report(told := report(bench.stated(on), on, on, bench.replayed()))
    assert on.failures == []
    assert len(on.results) > 4
    assert told["replayed"]["turns"] > 4
    assert told["replayed"]["unequal"] == []
    rates = told["hit_rates"]
    assert rates["host"] + rates["disk"] > 0.3
    assert rates["all"] > 0.9
    hit = sum(result.reply.cached_tokens for result in on.results)
    assert sum(sum(result.found.values()) for result in on.results) == pytest.approx(hit)
    assert on.busy > 0
