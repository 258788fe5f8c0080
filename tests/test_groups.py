"""Requests with several sequences: sharing, copy-on-write, beams, forks, and going through life together."""

from __future__ import annotations

import pytest

from engine.messages import BeamParams, Branch, FinishReason, ForkRequest, SamplingParams
from engine.request import RequestStatus
from tests.support.fake_kv import expected_beams, expected_tokens
from tests.support.small_engine import SmallEngine
from tiering.movers.base import Mischief


def prompt(number: int, length: int) -> list[int]:
    return [(number * 31 + i * 7) % 1000 for i in range(length)]


def assert_samples(
    engine: SmallEngine, name: str, tokens: list[int], n: int, count: int, seed: int = 0
) -> None:
    for index in range(n):
        assert engine.sample(name, index) == expected_tokens(tokens, count, seed=seed + index)
    assert engine.finished[name] is FinishReason.LENGTH


# ---- samples ---------------------------------------------------------------------------------------


@pytest.mark.case("B6")
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_each_sample_gets_what_it_would_get_alone(length: int, prefix_caching: bool) -> None:
    engine = SmallEngine(prefix_caching=prefix_caching)
    engine.add("r", prompt(1, length), max_tokens=7, n=3, seed=5)
    engine.run()
    assert_samples(engine, "r", prompt(1, length), 3, 7, seed=5)
    for index in range(3):
        engine.add(f"alone{index}", prompt(1, length), max_tokens=7, seed=5 + index)
    engine.run()
    assert [engine.tokens[f"alone{index}"] for index in range(3)] == [engine.sample("r", i) for i in range(3)]
    engine.assert_idle()


def test_the_prompt_is_computed_once_and_its_full_blocks_are_held_once() -> None:
    engine = SmallEngine(num_blocks=32, prefix_caching=False)
    engine.add("r", prompt(1, 10), max_tokens=6, n=4)
    engine.step()
    assert engine.executor.num_computed_tokens == 10
    assert engine.blocks.usage().in_use == 3
    engine.step()
    assert engine.executor.num_computed_tokens == 14
    assert engine.blocks.usage().in_use == 2 + 4
    assert engine.scheduler.totals.block_copies == 3, "the last of those who share a block keeps it"
    engine.run()
    assert engine.scheduler.totals.block_copies == 3
    assert_samples(engine, "r", prompt(1, 10), 4, 6)


def test_a_prompt_that_fills_its_blocks_needs_no_copy() -> None:
    engine = SmallEngine(num_blocks=32, prefix_caching=False)
    engine.add("r", prompt(1, 8), max_tokens=3, n=4)
    engine.run()
    assert engine.scheduler.totals.block_copies == 0
    assert_samples(engine, "r", prompt(1, 8), 4, 3)


def test_a_request_counts_as_many_as_its_samples() -> None:
    engine = SmallEngine(num_blocks=64, max_num_seqs=4)
    engine.add("three", prompt(1, 5), max_tokens=4, n=3)
    engine.add("two", prompt(2, 5), max_tokens=4, n=2)
    engine.add("one", prompt(3, 5), max_tokens=4)
    engine.step()
    assert set(engine.scheduler.queues.running) == {"three"}, "first come first served"
    engine.run()
    assert engine.executor.max_batch <= 4
    assert_samples(engine, "two", prompt(2, 5), 2, 4)


def test_what_can_never_run_is_refused() -> None:
    engine = SmallEngine(num_blocks=16, max_num_seqs=4)
    engine.add("wide", prompt(1, 5), max_tokens=2, n=5)
    engine.add("long", prompt(1, 5), max_tokens=50, n=2)
    engine.add("odd#name", prompt(1, 5), max_tokens=2)
    engine.add("none", prompt(1, 5), max_tokens=2, n=0)
    engine.add("fits", prompt(1, 5), max_tokens=27, n=2)
    engine.run()
    assert "5 sequences at once; --max-num-seqs allows 4" in engine.errors["wide"]
    assert "2 sequences of up to 55 tokens need 27 blocks; the device pool has 16" in engine.errors["long"]
    assert engine.errors.keys() == {"wide", "long", "odd#name", "none"}
    assert_samples(engine, "fits", prompt(1, 5), 2, 27)


def test_samples_end_one_by_one_and_the_request_with_the_last() -> None:
    tokens = prompt(1, 5)
    ends = [expected_tokens(tokens, 6, seed=index) for index in range(3)]
    engine = SmallEngine()
    engine.add("r", tokens, max_tokens=6, n=3, stop_token_ids=(ends[0][1], ends[2][3]))
    engine.run()
    assert [engine.sample("r", index) for index in range(3)] == [ends[0][:2], ends[1], ends[2][:4]]
    reasons = [engine.ended["r", index] for index in range(3)]
    assert reasons == [FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP]
    engine.assert_idle()


@pytest.mark.parametrize("when", [0, 1, 2, 4])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_sample_can_be_aborted_at_any_time(when: int, index: int) -> None:
    engine = SmallEngine(num_blocks=32)
    engine.add("r", prompt(1, 6), max_tokens=8, n=3)
    for _ in range(when):
        engine.step()
    engine.core.abort("r", index)
    engine.core.abort("r", index)
    engine.core.abort("r", 9)
    engine.run()
    for other in {0, 1, 2} - {index}:
        assert engine.sample("r", other) == expected_tokens(prompt(1, 6), 8, seed=other)
    assert len(engine.sample("r", index)) < 8
    engine.assert_idle()


@pytest.mark.parametrize("when", [0, 1, 3])
def test_aborting_every_sample_ends_the_request(when: int) -> None:
    engine = SmallEngine()
    engine.add("r", prompt(1, 6), max_tokens=8, n=2)
    for _ in range(when):
        engine.step()
    for index in range(2):
        engine.core.abort("r", index)
    assert not engine.scheduler.has_request("r")
    engine.run()
    engine.assert_idle()


def test_broken_logits_of_one_sample_end_them_all() -> None:
    engine = SmallEngine()
    engine.add("r", prompt(1, 6), max_tokens=8, n=2)
    engine.step()
    engine.executor.broken.add("r#1")
    engine.run()
    assert engine.finished["r"] is FinishReason.ERROR
    engine.assert_idle()
    engine.executor.broken.clear()
    engine.add("again", prompt(1, 6), max_tokens=8)
    engine.run()
    assert engine.cached["again"] == 0


# ---- together down the tiers, and back -------------------------------------------------------------


@pytest.mark.parametrize("restore", ["swap", "recompute", "overlap", "adaptive"])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preemption_at_every_step_changes_no_sample(restore: str, prefix_caching: bool) -> None:
    for step in range(1, 12):
        engine = SmallEngine(
            num_blocks=40,
            host_blocks=40,
            restore=restore,
            prefix_caching=prefix_caching,
            max_num_batched_tokens=8,
        )
        engine.add("r", prompt(1, 10), max_tokens=9, n=3)
        for _ in range(step):
            engine.step()
        if "r" in engine.scheduler.queues.running:
            engine.scheduler.preempt(engine.scheduler.queues.running["r"])
        engine.run()
        assert_samples(engine, "r", prompt(1, 10), 3, 9)
        engine.assert_idle()


def test_a_block_that_all_share_crosses_once_each_way() -> None:
    engine = SmallEngine(num_blocks=40, host_blocks=40, prefix_caching=False)
    engine.add("r", prompt(1, 10), max_tokens=9, n=4)
    engine.step()
    engine.scheduler.preempt(engine.scheduler.queues.running["r"])
    while engine.scheduler.queues.get("r").status is not RequestStatus.SWAPPED:  # type: ignore[union-attr]
        engine.core._take_in_copies()
        engine.core._order_copies()
    assert engine.tiers.host is not None
    assert engine.tiers.host.usage().in_use == 3
    engine.run()
    assert engine.transfers.totals["swap_out"].num_done == 3
    assert engine.transfers.totals["swap_in"].num_done == 3
    assert engine.scheduler.totals.block_copies == 3, "they still share the last block when they are back"
    assert_samples(engine, "r", prompt(1, 10), 4, 9)


def test_what_is_computed_anew_is_shared_anew() -> None:
    engine = SmallEngine(num_blocks=40, prefix_caching=False)
    engine.add("r", prompt(1, 32), max_tokens=9, n=4)
    for _ in range(4):
        engine.step()
    held, computed = engine.blocks.usage().in_use, engine.executor.num_computed_tokens
    engine.scheduler.preempt(engine.scheduler.queues.running["r"])
    assert engine.blocks.usage().in_use == 0
    while not engine.scheduler.queues.get("r").is_decoding or not engine.scheduler.num_running:  # type: ignore[union-attr]
        engine.step()
    assert engine.blocks.usage().in_use == held
    assert engine.executor.num_computed_tokens - computed < 32 + 4 * 4
    engine.run()
    assert_samples(engine, "r", prompt(1, 32), 4, 9)


def test_groups_that_press_each_other_all_finish() -> None:
    engine = SmallEngine(
        num_blocks=16, host_blocks=12, max_num_seqs=8, mischief=Mischief(seed=3, max_delay_polls=3)
    )
    for number in range(10):
        engine.add(f"r{number}", prompt(number, 6), max_tokens=12, n=1 + number % 3)
    engine.run()
    assert sum(engine.scheduler.totals.preemptions.values()) > 0
    for number in range(10):
        assert_samples(engine, f"r{number}", prompt(number, 6), 1 + number % 3, 12)
    engine.assert_idle()


def until(engine: SmallEngine, name: str, status: RequestStatus) -> None:
    """Step, with the copies held up from then on, until a request has this status."""
    for _ in range(50):
        group = engine.scheduler.queues.get(name)
        if group is not None and group.status is status:
            return
        engine.step()
    raise AssertionError(f"{name} never was {status.value}")


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("status", ["SWAPPING_OUT", "SWAPPED", "SWAPPING_IN"])
def test_one_sample_is_aborted_on_the_way_down_or_back(status: str, paused: bool, index: int) -> None:
    engine = SmallEngine(num_blocks=40, host_blocks=40)
    engine.add("r", prompt(1, 10), max_tokens=9, n=2)
    engine.add("other", prompt(2, 10), max_tokens=30)
    for _ in range(4):  # so that the last block is not full, has no name, and must come back
        engine.step()
    engine.link.hold()
    engine.scheduler.preempt(engine.scheduler.queues.running["r"])
    if status != "SWAPPING_OUT":
        engine.core.pause("r")
        engine.link.release()
        until(engine, "r", RequestStatus.SWAPPED)
        engine.link.hold()
        if status == "SWAPPING_IN":
            engine.core.resume("r")
    until(engine, "r", RequestStatus[status])
    if paused:
        engine.core.pause("r")
    engine.core.abort("r", index)
    engine.step()
    engine.link.release()
    engine.core.resume("r")
    engine.run()
    assert engine.sample("r", 1 - index) == expected_tokens(prompt(1, 10), 9, seed=1 - index)
    assert engine.tokens["other"] == expected_tokens(prompt(2, 10), 30)
    engine.assert_idle()


@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_sample_is_aborted_while_others_wait_for_what_it_computes(index: int) -> None:
    engine = SmallEngine(num_blocks=40, max_num_batched_tokens=8, prefix_caching=False)
    engine.add("r", prompt(1, 30), max_tokens=9, n=3)
    for _ in range(7):
        engine.step()
    engine.scheduler.preempt(engine.scheduler.queues.running["r"])
    engine.step()
    assert engine.blocks.branches()
    engine.core.abort("r", index)
    engine.run()
    for other in {0, 1, 2} - {index}:
        assert engine.sample("r", other) == expected_tokens(prompt(1, 30), 9, seed=other)
    engine.assert_idle()


def test_a_copy_that_fails_costs_a_group_no_token() -> None:
    for seed in range(20):
        engine = SmallEngine(num_blocks=40, host_blocks=40, mischief=Mischief(seed=seed, failure_rate=0.3))
        engine.add("r", prompt(1, 10), max_tokens=9, n=3)
        for _ in range(4):
            engine.step()
        engine.scheduler.preempt(engine.scheduler.queues.running["r"])
        engine.run()
        assert_samples(engine, "r", prompt(1, 10), 3, 9)
        engine.assert_idle()


# ---- beams -----------------------------------------------------------------------------------------


def assert_beams(
    engine: SmallEngine, name: str, tokens: list[int], beam: BeamParams, n: int, count: int
) -> None:
    assert [engine.sample(name, index) for index in range(n)] == expected_beams(tokens, beam, n, count)
    scores = [engine.scores[name, index] for index in range(n)]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("length", [3, 4, 9])
def test_beams_find_the_best_sequences(width: int, length: int) -> None:
    engine = SmallEngine(num_blocks=48, max_num_seqs=8)
    beam = BeamParams(width)
    engine.add("r", prompt(1, length), max_tokens=10, n=width, beam=beam)
    engine.add("other", prompt(2, 7), max_tokens=12)
    engine.run()
    assert_beams(engine, "r", prompt(1, length), beam, width, 10)
    assert engine.tokens["other"] == expected_tokens(prompt(2, 7), 12)
    engine.assert_idle()


@pytest.mark.parametrize("host_blocks", [0, 40])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preemption_at_every_step_changes_no_beam(host_blocks: int, prefix_caching: bool) -> None:
    beam = BeamParams(3)
    for step in range(1, 14):
        engine = SmallEngine(num_blocks=40, host_blocks=host_blocks, prefix_caching=prefix_caching)
        engine.add("r", prompt(1, 6), max_tokens=12, n=2, beam=beam)
        for _ in range(step):
            engine.step()
        if "r" in engine.scheduler.queues.running:
            engine.scheduler.preempt(engine.scheduler.queues.running["r"])
        engine.run()
        assert_beams(engine, "r", prompt(1, 6), beam, 2, 12)


def test_a_beam_search_is_aborted_whole() -> None:
    engine = SmallEngine()
    engine.add("r", prompt(1, 6), max_tokens=12, n=2, beam=BeamParams(3))
    for _ in range(4):
        engine.step()
    engine.core.abort("r", 0)
    engine.run()
    engine.assert_idle()


# ---- forks -----------------------------------------------------------------------------------------


def branches(*names: str, token_ids: tuple[int, ...] = (), max_tokens: int = 5) -> tuple[Branch, ...]:
    sampling = SamplingParams(max_tokens=max_tokens, seed=0)
    return tuple(Branch(request_id=name, sampling=sampling, token_ids=token_ids) for name in names)


@pytest.mark.parametrize("steps", [3, 6, 100])
def test_a_sequence_branches_while_it_runs_and_after(steps: int) -> None:
    engine = SmallEngine(num_blocks=32)
    engine.add("root", prompt(1, 9), max_tokens=8)
    for _ in range(min(steps, 12)):
        engine.step()
    so_far = [*prompt(1, 9), *engine.tokens["root"]]
    engine.core.fork(ForkRequest(request_id="root", branches=branches("a", "b", token_ids=(7, 7))))
    engine.run()
    for name in ("a", "b"):
        assert engine.tokens[name] == expected_tokens([*so_far, 7, 7], 5)
        assert engine.cached[name] == (len(so_far) - 1) // 4 * 4, "every full block is shared"
    assert engine.tokens["root"] == expected_tokens(prompt(1, 9), 8)
    engine.assert_idle()


def test_branches_share_blocks_on_lower_tiers() -> None:
    engine = SmallEngine(num_blocks=16, host_blocks=40, write="through")
    engine.add("root", prompt(1, 33), max_tokens=4)
    engine.run()
    engine.add("hog", prompt(2, 50), max_tokens=10)
    engine.run()
    engine.core.fork(ForkRequest(request_id="root", branches=branches("a")))
    engine.run()
    assert engine.tokens["a"] == expected_tokens([*prompt(1, 33), *engine.tokens["root"]], 5)
    assert engine.core.stats().tiers["host"].hit_tokens_total > 0


def test_samples_and_beams_can_be_forked_by_index() -> None:
    engine = SmallEngine(num_blocks=64)
    beam = BeamParams(3)
    engine.add("samples", prompt(1, 9), max_tokens=6, n=2)
    engine.add("beams", prompt(2, 9), max_tokens=6, n=2, beam=beam)
    engine.run()
    for name in ("samples", "beams"):
        engine.core.fork(ForkRequest(request_id=name, branches=branches(f"{name}-next"), index=1))
    engine.run()
    second = [*prompt(2, 9), *expected_beams(prompt(2, 9), beam, 2, 6)[1]]
    assert engine.tokens["beams-next"] == expected_tokens(second, 5)
    assert engine.tokens["samples-next"] == expected_tokens([*prompt(1, 9), *engine.sample("samples", 1)], 5)


def test_who_forks_what_is_not_his_learns_nothing() -> None:
    engine = SmallEngine()
    engine.add("root", prompt(1, 9), max_tokens=20, salt=b"alice")
    engine.step()
    for name, salt in (("root", b"bob"), ("nobody", b"alice")):
        engine.core.fork(ForkRequest(request_id=name, branches=branches(f"{name}-fork"), cache_salt=salt))
    engine.run()
    assert engine.errors["root-fork"].replace("root", "X") == engine.errors["nobody-fork"].replace(
        "nobody", "X"
    )
    assert "send its tokens as a prompt" in engine.errors["root-fork"]


def test_histories_are_bounded() -> None:
    engine = SmallEngine(num_blocks=16)
    engine.scheduler._histories._max_tokens = 40
    for number in range(4):
        engine.add(f"r{number}", prompt(number, 9), max_tokens=6)
        engine.run()
    known = [engine.scheduler.history(f"r{number}", 0, b"") is not None for number in range(4)]
    assert known == [False, False, True, True]
