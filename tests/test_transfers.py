"""The transfer engine over scripted movers: order, bounds, cancellation, totals, drain."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiering.movers.base import FakeMover, Mischief
from tiering.transfers import SECONDS_BUCKETS, Mover, TransferEngine
from tiering.types import BlockId, TransferId, TransferJob, TransferKind, TransferOutcome, TransferResult

MAX_EXAMPLES = 3000 if os.environ.get("TIDEGATE_SLOW") == "1" else 200
BLOCK_BYTES = 100
OUT, IN, DEMOTE, PROMOTE = (
    TransferKind.SWAP_OUT,
    TransferKind.SWAP_IN,
    TransferKind.DEMOTE,
    TransferKind.PROMOTE,
)
DONE, CANCELLED = TransferOutcome.DONE, TransferOutcome.CANCELLED


class Clock:
    """A clock that moves on a little each time somebody looks at it, so that every wait ends."""

    def __init__(self, step_s: float = 0.001) -> None:
        self.now = 0.0
        self._step_s = step_s

    def __call__(self) -> float:
        self.now += self._step_s
        return self.now


class TimedMover(FakeMover):
    """Reports the times and outcomes it was given by id."""

    def __init__(self, results: dict[int, TransferResult]) -> None:
        super().__init__()
        self._results = results

    def poll(self) -> list[TransferResult]:
        return [replace(self._results[r.transfer_id], transfer_id=r.transfer_id) for r in super().poll()]


class RecordingMover(FakeMover):
    """Notes what it agreed to cancel, what it was asked to wait for, and how often it was closed."""

    def __init__(self, mischief: Mischief | None = None) -> None:
        super().__init__(mischief=mischief)
        self.cancelled: list[TransferId] = []
        self.asked: list[TransferId] = []
        self.waits_s: list[float] = []
        self.num_closed = 0

    def cancel(self, transfer_id: TransferId) -> bool:
        self.asked.append(transfer_id)
        agreed = super().cancel(transfer_id)
        if agreed:
            self.cancelled.append(transfer_id)
        return agreed

    def wait(self, timeout_s: float) -> None:
        self.waits_s.append(timeout_s)

    def close(self) -> None:
        self.num_closed += 1
        super().close()


def job(number: int, kind: TransferKind) -> TransferJob:
    return TransferJob(TransferId(number), kind, BlockId(number), BlockId(number), None)


def jobs(kind: TransferKind, numbers: Iterable[int]) -> list[TransferJob]:
    return [job(number, kind) for number in numbers]


def engine_of(
    mover: Mover, disk: Mover | None = None, *, loads: int = 4, stores: int = 2, clock: Clock | None = None
) -> TransferEngine:
    """An engine whose bounds are given in blocks."""
    disk = disk or mover
    return TransferEngine(
        {OUT: mover, IN: mover, DEMOTE: disk, PROMOTE: disk},
        BLOCK_BYTES,
        clock or Clock(),
        max_load_bytes=loads * BLOCK_BYTES + BLOCK_BYTES - 1,
        max_store_bytes=stores * BLOCK_BYTES,
    )


def ids(moves: Iterable[TransferJob | TransferResult]) -> list[int]:
    return [int(move.transfer_id) for move in moves]


def outcomes(results: Iterable[TransferResult]) -> dict[int, TransferOutcome]:
    return {int(result.transfer_id): result.outcome for result in results}


def poll_until_idle(engine: TransferEngine, limit: int = 1000) -> list[TransferResult]:
    ended: list[TransferResult] = []
    for _ in range(limit):
        ended += engine.poll()
        if engine.num_pending == 0:
            return ended
    raise AssertionError(f"{engine.num_pending} moves never ended")


# ---- order and bounds ----------------------------------------------------------------------------


def test_loads_begin_before_stores_that_were_submitted_with_them() -> None:
    mover = FakeMover()
    engine = engine_of(mover)
    engine.submit([*jobs(OUT, [1, 2]), *jobs(IN, [3, 4]), *jobs(DEMOTE, [5]), *jobs(PROMOTE, [6])])
    assert ids(mover.started) == [3, 4, 6, 1, 2]
    engine.poll()
    assert ids(mover.started) == [3, 4, 6, 1, 2, 5]


def test_no_store_begins_while_a_load_waits_for_its_turn() -> None:
    mover = FakeMover()
    engine = engine_of(mover, loads=2)
    engine.submit(jobs(IN, [1, 2, 3]))
    engine.submit(jobs(OUT, [4]))
    assert ids(mover.started) == [1, 2]
    engine.poll()
    assert ids(mover.started) == [1, 2, 3, 4]


def test_stores_under_way_do_not_hold_up_loads() -> None:
    mover = FakeMover()
    mover.hold()
    engine = engine_of(mover, loads=3, stores=2)
    engine.submit(jobs(OUT, range(5)))
    engine.submit(jobs(IN, range(10, 15)))
    assert ids(mover.started) == [0, 1, 10, 11, 12]


@pytest.mark.parametrize(("loads", "stores"), [(1, 1), (4, 2), (1, 5), (7, 1)])
def test_bytes_in_flight_are_bounded_for_loads_and_stores_apart(loads: int, stores: int) -> None:
    mover = FakeMover(mischief=Mischief(seed=loads, max_delay_polls=3, shuffles=True))
    engine = engine_of(mover, loads=loads, stores=stores)
    ended: set[int] = set()
    peaks: Counter[bool] = Counter()
    for start in range(0, 60, 20):
        engine.submit(jobs(IN, range(start, start + 10)))
        engine.submit(jobs(OUT, range(start + 10, start + 20)))
    while engine.num_pending:
        under_way = Counter(job.kind.is_load for job in mover.started if job.transfer_id not in ended)
        assert under_way[True] <= loads
        assert under_way[False] <= stores
        assert under_way.total() == mover.num_under_way
        peaks |= under_way
        ended.update(ids(engine.poll()))
    assert peaks == Counter({True: loads, False: stores})
    assert ended == set(range(60))


def test_each_mover_has_bounds_of_its_own() -> None:
    link, disk = FakeMover(), FakeMover()
    link.hold()
    disk.hold()
    engine = engine_of(link, disk, loads=2, stores=1)
    for start, kind in enumerate((OUT, IN, DEMOTE, PROMOTE)):
        engine.submit(jobs(kind, range(start * 10, start * 10 + 5)))
    assert sorted(ids(link.started)) == [0, 10, 11]
    assert sorted(ids(disk.started)) == [20, 30, 31]
    link.release()
    engine.poll()
    assert (link.num_under_way, disk.num_under_way) == (2, 3)


def test_a_bound_below_one_block_lets_one_move_at_a_time() -> None:
    mover = FakeMover()
    engine = TransferEngine(
        {OUT: mover, IN: mover}, BLOCK_BYTES, Clock(), max_load_bytes=1, max_store_bytes=0
    )
    engine.submit([*jobs(IN, range(3)), *jobs(OUT, range(10, 13))])
    at_once = []
    while engine.num_pending:
        at_once.append(mover.num_under_way)
        engine.poll()
    assert at_once == [1, 1, 2, 1, 1]  # the first store goes with the last load
    assert ids(mover.started) == [0, 1, 2, 10, 11, 12]


def test_moves_of_a_direction_begin_in_the_order_of_submission() -> None:
    mover = FakeMover()
    engine = engine_of(mover, loads=3, stores=3)
    order = [5, 1, 9, 2, 8, 3]
    engine.submit(jobs(OUT, order[:4]))
    engine.submit(jobs(OUT, order[4:]))
    poll_until_idle(engine)
    assert ids(mover.started) == order


# ---- cancellation --------------------------------------------------------------------------------


def test_what_is_queued_is_cancelled_and_never_reaches_the_mover() -> None:
    mover = RecordingMover()
    mover.hold()
    engine = engine_of(mover, loads=1, stores=1)
    engine.submit([*jobs(IN, [1, 2]), *jobs(OUT, [3, 4])])
    engine.cancel([TransferId(2), TransferId(4)])
    assert engine.num_pending == 4
    assert outcomes(engine.poll()) == {2: CANCELLED, 4: CANCELLED}
    mover.release()
    assert outcomes(poll_until_idle(engine)) == {1: DONE, 3: DONE}
    assert ids(mover.started) == [1, 3]
    assert mover.asked == []


def test_cancelling_the_last_load_that_waits_lets_stores_begin() -> None:
    mover = FakeMover()
    mover.hold()
    engine = engine_of(mover, loads=1)
    engine.submit([*jobs(IN, [1, 2]), *jobs(OUT, [3])])
    engine.cancel([TransferId(2)])
    engine.poll()
    assert ids(mover.started) == [1, 3]


def test_what_is_under_way_is_cancelled_or_ends_as_the_mover_says() -> None:
    mover = RecordingMover()
    mover.hold()
    engine = engine_of(mover, loads=64, stores=64)
    engine.submit([*jobs(IN, range(64)), *jobs(OUT, range(64, 128))])
    engine.cancel([TransferId(i) for i in range(128)])
    stopped = {int(i) for i in mover.cancelled}
    assert mover.asked == list(range(128))
    assert any(i < 64 for i in stopped) and any(i >= 64 for i in stopped)
    assert mover.num_under_way == 128 - len(stopped) > 0
    assert outcomes(engine.poll()) == dict.fromkeys(stopped, CANCELLED)
    mover.release()
    rest = poll_until_idle(engine)
    assert outcomes(rest) == dict.fromkeys(set(range(128)) - stopped, DONE)
    assert len(rest) == 128 - len(stopped)


def test_a_cancelled_move_gives_its_place_to_the_next() -> None:
    mover = RecordingMover()
    mover.hold()
    engine = engine_of(mover, loads=8, stores=8)
    engine.submit([*jobs(IN, range(16)), *jobs(OUT, range(20, 36))])
    engine.cancel([TransferId(i) for i in range(8)])
    assert (num_stopped := len(mover.cancelled)) > 0
    engine.poll()
    assert ids(mover.started) == list(range(8 + num_stopped))
    assert mover.num_under_way == 8


def test_unknown_ended_and_cancelled_moves_cannot_be_cancelled() -> None:
    mover = RecordingMover()
    engine = engine_of(mover, stores=1)
    engine.cancel([TransferId(7)])
    assert (engine.poll(), engine.num_pending) == ([], 0)
    engine.submit(jobs(OUT, [1, 2]))
    engine.cancel([TransferId(2), TransferId(2), TransferId(7)])
    assert outcomes(engine.poll()) == {1: DONE, 2: CANCELLED}
    engine.cancel([TransferId(1), TransferId(2)])
    assert (engine.poll(), engine.num_pending) == ([], 0)
    assert mover.asked == []


def test_cancelled_moves_count_in_no_total() -> None:
    engine = engine_of(FakeMover(), stores=1)
    engine.submit(jobs(OUT, [1, 2, 3]))
    engine.cancel([TransferId(2), TransferId(3)])
    poll_until_idle(engine)
    totals = engine.totals[OUT]
    assert (totals.num_done, totals.num_failed, totals.num_corrupt, totals.num_bytes) == (
        1,
        0,
        0,
        BLOCK_BYTES,
    )
    assert len(engine.take_observations()) == 1


def test_a_move_that_could_not_be_cancelled_is_reported_when_it_ends_however_late() -> None:
    mover = FakeMover(copy_block=lambda _: DONE)
    mover.hold()
    engine = engine_of(mover, loads=32)
    engine.submit(jobs(IN, range(32)))
    engine.cancel([TransferId(i) for i in range(32)])
    stopped = set(ids(engine.poll()))
    late = set(range(32)) - stopped
    assert late
    for _ in range(50):
        engine.cancel([TransferId(i) for i in stopped])
        assert engine.poll() == []
    assert engine.num_pending == len(late)
    mover.release()
    assert outcomes(engine.poll()) == dict.fromkeys(late, DONE)
    assert (engine.poll(), engine.num_pending) == ([], 0)


# ---- reports and totals --------------------------------------------------------------------------


def test_every_move_is_reported_exactly_once() -> None:
    mischief = Mischief(seed=3, max_delay_polls=5, failure_rate=0.2, corruption_rate=0.2, shuffles=True)
    engine = engine_of(FakeMover(mischief=mischief), FakeMover(mischief=replace(mischief, seed=4)))
    kinds = list(TransferKind)
    reported: list[TransferResult] = []
    for number in range(400):
        engine.submit([job(number, kinds[number % 4])])
        if number % 5 == 0:
            engine.cancel([TransferId(number - 3), TransferId(number)])
        if number % 3 == 0:
            reported += engine.poll()
            assert engine.num_pending == number + 1 - len(reported)
    reported += poll_until_idle(engine)
    assert sorted(ids(reported)) == list(range(400))
    assert {result.outcome for result in reported} == set(TransferOutcome)
    by_outcome = Counter(result.outcome for result in reported)
    totals = engine.totals.values()
    assert sum(t.num_done for t in totals) == by_outcome[DONE] == sum(sum(t.buckets) for t in totals)
    assert sum(t.num_failed for t in totals) == by_outcome[TransferOutcome.FAILED]
    assert sum(t.num_corrupt for t in totals) == by_outcome[TransferOutcome.CORRUPT]
    assert sum(t.num_bytes for t in totals) == by_outcome[DONE] * BLOCK_BYTES


def test_totals_add_up_by_kind() -> None:
    results = {
        0: TransferResult(TransferId(0), DONE, copy_s=0.25, queue_s=1.0, cpu_s=0.125),
        1: TransferResult(TransferId(0), DONE, copy_s=0.5, queue_s=2.0, cpu_s=0.25),
        2: TransferResult(TransferId(0), TransferOutcome.FAILED, copy_s=8.0, queue_s=8.0, cpu_s=8.0),
        3: TransferResult(TransferId(0), TransferOutcome.CORRUPT, copy_s=8.0, queue_s=8.0, cpu_s=8.0),
        4: TransferResult(TransferId(0), DONE, copy_s=2.0, queue_s=4.0, cpu_s=1.0),
    }
    engine = engine_of(TimedMover(results), stores=8)
    engine.submit(jobs(OUT, range(4)))
    engine.submit(jobs(PROMOTE, [4]))
    reported = poll_until_idle(engine)
    assert {int(r.transfer_id): replace(r, transfer_id=TransferId(0)) for r in reported} == results
    out, promote = engine.totals[OUT], engine.totals[PROMOTE]
    assert (out.num_done, out.num_failed, out.num_corrupt, out.num_bytes) == (2, 1, 1, 2 * BLOCK_BYTES)
    assert (out.copy_s, out.queue_s, out.cpu_s) == (0.75, 3.0, 0.375)
    assert (promote.num_done, promote.num_bytes, promote.copy_s) == (1, BLOCK_BYTES, 2.0)
    assert promote.buckets == [0] * len(SECONDS_BUCKETS) + [1]
    for kind in (IN, DEMOTE):
        assert engine.totals[kind].num_done == 0 and sum(engine.totals[kind].buckets) == 0


@pytest.mark.parametrize("bucket", range(len(SECONDS_BUCKETS) + 1))
def test_a_copy_counts_in_the_first_bucket_whose_bound_it_does_not_pass(bucket: int) -> None:
    below = SECONDS_BUCKETS[bucket - 1] if bucket else 0.0
    at = SECONDS_BUCKETS[bucket] if bucket < len(SECONDS_BUCKETS) else 100.0
    results = {
        i: TransferResult(TransferId(i), DONE, seconds)
        for i, seconds in enumerate((below * 1.001 + 1e-9, at))
    }
    engine = engine_of(TimedMover(results))
    engine.submit(jobs(IN, results))
    poll_until_idle(engine)
    assert engine.totals[IN].buckets[bucket] == sum(engine.totals[IN].buckets) == 2


def test_observations_are_of_finished_copies_shared_among_parallel_ones_and_taken_once() -> None:
    results = {
        0: TransferResult(TransferId(0), DONE, copy_s=1.0),
        1: TransferResult(TransferId(1), TransferOutcome.FAILED, copy_s=1.0),
        2: TransferResult(TransferId(2), TransferOutcome.CORRUPT, copy_s=1.0),
        3: TransferResult(TransferId(3), DONE, copy_s=3.0),
    }
    link, disk = TimedMover(results), TimedMover(results)
    disk.parallelism = 4
    engine = engine_of(link, disk, stores=4)
    engine.submit([*jobs(OUT, [0, 1, 2]), *jobs(DEMOTE, [3])])
    engine.poll()
    assert sorted(engine.take_observations()) == [(DEMOTE, 0.75), (OUT, 1.0)]
    assert engine.take_observations() == []


# ---- drain and close -----------------------------------------------------------------------------


def test_drain_reports_all_that_is_queued_or_under_way() -> None:
    mischief = Mischief(seed=1, max_delay_polls=4, failure_rate=0.3, shuffles=True)
    engine = engine_of(FakeMover(mischief=mischief), FakeMover(mischief=mischief), loads=2, stores=1)
    for start, kind in enumerate(TransferKind):
        engine.submit(jobs(kind, range(start * 10, start * 10 + 10)))
    engine.cancel([TransferId(9), TransferId(19)])
    ended = engine.drain(1000.0)
    assert sorted(ids(ended)) == list(range(40))
    assert engine.num_pending == 0
    assert engine.drain(1000.0) == []


def test_drain_gives_up_when_nothing_moves_and_what_ends_later_is_still_reported() -> None:
    mover, clock = RecordingMover(), Clock(0.05)
    mover.hold()
    engine = engine_of(mover, loads=2, clock=clock)
    engine.submit(jobs(IN, range(5)))
    started = clock.now
    assert engine.drain(3.0) == []
    assert clock.now > started + 3.0
    assert engine.num_pending == 5
    assert mover.waits_s and all(0 < wait <= 0.1 for wait in mover.waits_s)
    assert mover.waits_s[-1] < 0.1  # no longer than is left
    mover.release()
    assert sorted(ids(poll_until_idle(engine))) == list(range(5))


def test_drain_with_no_time_reports_what_has_ended() -> None:
    mover = RecordingMover()
    engine = engine_of(mover, loads=2)
    engine.submit(jobs(IN, range(5)))
    assert ids(engine.drain(0.0)) == [0, 1]
    assert mover.waits_s == []
    assert engine.num_pending == 3


@pytest.mark.parametrize("held", [0, 1])
def test_drain_reports_one_movers_moves_though_another_is_stuck(held: int) -> None:
    movers = FakeMover(), FakeMover(mischief=Mischief(max_delay_polls=3))
    movers[held].hold()
    engine = engine_of(*movers, loads=2, stores=1)
    engine.submit([*jobs(IN, range(4)), *jobs(PROMOTE, range(10, 14))])
    free = range(10, 14) if held == 0 else range(4)
    assert sorted(ids(engine.drain(1.0))) == list(free)
    assert engine.num_pending == 4


def test_drain_waits_on_movers_that_have_something_under_way() -> None:
    link, disk = RecordingMover(), RecordingMover(Mischief(max_delay_polls=9, seed=2))
    engine = engine_of(link, disk)
    engine.submit(jobs(PROMOTE, range(4)))
    assert len(engine.drain(1000.0)) == 4
    assert link.waits_s == []
    assert disk.waits_s


def test_close_closes_every_mover_once() -> None:
    link, disk = RecordingMover(), RecordingMover()
    engine = engine_of(link, disk)
    engine.submit([*jobs(IN, range(9)), *jobs(DEMOTE, range(10, 19))])
    engine.close()
    assert (link.num_closed, disk.num_closed) == (1, 1)


# ---- against a model -----------------------------------------------------------------------------


@dataclass
class Lane:
    """What one mover should be doing, in the plainest terms."""

    mover: RecordingMover
    loads: list[int] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)
    under_way: set[int] = field(default_factory=set)
    started: list[int] = field(default_factory=list)


class Model:
    """The engine's rules written out; ``check`` compares the movers with it."""

    def __init__(self, lanes: Sequence[Lane], max_loads: int, max_stores: int) -> None:
        self.lanes = lanes
        self.kinds: dict[int, TransferKind] = {}
        self.cancelled: set[int] = set()
        self.reported: dict[int, TransferOutcome] = {}
        self._max_loads = max_loads
        self._max_stores = max_stores

    def lane_of(self, number: int) -> Lane:
        return self.lanes[self.kinds[number] in (DEMOTE, PROMOTE)]

    def submit(self, batch: Sequence[TransferJob]) -> None:
        for move in batch:
            number = int(move.transfer_id)
            self.kinds[number] = move.kind
            lane = self.lane_of(number)
            (lane.loads if move.kind.is_load else lane.stores).append(number)
        self._begin()

    def cancel(self, numbers: Iterable[int]) -> None:
        """To be called before the engine is told; what is under way is asked of the mover afterwards."""
        for number in numbers:
            if number not in self.kinds or number in self.reported:
                continue
            for queue in (self.lane_of(number).loads, self.lane_of(number).stores):
                if number in queue:
                    queue.remove(number)
                    self.cancelled.add(number)

    def note_cancelled_under_way(self) -> None:
        for lane in self.lanes:
            stopped = {int(number) for number in lane.mover.cancelled} - self.cancelled
            assert stopped <= lane.under_way
            lane.under_way -= stopped
            self.cancelled |= stopped

    def poll(self, results: Sequence[TransferResult]) -> None:
        for result in results:
            number = int(result.transfer_id)
            assert number in self.kinds
            assert number not in self.reported, "reported twice"
            self.reported[number] = result.outcome
            if number in self.cancelled:
                assert result.outcome is CANCELLED
            else:
                assert result.outcome is not CANCELLED
                self.lane_of(number).under_way.remove(number)
        assert self.cancelled <= self.reported.keys()
        self._begin()

    def _begin(self) -> None:
        for lane in self.lanes:
            self._take(lane, lane.loads, self._max_loads, is_load=True)
            if not lane.loads:
                self._take(lane, lane.stores, self._max_stores, is_load=False)

    def _take(self, lane: Lane, queue: list[int], limit: int, *, is_load: bool) -> None:
        while queue and sum(self.kinds[n].is_load is is_load for n in lane.under_way) < limit:
            number = queue.pop(0)
            lane.under_way.add(number)
            lane.started.append(number)

    def check(self, engine: TransferEngine) -> None:
        assert engine.num_pending == len(self.kinds) - len(self.reported)
        for lane in self.lanes:
            assert ids(lane.mover.started) == lane.started
            assert lane.mover.num_under_way == len(lane.under_way)
        for kind, totals in engine.totals.items():
            mine = Counter(
                self.reported[n] for n, k in self.kinds.items() if k is kind and n in self.reported
            )
            assert totals.num_done == mine[DONE]
            assert totals.num_failed == mine[TransferOutcome.FAILED]
            assert totals.num_corrupt == mine[TransferOutcome.CORRUPT]


SUBMIT = st.tuples(st.just("submit"), st.lists(st.sampled_from(TransferKind), min_size=1, max_size=8))
CANCEL = st.tuples(st.just("cancel"), st.lists(st.integers(0, 60), min_size=1, max_size=6))
HOLD = st.tuples(st.sampled_from(["hold", "release"]), st.integers(0, 1))
POLL = st.tuples(st.just("poll"), st.none())
MISCHIEF = st.builds(
    Mischief,
    seed=st.integers(0, 2**16),
    max_delay_polls=st.integers(0, 4),
    failure_rate=st.sampled_from([0.0, 0.3]),
    corruption_rate=st.sampled_from([0.0, 0.3]),
    shuffles=st.booleans(),
)


@settings(max_examples=MAX_EXAMPLES, deadline=None)
@given(
    operations=st.lists(st.one_of(SUBMIT, SUBMIT, CANCEL, POLL, POLL, HOLD), max_size=60),
    mischief=st.tuples(MISCHIEF, MISCHIEF),
    max_loads=st.integers(1, 4),
    max_stores=st.integers(1, 4),
)
def test_any_sequence_of_calls_agrees_with_a_plain_model(
    operations: list[tuple[str, object]],
    mischief: tuple[Mischief, Mischief],
    max_loads: int,
    max_stores: int,
) -> None:
    lanes = [Lane(RecordingMover(script)) for script in mischief]
    engine = engine_of(lanes[0].mover, lanes[1].mover, loads=max_loads, stores=max_stores)
    model = Model(lanes, max_loads, max_stores)
    numbers = itertools.count()
    perform: dict[str, Callable[..., None]] = {
        "submit": lambda kinds: _submit(engine, model, [job(next(numbers), kind) for kind in kinds]),
        "cancel": lambda some: _cancel(engine, model, some),
        "poll": lambda _: model.poll(engine.poll()),
        "hold": lambda index: lanes[index].mover.hold(),
        "release": lambda index: lanes[index].mover.release(),
    }
    for verb, argument in operations:
        perform[verb](argument)
        model.check(engine)
    for lane in lanes:
        lane.mover.release()
    for _ in range(200):
        model.poll(engine.poll())
        model.check(engine)
    assert engine.num_pending == 0
    assert model.reported.keys() == model.kinds.keys()


def _submit(engine: TransferEngine, model: Model, batch: list[TransferJob]) -> None:
    engine.submit(batch)
    model.submit(batch)


def _cancel(engine: TransferEngine, model: Model, numbers: list[int]) -> None:
    model.cancel(numbers)
    engine.cancel([TransferId(number) for number in numbers])
    model.note_cancelled_under_way()
