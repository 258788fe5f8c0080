"""Scheduling over a fake model whose tokens betray any paging fault."""

from __future__ import annotations

import dataclasses

import pytest

from engine.messages import FinishReason
from engine.request import MAX_PREEMPTIONS, RequestEvent, SequenceGroup
from tests.support.fake_kv import expected_tokens
from tests.support.small_engine import SmallEngine
from tiering.hashing import BlockNamer
from tiering.tables import Member, Refusal
from tiering.types import IllegalTransitionError


def prompt(start: int, length: int) -> list[int]:
    return [(start * 37 + i) % 1000 for i in range(length)]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 15, 16, 17, 40])
def test_one_request_gets_the_models_tokens(length: int) -> None:
    engine = SmallEngine()
    engine.add("a", prompt(1, length), max_tokens=9)
    engine.run()
    assert engine.tokens["a"] == expected_tokens(prompt(1, length), 9)
    assert engine.finished == {"a": FinishReason.LENGTH}
    engine.assert_idle()


def test_prefill_is_chunked_by_the_token_budget_and_samples_once() -> None:
    engine = SmallEngine(max_num_batched_tokens=8)
    engine.add("a", prompt(1, 20), max_tokens=1)
    plans = [engine.scheduler.schedule()]
    assert [len(chunk.token_ids) for chunk in plans[0].chunks] == [8]
    assert plans[0].chunks[0].sample is None
    engine.scheduler.update(plans[0], engine.executor.execute(plans[0]))
    engine.run()
    assert engine.tokens["a"] == expected_tokens(prompt(1, 20), 1)


def test_decodes_come_before_prefills_and_are_never_starved_by_them() -> None:
    engine = SmallEngine(num_blocks=64, max_num_batched_tokens=8)
    engine.add("decode", prompt(1, 4), max_tokens=20)
    engine.step()
    engine.add("long", prompt(2, 60), max_tokens=2)
    for _ in range(5):
        before = len(engine.tokens["decode"])
        engine.step()
        assert len(engine.tokens["decode"]) == before + 1
    engine.run()
    assert engine.tokens["long"] == expected_tokens(prompt(2, 60), 2)


def test_mixed_batch_gives_each_request_its_own_tokens() -> None:
    engine = SmallEngine(num_blocks=200, max_num_seqs=16, max_num_batched_tokens=32)
    for i in range(16):
        engine.add(f"r{i}", prompt(i, 3 * i + 1), max_tokens=25)
    engine.run()
    assert engine.executor.max_batch == 16
    for i in range(16):
        assert engine.tokens[f"r{i}"] == expected_tokens(prompt(i, 3 * i + 1), 25)


def test_max_num_seqs_bounds_the_batch() -> None:
    engine = SmallEngine(num_blocks=100, max_num_seqs=3)
    for i in range(10):
        engine.add(f"r{i}", prompt(i, 5), max_tokens=6)
    engine.run()
    assert engine.executor.max_batch == 3
    assert len(engine.finished) == 10


def test_first_come_first_served() -> None:
    engine = SmallEngine(max_num_seqs=1)
    for name in "abc":
        engine.add(name, prompt(ord(name), 5), max_tokens=3)
    engine.run()
    assert list(engine.finished) == ["a", "b", "c"]


# ---- prefix cache --------------------------------------------------------------------------------


def test_same_prompt_again_is_a_hit_capped_below_its_last_token() -> None:
    engine = SmallEngine()
    for name in ("a", "b"):
        engine.add(name, prompt(1, 16), max_tokens=3)
        engine.run()
    assert engine.cached == {"a": 0, "b": 12}
    assert engine.tokens["a"] == engine.tokens["b"] == expected_tokens(prompt(1, 16), 3)
    assert engine.core.stats().tiers["device"].hit_tokens_total == 12


def test_a_conversation_hits_on_its_generated_tokens_too() -> None:
    engine = SmallEngine()
    engine.add("turn1", prompt(1, 6), max_tokens=7)
    engine.run()
    history = prompt(1, 6) + engine.tokens["turn1"]
    engine.add("turn2", [*history, 7, 8], max_tokens=3)
    engine.run()
    assert engine.cached["turn2"] == 12
    assert engine.tokens["turn2"] == expected_tokens([*history, 7, 8], 3)


def test_blocks_are_found_only_once_they_are_computed() -> None:
    engine = SmallEngine(max_num_batched_tokens=10)
    engine.add("a", prompt(1, 24), max_tokens=3)
    engine.step()
    engine.add("b", prompt(1, 24), max_tokens=3)
    engine.core.pause("a")
    engine.run()
    assert engine.cached == {"b": 8}
    engine.core.resume("a")
    engine.run()
    assert engine.tokens["a"] == engine.tokens["b"] == expected_tokens(prompt(1, 24), 3)


def test_equal_blocks_at_other_places_are_other_blocks() -> None:
    engine = SmallEngine()
    for name in ("a", "b"):
        engine.add(name, [1, 2, 3, 4] * 4, max_tokens=3)
        engine.run()
        assert engine.tokens[name] == expected_tokens([1, 2, 3, 4] * 4, 3)
    assert engine.cached["b"] == 12
    assert engine.blocks.usage().cached == 4


def test_hits_share_blocks_with_a_running_request() -> None:
    engine = SmallEngine()
    engine.add("a", prompt(1, 12), max_tokens=8)
    engine.step()
    in_use = engine.blocks.usage().in_use
    engine.add("b", [*prompt(1, 12), 5], max_tokens=8)
    engine.step()
    assert engine.blocks.usage().in_use <= in_use + 2
    engine.run()
    assert engine.tokens["b"] == expected_tokens([*prompt(1, 12), 5], 8)


def test_another_salt_never_hits() -> None:
    engine = SmallEngine()
    engine.add("a", prompt(1, 16), max_tokens=1, salt=b"tenant-1")
    engine.run()
    engine.add("b", prompt(1, 16), max_tokens=1, salt=b"tenant-2")
    engine.run()
    assert engine.cached == {"a": 0, "b": 0}


def test_prefix_caching_can_be_off() -> None:
    engine = SmallEngine(prefix_caching=False)
    for name in ("a", "b"):
        engine.add(name, prompt(1, 16), max_tokens=2)
        engine.run()
    assert engine.cached == {"a": 0, "b": 0}
    assert engine.blocks.usage().cached == 0


def test_unique_prompts_at_full_pool_use_evict_and_stay_right() -> None:
    engine = SmallEngine(num_blocks=12)
    for i in range(40):
        engine.add(f"r{i}", prompt(i * 3, 17), max_tokens=5)
    engine.run()
    assert engine.core.stats().tiers["device"].evictions_total > 0
    for i in range(40):
        assert engine.tokens[f"r{i}"] == expected_tokens(prompt(i * 3, 17), 5)
    engine.assert_idle()


# ---- preemption ----------------------------------------------------------------------------------


def test_preempted_requests_keep_their_tokens_and_finish() -> None:
    engine = SmallEngine(num_blocks=10)
    for i in range(5):
        engine.add(f"r{i}", prompt(i, 7), max_tokens=25)
    engine.run()
    stats = engine.core.stats()
    assert sum(stats.preemptions.values()) > 0
    for i in range(5):
        assert engine.tokens[f"r{i}"] == expected_tokens(prompt(i, 7), 25)
    engine.assert_idle()


def test_the_latest_arrival_is_preempted_and_parked_ones_come_before_waiting_ones() -> None:
    engine = SmallEngine(num_blocks=8, max_num_seqs=2)
    engine.add("first", prompt(1, 12), max_tokens=18)
    engine.add("second", prompt(2, 12), max_tokens=18)
    engine.add("third", prompt(3, 4), max_tokens=2)
    engine.run()
    assert sum(engine.core.stats().preemptions.values()) > 0
    assert next(iter(engine.finished)) == "first"
    for name, start, length, count in (("first", 1, 12, 18), ("second", 2, 12, 18), ("third", 3, 4, 2)):
        assert engine.tokens[name] == expected_tokens(prompt(start, length), count)


@pytest.mark.parametrize("bound", [1, 2, MAX_PREEMPTIONS])
def test_preemptions_per_request_are_bounded(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.request.MAX_PREEMPTIONS", bound)
    engine = SmallEngine(num_blocks=12, max_num_seqs=8)
    for i in range(24):
        engine.add(f"r{i}", prompt(i, 6), max_tokens=40)
    requests: dict[str, SequenceGroup] = {}
    while engine.scheduler.has_work():
        requests.update(engine.scheduler.queues._all)
        engine.step()
    assert 0 < max(request.num_preemptions for request in requests.values()) <= bound
    for i in range(24):
        assert engine.tokens[f"r{i}"] == expected_tokens(prompt(i, 6), 40)


def test_a_resumed_request_comes_before_later_ones_again() -> None:
    """It stands behind them in the running set, yet may take their blocks: they must have no chunk yet."""
    engine = SmallEngine(num_blocks=12, block_size=1, max_num_seqs=3)
    for i, (length, count) in enumerate([(3, 2), (2, 9), (1, 11)]):
        engine.add(f"r{i}", prompt(i, length), max_tokens=count)
    second = engine.scheduler.queues._all["r1"]
    engine.step()
    engine.scheduler.preempt(second)
    engine.run()
    for i, (length, count) in enumerate([(3, 2), (2, 9), (1, 11)]):
        assert engine.tokens[f"r{i}"] == expected_tokens(prompt(i, length), count)


def test_parked_requests_come_back_in_the_order_of_their_arrival() -> None:
    engine = SmallEngine(num_blocks=40, max_num_seqs=4)
    for i in range(4):
        engine.add(f"r{i}", prompt(i, 5), max_tokens=30)
    engine.step()
    engine.step()
    for i in (3, 1, 2):
        engine.scheduler.preempt(engine.scheduler.queues.running[f"r{i}"])
    engine.scheduler._config = dataclasses.replace(engine.scheduler._config, max_num_seqs=2)
    engine.step()
    assert list(engine.scheduler.queues.running) == ["r0", "r1"]


def test_what_was_preempted_does_not_come_back_in_the_same_step() -> None:
    engine = SmallEngine(num_blocks=8, max_num_seqs=4)
    for i in range(3):
        engine.add(f"r{i}", prompt(i, 8), max_tokens=20)
    while sum(engine.core.stats().preemptions.values()) == 0:
        waiting = engine.scheduler.num_waiting
        engine.step()
    assert engine.scheduler.num_waiting > waiting


def test_a_preempted_request_waits_until_every_running_one_could_grow() -> None:
    engine = SmallEngine(num_blocks=16, max_num_seqs=4)
    for i in range(3):
        engine.add(f"r{i}", prompt(i, 13), max_tokens=30)
    engine.step()
    engine.step()
    engine.scheduler.preempt(engine.scheduler.queues.running["r2"])
    refusal = engine.blocks.try_admit([Member("hog", (), 4 * 20, 4 * 20)], keep_available=0)
    assert refusal is Refusal.NO_ROOM
    hog = engine.blocks.num_blocks - engine.blocks.usage().in_use - 4 - 1
    engine.blocks.try_admit([Member("hog", (), 4 * hog, 4 * hog)], keep_available=0)
    plan = engine.scheduler.schedule()
    assert [chunk.sequence_id for chunk in plan.chunks] == ["r0", "r1"]


def test_a_request_that_fills_the_pool_alone_still_finishes() -> None:
    engine = SmallEngine(num_blocks=8, block_size=4)
    for i in range(3):
        engine.add(f"r{i}", prompt(i, 20), max_tokens=100)
    engine.run()
    for i in range(3):
        assert engine.finished[f"r{i}"] is FinishReason.LENGTH
        assert engine.tokens[f"r{i}"] == expected_tokens(prompt(i, 20), 12)


def test_recomputed_tokens_are_counted_apart_from_hits() -> None:
    engine = SmallEngine(num_blocks=8, prefix_caching=False)
    for i in range(2):
        engine.add(f"r{i}", prompt(i, 10), max_tokens=16)
    engine.run()
    stats = engine.core.stats()
    assert sum(stats.preemptions.values()) > 0
    assert stats.recomputed_tokens_total > 0
    assert stats.tiers["device"].hit_tokens_total == 0
    known = sum(10 + 16 - 1 for _ in range(2))
    assert engine.executor.num_computed_tokens == known + stats.recomputed_tokens_total


# ---- abort, pause --------------------------------------------------------------------------------


@pytest.mark.case("E2")
@pytest.mark.case("E4")
@pytest.mark.parametrize("steps_before", range(8))
def test_abort_in_any_state_frees_everything(steps_before: int) -> None:
    engine = SmallEngine(num_blocks=8, max_num_batched_tokens=8)
    for i in range(4):
        engine.add(f"r{i}", prompt(i, 13), max_tokens=10)
    for _ in range(steps_before):
        engine.step()
    for i in range(4):
        engine.core.abort(f"r{i}")
        engine.core.abort(f"r{i}")
        assert engine.core.problems() == ()
    assert not engine.scheduler.has_work()
    engine.assert_idle()


@pytest.mark.case("E4")
def test_abort_of_an_unknown_or_finished_request_is_ignored() -> None:
    engine = SmallEngine()
    engine.add("a", prompt(1, 3), max_tokens=1)
    engine.run()
    engine.core.abort("a")
    engine.core.abort("never-seen")
    engine.assert_idle()


def test_a_paused_request_gets_no_tokens_until_resumed() -> None:
    engine = SmallEngine()
    engine.add("a", prompt(1, 3), max_tokens=6)
    engine.step()
    engine.core.pause("a")
    engine.core.pause("a")
    assert not engine.scheduler.has_work()
    engine.add("b", prompt(2, 3), max_tokens=6)
    engine.run()
    assert len(engine.tokens["a"]) == 1
    engine.core.resume("a")
    engine.run()
    assert engine.tokens["a"] == expected_tokens(prompt(1, 3), 6)
    engine.assert_idle()


def test_a_paused_request_is_the_first_to_lose_its_blocks() -> None:
    engine = SmallEngine(num_blocks=8)
    engine.add("slow", prompt(1, 12), max_tokens=8)
    engine.step()
    engine.core.pause("slow")
    engine.add("a", prompt(2, 20), max_tokens=8)
    engine.run()
    assert engine.finished == {"a": FinishReason.LENGTH}
    assert sum(engine.core.stats().preemptions.values()) == 1
    engine.core.resume("slow")
    engine.run()
    assert engine.tokens["slow"] == expected_tokens(prompt(1, 12), 8)


def test_paused_requests_take_no_place_in_the_batch() -> None:
    engine = SmallEngine(num_blocks=100, max_num_seqs=2)
    for name in ("a", "b", "c"):
        engine.add(name, prompt(ord(name), 5), max_tokens=3)
    engine.step()
    engine.core.pause("a")
    engine.core.pause("b")
    engine.run()
    assert engine.finished == {"c": FinishReason.LENGTH}
    for name in ("a", "b"):
        engine.core.resume(name)
    engine.run()
    for name in ("a", "b", "c"):
        assert engine.tokens[name] == expected_tokens(prompt(ord(name), 5), 3)


def test_reading_slowly_earns_no_privilege() -> None:
    engine = SmallEngine(num_blocks=8)
    engine.add("slow", prompt(1, 5), max_tokens=20)
    for i in range(MAX_PREEMPTIONS + 2):
        engine.step()
        engine.core.pause("slow")
        engine.add(f"r{i}", prompt(2 + i, 20), max_tokens=8)
        engine.run()
        engine.core.resume("slow")
    engine.step()
    assert len(engine.blocks.block_table("slow")) < engine.blocks.blocks_for(5 + 20)
    engine.run()
    assert engine.tokens["slow"] == expected_tokens(prompt(1, 5), 20)


def test_blocks_of_a_request_that_broke_are_shared_with_nobody() -> None:
    engine = SmallEngine(max_num_batched_tokens=8)
    engine.executor.broken.add("bad")
    engine.add("bad", prompt(1, 20), max_tokens=3)
    engine.add("other", prompt(5, 3), max_tokens=3)
    engine.run()
    assert engine.finished["bad"] is FinishReason.ERROR
    assert "finite" in engine.errors["bad"]
    assert engine.tokens["other"] == expected_tokens(prompt(5, 3), 3)
    engine.add("good", prompt(1, 20), max_tokens=3)
    engine.run()
    assert engine.cached["good"] == 0
    assert engine.tokens["good"] == expected_tokens(prompt(1, 20), 3)
    engine.assert_idle()


def test_a_request_paused_while_it_waits_blocks_nobody() -> None:
    engine = SmallEngine(max_num_seqs=1)
    for name in ("a", "b", "c"):
        engine.add(name, prompt(ord(name), 5), max_tokens=3)
    engine.core.pause("b")
    engine.run()
    assert list(engine.finished) == ["a", "c"]
    engine.core.resume("b")
    engine.run()
    assert engine.tokens["b"] == expected_tokens(prompt(ord("b"), 5), 3)


def test_aborting_paused_requests_leaves_the_count_right() -> None:
    engine = SmallEngine()
    engine.add("a", prompt(1, 3), max_tokens=6)
    engine.step()
    engine.core.pause("a")
    engine.core.abort("a")
    engine.core.resume("a")
    assert not engine.scheduler.has_work()
    engine.assert_idle()


# ---- ends ----------------------------------------------------------------------------------------


def test_a_stop_token_of_the_model_ends_the_text() -> None:
    tokens = expected_tokens(prompt(1, 5), 20)
    engine = SmallEngine(stop_token_ids=(tokens[3],))
    engine.add("a", prompt(1, 5), max_tokens=20)
    engine.run()
    assert engine.tokens["a"] == tokens[:4]
    assert engine.finished["a"] is FinishReason.STOP


def test_ignore_eos_and_stop_token_ids() -> None:
    tokens = expected_tokens(prompt(1, 5), 20)
    engine = SmallEngine(stop_token_ids=(tokens[3],))
    engine.add("a", prompt(1, 5), max_tokens=20, ignore_eos=True, stop_token_ids=(tokens[6],))
    engine.run()
    assert engine.tokens["a"] == tokens[:7]
    assert engine.finished["a"] is FinishReason.STOP


def test_min_tokens_bans_the_tokens_that_would_end_the_text() -> None:
    tokens = expected_tokens(prompt(1, 5), 20)
    engine = SmallEngine(stop_token_ids=(tokens[2],))
    engine.add("a", prompt(1, 5), max_tokens=20, min_tokens=6)
    engine.run()
    assert len(engine.tokens["a"]) >= 6
    assert tokens[2] not in engine.tokens["a"][:6]


def test_the_window_ends_a_text_with_length() -> None:
    engine = SmallEngine(max_model_len=12)
    engine.add("a", prompt(1, 10), max_tokens=500)
    engine.run()
    assert engine.tokens["a"] == expected_tokens(prompt(1, 10), 2)
    assert engine.finished["a"] is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("ids", "max_tokens", "part"),
    [
        ([], 3, "no tokens"),
        ([1] * 64, 3, "window"),
        ([1, 1000], 3, "vocabulary"),
        ([-1], 3, "vocabulary"),
        ([1], -1, "max_tokens"),
        ([1] * 65, 0, "window"),
    ],
)
def test_what_the_engine_cannot_run_costs_only_that_request(
    ids: list[int], max_tokens: int, part: str
) -> None:
    engine = SmallEngine()
    engine.add("good", prompt(1, 4), max_tokens=3)
    engine.add("bad", ids, max_tokens=max_tokens)
    engine.run()
    assert engine.finished == {"bad": FinishReason.ERROR, "good": FinishReason.LENGTH}
    assert part in engine.errors["bad"]


def test_a_request_id_in_use_is_refused_without_harm_to_its_owner() -> None:
    engine = SmallEngine()
    engine.add("a", prompt(1, 4), max_tokens=3)
    engine.step()
    engine.add("a", prompt(2, 4), max_tokens=3)
    refused, second = engine.core.step().deltas
    assert refused.finish_reason is FinishReason.ERROR
    engine.tokens["a"] += second.token_ids
    engine.run()
    assert engine.tokens["a"] == expected_tokens(prompt(1, 4), 3)


def test_an_illegal_status_change_raises_and_changes_nothing() -> None:
    engine = SmallEngine()
    engine.add("a", prompt(1, 4))
    request = engine.scheduler.queues._all["a"]
    status = request.status
    with pytest.raises(IllegalTransitionError, match="cannot lose its blocks"):
        request.move(RequestEvent.PREEMPT)
    assert request.status is status


def test_token_slice_crosses_from_prompt_to_output() -> None:
    engine = SmallEngine()
    engine.add("a", [1, 2, 3])
    request = engine.scheduler.queues._all["a"].first
    assert isinstance(request._namer, BlockNamer)
    request.output_token_ids += [4, 5, 6]
    every = [1, 2, 3, 4, 5, 6]
    for start in range(7):
        for stop in range(start, 7):
            assert list(request.token_slice(start, stop)) == every[start:stop]
