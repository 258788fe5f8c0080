"""Preemption by swap, restores, faults of copies, and what stays when they hang or fail."""

from __future__ import annotations

import pytest

from engine.request import MAX_PREEMPTIONS, RequestStatus
from tests.support.fake_kv import expected_tokens
from tests.support.small_engine import SmallEngine
from tiering.movers.base import Mischief
from tiering.tiers import PATIENCE_S
from tiering.types import Tier, TransferKind


def prompt(number: int, length: int) -> list[int]:
    return [(number * 37 + i * 5) % 1000 for i in range(length)]


def swap_in_count(engine: SmallEngine) -> int:
    return engine.transfers.totals[TransferKind.SWAP_IN].num_done


def status(engine: SmallEngine, name: str) -> RequestStatus:
    request = engine.scheduler.queues.get(name)
    assert request is not None
    return request.status


def pressed(**options: object) -> SmallEngine:
    """Two requests that together do not fit; the second has been preempted."""
    engine = SmallEngine(num_blocks=8, host_blocks=16, **options)  # type: ignore[arg-type]
    engine.add("first", prompt(1, 8), max_tokens=18)
    engine.add("second", prompt(2, 8), max_tokens=18)
    while not sum(engine.scheduler.totals.preemptions.values()):
        engine.step()
    return engine


def test_a_preempted_request_is_swapped_and_loaded_back_not_recomputed() -> None:
    engine = pressed()
    assert engine.scheduler.totals.preemptions == {"swap/pressure": 1}
    computed = engine.executor.num_computed_tokens
    held = engine.scheduler.queues.get("second")
    assert held is not None and held.first.num_computed_tokens > 8
    engine.run()
    for number, name in ((1, "first"), (2, "second")):
        assert engine.tokens[name] == expected_tokens(prompt(number, 8), 18)
    assert swap_in_count(engine) > 0
    assert engine.scheduler.totals.recomputed_tokens == 0
    left = 2 * (8 + 18 - 1) - computed
    assert engine.executor.num_computed_tokens - computed == left, "every position is computed once"


def test_the_partial_last_block_is_swapped_too() -> None:
    engine = SmallEngine(num_blocks=16, host_blocks=16)
    engine.add("a", prompt(1, 6), max_tokens=9)
    for _ in range(4):
        engine.step()
    request = engine.scheduler.queues.running["a"]
    assert request.first.num_computed_tokens % 4
    computed = request.first.num_computed_tokens
    engine.scheduler.preempt(request)
    while status(engine, "a") is not RequestStatus.RUNNING:
        engine.step()
    assert request.first.num_computed_tokens >= computed
    engine.run()
    assert engine.tokens["a"] == expected_tokens(prompt(1, 6), 9)
    assert engine.executor.num_computed_tokens == 6 + 9 - 1


def test_nothing_runs_into_a_block_under_a_copy_and_the_others_go_on() -> None:
    engine = pressed()
    engine.link.hold()
    before = len(engine.tokens["first"])
    for _ in range(8):
        engine.step()
    assert status(engine, "second") is RequestStatus.SWAPPING_OUT
    assert len(engine.tokens["first"]) >= before
    engine.link.release()
    engine.run()
    assert engine.tokens["first"] == expected_tokens(prompt(1, 8), 18)


@pytest.mark.parametrize("when", ["out", "in"])
def test_an_abort_under_a_copy_frees_nothing_before_it_ends(when: str) -> None:
    engine = pressed()
    wanted = RequestStatus.SWAPPING_OUT if when == "out" else RequestStatus.SWAPPING_IN
    if when == "in":
        while status(engine, "second") is not RequestStatus.SWAPPING_IN:
            engine.step()
    engine.link.hold()
    assert status(engine, "second") is wanted
    engine.core.abort("second")
    assert engine.core.problems() == ()
    assert engine.core.stats().tiers["device"].blocks_copying > 0
    engine.step()
    engine.link.release()
    engine.run()
    engine.assert_idle()


def test_a_failed_swap_out_costs_a_recompute_and_no_token() -> None:
    engine = pressed()
    engine.link.fail_next = 1
    while status(engine, "second") is RequestStatus.SWAPPING_OUT:
        engine.step()
    assert status(engine, "second") is RequestStatus.WAITING
    engine.run()
    assert engine.tokens["second"] == expected_tokens(prompt(2, 8), 18)
    assert engine.transfers.totals[TransferKind.SWAP_OUT].num_failed == 1
    engine.assert_idle()


def test_a_failed_load_is_not_tried_again_by_that_request() -> None:
    engine = pressed()
    while status(engine, "second") is not RequestStatus.SWAPPING_IN:
        engine.step()
    engine.link.fail_next = 1
    engine.run()
    assert engine.tokens["second"] == expected_tokens(prompt(2, 8), 18)
    request_loads = engine.transfers.totals[TransferKind.SWAP_IN]
    assert request_loads.num_failed == 1
    engine.assert_idle()


def test_without_room_on_host_a_victim_recomputes() -> None:
    engine = SmallEngine(num_blocks=8, host_blocks=1)
    for number in range(3):
        engine.add(f"r{number}", prompt(number, 8), max_tokens=18)
    engine.run()
    assert engine.scheduler.totals.preemptions["recompute/pressure"] > 0
    for number in range(3):
        assert engine.tokens[f"r{number}"] == expected_tokens(prompt(number, 8), 18)
    engine.assert_idle()


def test_swap_works_without_names() -> None:
    engine = pressed(prefix_caching=False)
    engine.run()
    for number, name in ((1, "first"), (2, "second")):
        assert engine.tokens[name] == expected_tokens(prompt(number, 8), 18)
    assert swap_in_count(engine) > 0


def test_who_waits_for_a_copy_that_hangs_computes_instead() -> None:
    engine = SmallEngine(num_blocks=8, host_blocks=16, write="through")
    engine.add("a", prompt(1, 13), max_tokens=2)
    engine.run()
    forget_device(engine)
    engine.add("again", [*prompt(1, 13), *engine.tokens["a"]], max_tokens=3)
    engine.step()
    assert status(engine, "again") is RequestStatus.SWAPPING_IN
    engine.link.hold()
    for _ in range(int(PATIENCE_S) + 5):
        if "again" not in engine.finished:
            engine.step()
    assert engine.tokens["again"] == expected_tokens([*prompt(1, 13), *engine.tokens["a"]], 3)
    assert engine.core.stats().tiers["device"].blocks_copying > 0, "the hung copy keeps its block"
    engine.add("third", prompt(1, 12), max_tokens=1)
    engine.step()
    assert engine.tokens["third"] == expected_tokens(prompt(1, 12), 1), "nor does anybody else wait for it"
    engine.link.release()
    engine.run()
    engine.assert_idle()


def test_a_second_request_for_what_is_being_loaded_waits_for_it() -> None:
    engine = SmallEngine(num_blocks=16, host_blocks=16, write="through")
    engine.add("a", prompt(1, 13), max_tokens=2)
    engine.run()
    forget_device(engine)
    for name in ("b", "c"):
        engine.add(name, prompt(1, 14), max_tokens=2)
    engine.run()
    assert engine.tokens["b"] == engine.tokens["c"] == expected_tokens(prompt(1, 14), 2)
    assert swap_in_count(engine) == 3, "each block crossed once"
    assert (engine.cached["b"], engine.cached["c"]) == (12, 12)
    assert engine.scheduler.totals.hit_tokens[Tier.HOST] == 12
    assert engine.scheduler.totals.hit_tokens[Tier.DEVICE] == 12


def test_swapped_requests_come_before_waiting_ones_of_their_class_only() -> None:
    engine = pressed(max_num_seqs=2)
    engine.add("later", prompt(3, 8), max_tokens=2)
    engine.add("urgent", prompt(4, 8), max_tokens=2, priority=-1)
    while not engine.tokens["later"]:
        engine.step()
        if not engine.tokens["urgent"]:
            assert status(engine, "second") in (RequestStatus.SWAPPING_OUT, RequestStatus.SWAPPED)
    assert "urgent" in engine.finished
    assert status(engine, "second") in (RequestStatus.SWAPPING_IN, RequestStatus.RUNNING)


def test_preemptions_by_swap_are_bounded_too() -> None:
    engine = SmallEngine(num_blocks=12, host_blocks=200, max_num_seqs=8)
    for number in range(24):
        engine.add(f"r{number}", prompt(number, 6), max_tokens=40)
    most = 0
    while engine.scheduler.has_work():
        engine.step()
        most = max([most, *(request.num_given_way for request in engine.scheduler.queues)])
    assert 0 < most <= MAX_PREEMPTIONS
    assert engine.scheduler.totals.preemptions["swap/pressure"] > 0
    for number in range(24):
        assert engine.tokens[f"r{number}"] == expected_tokens(prompt(number, 6), 40)
    engine.run()
    engine.assert_idle()


def test_a_slow_reader_goes_first_and_comes_back_when_it_reads() -> None:
    engine = SmallEngine(num_blocks=8, host_blocks=16)
    engine.add("slow", prompt(1, 8), max_tokens=18)
    engine.add("quick", prompt(2, 8), max_tokens=18)
    for _ in range(3):
        engine.step()
    engine.core.pause("slow")
    while "quick" not in engine.finished:
        engine.step()
    assert engine.scheduler.totals.preemptions == {"swap/slow_reader": 1}
    assert status(engine, "slow") is RequestStatus.SWAPPED
    engine.core.resume("slow")
    engine.run()
    assert engine.tokens["slow"] == expected_tokens(prompt(1, 8), 18)
    assert engine.scheduler.totals.recomputed_tokens == 0


def test_called_off_loads_are_reported_without_anybody_to_wake_the_engine() -> None:
    """Nothing is under way then, so no copy thread will."""
    engine = SmallEngine(num_blocks=8, host_blocks=16, write="through")
    engine.add("a", prompt(1, 13), max_tokens=2)
    engine.run()
    forget_device(engine)
    engine.add("again", prompt(1, 14), max_tokens=3)
    engine.step()
    (move, *_) = engine.blocks.restore_of("again").moves.values()
    engine.link._random.seed(1)
    while not engine.transfers.has_results:
        engine.transfers.cancel([move])
    engine.core._is_stalled = True
    assert engine.core.can_step()


def test_a_swapped_sequence_never_takes_anothers_block_for_its_unfinished_one() -> None:
    """Its last block is full by name once the next token is known, but the token is not computed yet.

    ``SmallEngine`` asserts that no named block is written.
    """
    for steps in range(1, 14):
        engine = SmallEngine(num_blocks=16, host_blocks=16)
        for name in ("a", "b"):
            engine.add(name, [1, 2, 3, 4, 5], max_tokens=12)
        for _ in range(steps):
            engine.step()
        request = engine.scheduler.queues.running.get("a")
        if request is None:
            break
        engine.scheduler.preempt(request)
        engine.link.hold()
        engine.step()
        engine.step()
        engine.link.release()
        engine.run()
        assert engine.tokens["a"] == expected_tokens([1, 2, 3, 4, 5], 12)
    assert steps > 8


def test_what_was_not_finite_is_found_nowhere_even_if_it_was_being_copied() -> None:
    for disk_blocks in (0, 64):
        engine = SmallEngine(num_blocks=16, host_blocks=32, disk_blocks=disk_blocks, write="through",
                             max_num_batched_tokens=8)  # fmt: skip
        mover = engine.disk if disk_blocks else engine.link
        mover.hold()
        engine.executor.broken.add("bad")
        engine.add("bad", prompt(3, 17))
        while "bad" not in engine.finished:
            engine.step()
        mover.release()
        engine.run()
        engine.add("next", prompt(3, 17))
        engine.run()
        assert engine.cached["next"] == 0
        engine.assert_idle()


@pytest.mark.parametrize(("device", "host"), [(64, 16), (64, 64), (40, 60), (32, 128)])
def test_closing_saves_all_that_only_memory_has(device: int, host: int) -> None:
    engine = SmallEngine(num_blocks=device, host_blocks=host, disk_blocks=512)
    for number in range((device + host) // 5 * 2):
        engine.add(f"r{number}", prompt(number * 3, 17), max_tokens=3)
        engine.run()
    held = {name for tier, pool in engine.tiers.pools() for name, _ in pool.named_blocks()}
    engine.core.close(1000.0)
    assert engine.tiers.disk is not None
    saved = {name for name, _ in engine.tiers.disk.named_blocks()}
    assert held <= saved


def test_a_hung_disk_holds_up_nobody_while_other_copies_go_on() -> None:
    engine = SmallEngine(num_blocks=24, host_blocks=2000, disk_blocks=4000, write="through")
    engine.add("a", prompt(1, 13), max_tokens=2)
    engine.run()
    forget_device(engine)
    assert engine.tiers.host is not None
    for name, _ in tuple(engine.tiers.host.named_blocks()):
        engine.tiers.host.forget(name)
    engine.disk.hold()
    engine.add("again", prompt(1, 14), max_tokens=3)
    for number in range(60):
        if number % 2 == 0:
            engine.add(f"x{number}", prompt(100 + number, 9), max_tokens=1)
        engine.step()
    assert engine.tokens["again"] == expected_tokens(prompt(1, 14), 3)


def test_after_a_failed_load_a_new_swap_is_loaded_again() -> None:
    engine = SmallEngine(num_blocks=16, host_blocks=16, prefix_caching=False)
    engine.add("a", prompt(1, 8), max_tokens=40)
    for fails in (True, False):
        for _ in range(4):
            engine.step()
        request = engine.scheduler.queues.running["a"]
        engine.scheduler.preempt(request)
        while request.status is not RequestStatus.SWAPPING_IN:
            engine.step()
        engine.link.fail_next = int(fails)
        while request.status is not RequestStatus.RUNNING:
            engine.step()
    assert swap_in_count(engine) > 2
    engine.run()
    assert engine.tokens["a"] == expected_tokens(prompt(1, 8), 40)


def test_copies_that_move_are_waited_for_however_long_they_take() -> None:
    """One block a step, and more blocks than the patience has seconds."""
    engine = SmallEngine(num_blocks=40, host_blocks=80, write="through", max_num_batched_tokens=200)
    engine.add("a", prompt(1, 120), max_tokens=1)
    engine.run()
    forget_device(engine)
    computed = engine.executor.num_computed_tokens
    engine.link._mischief = Mischief(max_delay_polls=40)
    engine.add("again", prompt(1, 121), max_tokens=1)
    engine.run()
    assert engine.cached["again"] == 120
    assert engine.executor.num_computed_tokens - computed == 1


def test_who_waits_for_loads_keeps_no_place_in_the_batch() -> None:
    engine = SmallEngine(num_blocks=24, host_blocks=80, write="through", max_num_seqs=2)
    for number in (1, 2):
        engine.add(f"old{number}", prompt(number, 13), max_tokens=1)
    engine.run()
    forget_device(engine)
    engine.link.hold()
    for number in (1, 2):
        engine.add(f"back{number}", prompt(number, 14), max_tokens=1)
    engine.add("fresh", prompt(3, 6), max_tokens=2)
    for _ in range(4):
        engine.step()
    assert engine.tokens["fresh"] == expected_tokens(prompt(3, 6), 2)
    engine.link.release()
    engine.run()


def test_a_hung_disk_does_not_stop_copies_to_host() -> None:
    engine = SmallEngine(num_blocks=40, host_blocks=400, disk_blocks=400, write="through")
    engine.disk.hold()
    for number in range(30):
        engine.add(f"r{number}", prompt(number * 3, 16), max_tokens=1)
        for _ in range(6):
            engine.step()
    assert engine.transfers.totals[TransferKind.SWAP_OUT].num_done >= 4 * 28


def test_a_swapped_request_that_gives_way_on_its_way_back_keeps_its_slots() -> None:
    engine = pressed()
    while status(engine, "second") is not RequestStatus.SWAPPING_IN:
        engine.step()
    request = engine.scheduler.queues.restoring["second"]
    engine.scheduler.preempt(request)
    assert request.status is RequestStatus.SWAPPED
    assert engine.core.problems() == ()
    engine.run()
    assert engine.tokens["second"] == expected_tokens(prompt(2, 8), 18)
    assert engine.scheduler.totals.recomputed_tokens == 0
    engine.assert_idle()


@pytest.mark.parametrize("eviction", ["lru", "lfu", "cost_aware", "session_aware"])
def test_lower_tiers_give_up_the_end_of_a_history_first(eviction: str) -> None:
    """Also when its blocks were copied down from the beginning on."""
    engine = SmallEngine(num_blocks=16, host_blocks=6, write="through", eviction=eviction)
    engine.add("long", prompt(1, 25), max_tokens=1)
    engine.run()
    engine.add("other", prompt(2, 13), max_tokens=1)
    engine.run()
    host = engine.tiers.host
    assert host is not None
    names = {label.depth for block in host.evictable_blocks() if (label := host.label_of(block)) is not None}
    assert {0, 1, 2} <= names
    forget_device(engine)
    engine.add("again", prompt(1, 25), max_tokens=1)
    engine.run()
    assert engine.cached["again"] == 12


def test_what_is_forgotten_on_disk_is_to_be_erased_there() -> None:
    engine = SmallEngine(num_blocks=16, host_blocks=32, disk_blocks=64, write="through")
    engine.executor.broken.add("bad")
    engine.add("good", prompt(3, 16), max_tokens=1)
    engine.run()
    assert len(engine.memory.disk_table) == 4
    engine.add("bad", prompt(3, 17), max_tokens=1)
    engine.run()
    assert engine.tiers.disk is not None
    assert not list(engine.tiers.disk.named_blocks())
    assert not engine.memory.disk_table


def test_closing_saves_what_stands_behind_blocks_that_are_saved_already() -> None:
    engine = SmallEngine(num_blocks=40, host_blocks=60, disk_blocks=400)
    engine.add("old", prompt(1, 120), max_tokens=1)
    engine.run()
    while any(True for _ in engine.tiers.host.named_blocks()) is False:  # type: ignore[union-attr]
        engine.tiers.flush()
        engine.step()
    engine.add("new", prompt(2, 60), max_tokens=1)
    engine.run()
    engine.add("old again", prompt(1, 121), max_tokens=1)
    engine.run()
    held = {name for _, pool in engine.tiers.pools() for name, _ in pool.named_blocks()}
    engine.core.close(1000.0)
    assert engine.tiers.disk is not None
    assert held <= {name for name, _ in engine.tiers.disk.named_blocks()}


def forget_device(engine: SmallEngine) -> None:
    """Evict all that the device has cached."""
    for name, _ in tuple(engine.tiers.device.named_blocks()):
        engine.tiers.device.forget(name)


def test_hits_are_booked_where_they_came_from_though_a_load_failed_in_the_end() -> None:
    num_partial = 0
    for seed in range(30):
        engine = SmallEngine(num_blocks=16, host_blocks=16, write="through", mischief=Mischief(seed=seed))
        engine.add("a", prompt(1, 33), max_tokens=2)
        engine.run()
        forget_device(engine)
        engine.link._mischief = Mischief(seed=seed, failure_rate=0.15, max_delay_polls=3)
        engine.add("again", prompt(1, 33), max_tokens=2)
        engine.run()
        hits = engine.scheduler.totals.hit_tokens
        assert hits[Tier.HOST] == engine.cached["again"]
        assert hits[Tier.DEVICE] == 0, "the device had nothing"
        num_partial += 0 < engine.cached["again"] < 32
    assert num_partial > 3


@pytest.mark.parametrize("eviction", ["lfu", "session_aware"])
def test_what_a_policy_gives_up_first_is_copied_down_although_much_else_is_clean(eviction: str) -> None:
    """A policy that gives up what came last: a first loss is noticed, and there are no more."""
    engine = SmallEngine(num_blocks=24, host_blocks=200, eviction=eviction)
    for number in range(9):
        engine.add(f"popular{number}", prompt(number % 3, 17), max_tokens=1, session=f"p{number % 3}")
        engine.run()
    losses = []
    for number in range(40):
        engine.add(f"new{number}", prompt(number + 30, 17), max_tokens=1, session=f"n{number}")
        engine.run()
        losses.append(engine.tiers.device.needless_losses_total)
    assert 0 < losses[10] == losses[-1] <= 4
