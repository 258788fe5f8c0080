"""What is kept of requests that only decode: when they enter and leave, and that it changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from engine.messages import BeamParams, FinishReason, TokenDelta
from engine.request import SequenceGroup
from tests.support.fake_kv import expected_tokens
from tests.support.small_engine import SmallEngine
from tiering.block_manager import BlockManager


def decoding(engine: SmallEngine) -> set[str]:
    return set(engine.scheduler.queues.decoding.sequences)


def steps(engine: SmallEngine, count: int) -> None:
    for _ in range(count):
        engine.step()


# ---- who is kept ---------------------------------------------------------------------------------


def test_a_request_is_kept_from_its_second_token_on_until_it_ends() -> None:
    engine = SmallEngine()
    engine.add("a", [1, 2, 3], max_tokens=4)
    kept = []
    while engine.scheduler.has_work():
        engine.step()
        kept.append(decoding(engine))
    assert kept == [set(), {"a"}, {"a"}, set()]


def test_all_sequences_of_a_request_are_kept_and_leave_together_when_one_ends() -> None:
    engine = SmallEngine(num_blocks=32)
    engine.add("a", [1, 2, 3], max_tokens=9, n=3)
    steps(engine, 3)
    assert decoding(engine) == {"a", "a#1", "a#2"}
    engine.core.abort("a", 1)
    assert decoding(engine) == set()
    engine.step()
    assert decoding(engine) == {"a", "a#2"}


def test_a_request_whose_client_does_not_read_leaves_and_comes_back() -> None:
    engine = SmallEngine()
    engine.add("a", [1, 2, 3])
    engine.add("b", [4, 5, 6])
    steps(engine, 2)
    engine.core.pause("a")
    engine.step()
    assert decoding(engine) == {"b"}
    engine.core.resume("a")
    engine.step()
    assert decoding(engine) == {"a", "b"}


@pytest.mark.parametrize("host_blocks", [0, 16])
def test_a_request_that_is_preempted_leaves_with_its_blocks(host_blocks: int) -> None:
    engine = SmallEngine(host_blocks=host_blocks)
    engine.add("a", [1, 2, 3])
    steps(engine, 3)
    engine.scheduler.preempt(engine.scheduler.queues.running["a"])
    assert decoding(engine) == set()
    engine.run()
    assert engine.tokens["a"] == expected_tokens([1, 2, 3], 8)


@pytest.mark.parametrize("options", [{"beam": BeamParams(2)}, {"min_tokens": 6}], ids=["beams", "too short"])
def test_a_request_of_which_more_changes_than_its_length_is_not_kept(options: dict[str, object]) -> None:
    engine = SmallEngine(num_blocks=32)
    engine.add("a", [1, 2, 3], max_tokens=8, **options)
    steps(engine, 5)
    assert engine.scheduler.num_running and not decoding(engine)


def test_a_request_that_decoded_for_long_is_not_overdue_when_it_is_preempted() -> None:
    engine = SmallEngine(num_blocks=64)
    engine.add("a", [1, 2, 3], max_tokens=100)
    steps(engine, 80)
    group = engine.scheduler.queues.running["a"]
    engine.scheduler.preempt(group)
    engine.step()
    assert not group.is_overdue


# ---- what it saves -------------------------------------------------------------------------------


def test_the_block_manager_is_asked_for_room_once_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    plain = BlockManager.try_grow

    def try_grow(blocks: BlockManager, wanted: Sequence[tuple[str, int]]) -> bool:
        asked.extend(name for name, _ in wanted)
        return plain(blocks, wanted)

    monkeypatch.setattr(BlockManager, "try_grow", try_grow)
    engine = SmallEngine(num_blocks=64, block_size=8)
    for name in "abc":
        engine.add(name, [ord(name)] * 3, max_tokens=80)
    steps(engine, 10)
    asked.clear()
    steps(engine, 4 * 8)
    assert sorted(asked) == sorted("abc" * 4)


def test_nobody_is_put_in_line_while_all_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SmallEngine(num_blocks=64)
    for name in "abc":
        engine.add(name, [ord(name)] * 3, max_tokens=80)
    steps(engine, 3)
    monkeypatch.setattr(type(engine.scheduler.queues), "rank", None)
    steps(engine, 20)


# ---- that it changes nothing ---------------------------------------------------------------------


def _crowd(engine: SmallEngine) -> None:
    """Requests of all kinds, more than there is room for."""
    for number in range(10):
        engine.add(
            f"r{number}",
            [*[number % 3, 5, 7, number] * (1 + number % 4), 9],
            max_tokens=9 + 3 * number,
            tenant="ab"[number % 2],
            weight=1.0 + number % 2,
            priority=number % 3,
            seed=number,
            n=1 + (number % 5 == 4) * 2,
            stop_token_ids=tuple(range(0, 1000, 9)) if number % 2 else (),
            min_tokens=5 if number % 4 == 0 else 0,
        )


def _life(engine: SmallEngine) -> list[list[TokenDelta]]:
    """The deltas of each step, in the order of names."""
    _crowd(engine)
    told = []
    for number in range(400):
        if number == 12:
            engine.core.pause("r2")
            engine.core.abort("r4", 1)
        if number == 25:
            engine.core.resume("r2")
        if number == 30:
            engine.executor.broken.add("r9")
        if not engine.scheduler.has_work():
            break
        report = engine.step()
        told.append(sorted(report.deltas, key=lambda d: (d.request_id, d.index)) if report else [])
    assert not engine.scheduler.has_work()
    return told


@pytest.mark.parametrize("num_blocks", [40, 400], ids=["too few blocks", "room"])
def test_a_step_that_takes_the_long_way_gives_the_same_tokens(
    num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def engine() -> SmallEngine:
        return SmallEngine(num_blocks=num_blocks, block_size=2, max_model_len=80, max_num_seqs=12)

    kept = engine()
    short = _life(kept)
    totals = kept.scheduler.totals
    assert FinishReason.STOP in kept.ended.values() and totals.block_copies
    assert bool(totals.preemptions) == (num_blocks < 400)
    monkeypatch.setattr(SequenceGroup, "only_decodes", False)
    assert short == _life(engine())


@pytest.mark.parametrize(
    ("corrupt", "problem"),
    [
        (lambda each: setattr(each, "num_writable_tokens", 10_000), "less room"),
        (lambda each: setattr(each, "block_table", [*each.block_table]), "another block table"),
        (lambda each: setattr(each.group, "paused", True), "does not decode"),
        (lambda each: each.group.unwanted.clear() or each.group.sequences.clear(), "are not those"),
    ],
    ids=["room", "table", "paused", "sequences"],
)
def test_a_recount_finds_what_is_kept_wrongly(corrupt: Callable[..., object], problem: str) -> None:
    engine = SmallEngine()
    engine.add("a", [1, 2, 3])
    steps(engine, 3)
    corrupt(engine.scheduler.queues.decoding.sequences["a"])
    assert any(problem in found for found in engine.core.problems())
