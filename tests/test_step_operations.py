"""What a step does grows with the sequences that run, and with nothing else. Counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.standing_core import BLOCK_SIZE, StandingCore
from engine.messages import Grammar
from engine.queues import RequestQueues
from engine.request import SequenceGroup
from engine.room import Room
from engine.sequence import Sequence
from tests.support.counting import Operations, count
from tests.support.scripted_compiler import ScriptedCompiler
from tiering.types import BlockId

SHORT, LONG = 100, 10_004  # as far from the end of a block
TENANTS = [f"tenant-{number}" for number in range(100)]
CLASSES = range(-20, 20)
Arrange = Callable[[StandingCore, int], object]


def core(num_places: int, context: int = SHORT, **options: Any) -> StandingCore:
    return StandingCore(num_places, context, clock=lambda: 0.0, **options)


def a_step(engine: StandingCore) -> Operations:
    engine.core.step()
    return count(engine.core, engine.core.step)


def decoding(num_running: int, context: int = SHORT) -> StandingCore:
    engine = core(num_running, context)
    engine.run(num_running)
    return engine


# ---- what runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_running", [8, 64, 256])
def test_a_step_does_not_grow_with_the_context(num_running: int) -> None:
    assert a_step(decoding(num_running, SHORT)) == a_step(decoding(num_running, LONG))


def test_nor_do_the_steps_that_fill_a_block() -> None:
    short, long = ([a_step(engine) for _ in range(BLOCK_SIZE)] for engine in (decoding(4), decoding(4, LONG)))
    assert short == long
    assert len(set(short)) > 1


def test_nor_with_the_answers_so_far() -> None:
    engine = decoding(4)
    for _ in range(BLOCK_SIZE):
        engine.core.step()
    first = [a_step(engine) for _ in range(BLOCK_SIZE)]
    for _ in range(20 * BLOCK_SIZE):
        engine.core.step()
    assert [a_step(engine) for _ in range(BLOCK_SIZE)] == first


def test_nor_does_a_step_in_which_not_all_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Room, "try_make_room_for_all", lambda room, beside: False)
    assert a_step(decoding(64, SHORT)) == a_step(decoding(64, LONG))
    few, many = decoding(8), decoding(8)
    few.add(100)
    many.add(10_000)
    assert a_step(few) == a_step(many)
    assert_linear(lambda num_running: a_step(decoding(num_running)).total)


def test_a_sequence_that_only_decodes_takes_a_fraction_of_what_others_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slope() -> float:
        return (a_step(decoding(64)).total - a_step(decoding(8)).total) / 56

    kept = slope()
    monkeypatch.setattr(SequenceGroup, "only_decodes", False)
    assert kept < slope() / 3


def assert_linear(operations: Callable[[int], int], sizes: tuple[int, int, int] = (8, 64, 256)) -> None:
    """What one more takes is the same everywhere."""
    first, middle, last = map(operations, sizes)
    slopes = (middle - first) / (sizes[1] - sizes[0]), (last - middle) / (sizes[2] - sizes[1])
    assert slopes[1] <= 1.01 * slopes[0]


def test_a_step_grows_linearly_with_what_runs() -> None:
    assert_linear(lambda num_running: a_step(decoding(num_running)).total)


def test_a_step_grows_linearly_with_the_answers_of_one_request() -> None:
    def operations(num_answers: int) -> int:
        engine = core(num_answers)
        engine.run(1, num_answers=num_answers)
        return a_step(engine).total

    assert_linear(operations)


def test_a_step_grows_linearly_with_those_that_it_admits() -> None:
    def operations(num_admitted: int) -> int:
        engine = core(num_admitted + 1)
        engine.run(1)
        engine.add(num_admitted)
        found = count(engine.core, engine.core.step).total
        assert engine.scheduler.num_running == num_admitted + 1
        return found

    assert_linear(operations)


# ---- what waits ----------------------------------------------------------------------------------


def _wait(engine: StandingCore, num_waiting: int, **options: Any) -> list[str]:
    """They need two places, of which there is one."""
    return engine.add(num_waiting, num_answers=2, num_tokens=20, **options)


def _pause(engine: StandingCore, num_waiting: int) -> None:
    for request_id in _wait(engine, num_waiting):
        engine.core.pause(request_id)


def _park(engine: StandingCore, num_waiting: int) -> None:
    for request_id in _wait(engine, num_waiting):
        engine.core.pause(request_id)
        engine.core.resume(request_id)


def _swap_out(engine: StandingCore, num_waiting: int) -> None:
    for request_id in engine.add(num_waiting):
        engine.core.step()
        engine.core.pause(request_id)
        engine.scheduler.preempt(engine.scheduler.queues.running[request_id])
    for _ in range(3):
        engine.core.step()
    assert engine.core.stats().num_swapped == num_waiting


def _await_grammars(engine: StandingCore, num_waiting: int) -> None:
    for request_id in engine.add(num_waiting, grammar=Grammar("regex", "[0-9]+"))[::2]:
        engine.core.pause(request_id)


@pytest.mark.parametrize(
    ("arrange", "numbers"),
    [
        pytest.param(_wait, (100, 100_000), id="waiting"),
        pytest.param(lambda e, n: _wait(e, n, tenants=TENANTS), (2_000, 10_000), id="of many tenants"),
        pytest.param(lambda e, n: _wait(e, n, tenants=TENANTS[:1]), (100, 10_000), id="of another tenant"),
        pytest.param(lambda e, n: _wait(e, n, priorities=CLASSES), (400, 10_000), id="of many classes"),
        pytest.param(_pause, (100, 10_000), id="whose clients do not read"),
        pytest.param(_park, (128, 8_192), id="parked"),
        pytest.param(_swap_out, (16, 208), id="swapped out"),
        pytest.param(_await_grammars, (10, 1_000), id="waiting for grammars"),
    ],
)
def test_a_step_does_not_grow_with_those_that_wait(arrange: Arrange, numbers: tuple[int, int]) -> None:
    counts = []
    for number in numbers:
        engine = core(9, host_blocks=4096, compiler=ScriptedCompiler())
        engine.run(8)
        arrange(engine, number)
        counts.append(a_step(engine))
    assert counts[0] == counts[1]


def test_looking_whether_anybody_can_be_admitted_costs_less_than_a_sequence_that_runs() -> None:
    engine = core(9)
    engine.run(8)
    alone = a_step(engine)
    _wait(engine, 100)
    assert a_step(engine).total - alone.total < alone.total / 8


def _lack_room(context: int, *, is_swapped: bool) -> tuple[StandingCore, list[BlockId]]:
    """There is a place for the head of the line, and no block."""
    engine = core(5, context, host_blocks=1024)
    engine.run(4)
    if is_swapped:
        _swap_out(engine, 1)
    taken = engine.blocks.pool.try_allocate(engine.blocks.pool.num_available())
    assert taken is not None
    if is_swapped:
        engine.core.resume("request-4")
    else:
        engine.add(1)
    return engine, taken


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_step_does_not_grow_with_the_context_of_who_lacks_room(is_swapped: bool) -> None:
    (short, _), (long, taken) = (_lack_room(context, is_swapped=is_swapped) for context in (SHORT, LONG))
    assert a_step(short) == a_step(long)
    long.blocks.pool.release(taken)
    long.core.step()
    assert long.scheduler.num_running + long.scheduler.num_restoring == 5


# ---- that it would be seen -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "careless",
    [
        lambda s: [*s.prompt_token_ids, *s.output_token_ids],
        lambda s: s.prompt_token_ids[:],
        lambda s: sorted(s.prompt_token_ids),
        lambda s: -1 in s.prompt_token_ids,
        lambda s: s.prompt_token_ids == (),
    ],
    ids=["unpacking", "slicing", "sorting", "looking for one", "comparing"],
)
def test_reading_all_tokens_of_a_sequence_is_seen(
    monkeypatch: pytest.MonkeyPatch, careless: Callable[[Sequence], object]
) -> None:
    plain = Sequence.append

    def append(sequence: Sequence, token_id: int) -> None:
        careless(sequence)
        plain(sequence, token_id)

    engines = [decoding(2, context) for context in (SHORT, LONG)]
    monkeypatch.setattr(Sequence, "append", append)
    short, long = map(a_step, engines)
    assert long.elements - short.elements >= LONG - SHORT
    assert long.bytecodes == short.bytecodes


@pytest.mark.parametrize(
    "careless",
    [
        lambda q: len(tuple(q._all.values())) - 8,
        lambda q: len(q._all.copy()) - 8,
        lambda q: len(set(q._all)) - 8,
        lambda q: sum(1 for _ in q) - 8,
    ],
    ids=["making a tuple", "copying", "making a set", "counting"],
)
def test_scanning_those_that_wait_is_seen(
    monkeypatch: pytest.MonkeyPatch, careless: Callable[[RequestQueues], int]
) -> None:
    monkeypatch.setattr(RequestQueues, "num_waiting", property(careless))
    counts = []
    for number in (100, 1_000):
        engine = core(9)
        engine.run(8)
        _wait(engine, number)
        counts.append(a_step(engine))
    assert counts[1].elements - counts[0].elements >= 900
