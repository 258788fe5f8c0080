"""What a GPU's mover keeps in order: compute, both directions, and what it tells of moves."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_cuda import FakeEvent
from tests.support.mover_bench import (
    BLOCK_BYTES,
    DONE,
    FAILED,
    IN,
    OUT,
    Bench,
    Blocks,
    bench,
    ids,
)
from tiering.movers import cuda
from tiering.types import TransferId, TransferJob, TransferKind

SLOW = os.environ.get("TIDEGATE_SLOW") == "1"


def test_a_store_reads_what_compute_before_it_writes() -> None:
    with bench() as b:

        def write() -> None:
            b.blocks[3] = 7

        b.device.compute.enqueue(write)
        b.mover.submit(b.jobs(OUT, [(3, 5)]))
        b.settle()
        assert len(b.mover.poll()) == 1
        assert (b.host[5] == 7).all()


def test_a_load_overwrites_nothing_that_compute_before_it_reads() -> None:
    with bench() as b:
        before, seen = b.blocks[3].copy(), np.zeros(BLOCK_BYTES, dtype=np.uint8)

        def read() -> None:
            seen[:] = b.blocks[3]

        b.device.compute.enqueue(read)
        b.mover.submit(b.jobs(IN, [(5, 3)]))
        b.settle()
        assert len(b.mover.poll()) == 1
        np.testing.assert_array_equal(seen, before)
        np.testing.assert_array_equal(b.blocks[3], b.host[5])


def test_no_move_is_told_of_before_all_of_it_is_there() -> None:
    with bench(num_blocks=8) as b:
        b.mover.submit(b.jobs(IN, [(5, 3), (9, 4), (2, 7)]))
        while not (ended := b.mover.poll()):
            assert b.device.advance() == 1
        assert len(ended) == 3
        np.testing.assert_array_equal(b.blocks[[3, 4, 7]], b.host[[5, 9, 2]])


def test_moves_that_waited_in_the_mover_are_behind_compute_of_when_they_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda, "_MAX_UNDER_WAY", 1)
    monkeypatch.setattr(cuda, "_BATCH_BYTES", BLOCK_BYTES)
    with bench() as b:
        b.mover.submit(b.jobs(OUT, [(0, 0), (1, 1)]))
        b.settle()

        def write() -> None:
            b.blocks[1] = 9

        b.device.compute.enqueue(write)
        assert len(b.mover.poll()) == 1
        b.settle()
        assert len(b.mover.poll()) == 1
        assert (b.host[1] == 9).all()


def test_the_directions_do_not_wait_for_each_other() -> None:
    with bench() as b:
        gate = FakeEvent(b.device)
        outward, inward = b.jobs(OUT, [(0, 0)]), b.jobs(IN, [(1, 1)])
        b.path.streams[OUT].enqueue(lambda: None, after=gate)  # type: ignore[attr-defined]
        b.mover.submit(outward + inward)
        b.settle()
        assert ids(b.mover.poll()) == [inward[0].transfer_id]
        gate.over = True
        b.settle()
        assert ids(b.mover.poll()) == [outward[0].transfer_id]


def test_directions_take_turns_and_loads_are_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_BATCH_BYTES", 2 * BLOCK_BYTES)
    with bench() as b:
        jobs = b.jobs(OUT, ((i, i) for i in range(8))) + b.jobs(IN, ((i, i) for i in range(16, 20)))
        b.mover.submit(jobs)
        assert b.device.batches == [IN, OUT, IN, OUT, OUT, OUT]
        with b.device.running():
            assert b.await_ends(jobs) == [DONE] * 12


def test_a_direction_that_gives_up_a_batch_keeps_the_other_going(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_BATCH_BYTES", BLOCK_BYTES)
    with bench() as b, b.device.running():  # submitting waits for what was begun
        b.device.failing_records = {0, 4}  # of the first two batches inward, one outward between them
        jobs = b.jobs(IN, [(0, 0), (2, 2), (4, 4)]) + b.jobs(OUT, [(8, 8), (10, 10)])
        b.mover.submit(jobs)
        assert b.await_ends(jobs) == [FAILED, FAILED, DONE, DONE, DONE]


class Life:
    """Compute, moves and time in any order, beside what memory must be if all order is kept."""

    def __init__(self, b: Bench, seed: int) -> None:
        self._bench = b
        self._random = random.Random(seed)
        self._blocks, self._host = b.blocks.copy(), b.host.copy()  # as they will be
        self._under_way: dict[TransferId, tuple[TransferJob, Blocks]] = {}
        self._checks: list[Callable[[], None]] = []
        self.num_ended = 0

    def step(self) -> None:
        action = self._random.choice(
            (self._write, self._read, self._move, self._move, self._go_on, self._poll)
        )
        action()

    def finish(self) -> None:
        self._bench.settle()
        while self._under_way:
            self._bench.settle()
            self._poll()
        for check in self._checks:
            check()
        np.testing.assert_array_equal(self._bench.blocks, self._blocks)
        np.testing.assert_array_equal(self._bench.host, self._host)

    def _ends(self, side: TransferKind, *, written: bool) -> set[int]:
        """Blocks of the device (``OUT``: the side it reads) or host that moves write, or touch at all."""
        found = set()
        for job, _ in self._under_way.values():
            if job.kind is side and not written:
                found.add(int(job.source))
            if job.kind is not side:
                found.add(int(job.target))
        return found

    def _write(self) -> None:
        """A kernel that writes a block which no move reads or writes."""
        free = set(range(len(self._blocks))) - self._ends(OUT, written=False)
        if free:
            block, value = self._random.choice(sorted(free)), self._random.randrange(256)
            self._blocks[block] = value
            self._bench.device.compute.enqueue(lambda: self._bench.blocks[block].fill(value))

    def _read(self) -> None:
        """A kernel that reads a block which no move writes, and must find what was there by now."""
        free = set(range(len(self._blocks))) - self._ends(OUT, written=True)
        if free:
            block = self._random.choice(sorted(free))
            expected, seen = self._blocks[block].copy(), np.zeros(BLOCK_BYTES, dtype=np.uint8)

            def read() -> None:
                seen[:] = self._bench.blocks[block]

            self._bench.device.compute.enqueue(read)
            self._checks.append(lambda: np.testing.assert_array_equal(seen, expected))

    def _move(self) -> None:
        kind = self._random.choice((OUT, IN))
        sources = self._blocks if kind is OUT else self._host
        other = IN if kind is OUT else OUT
        readable = sorted(set(range(len(sources))) - self._ends(kind, written=True))
        targets = sorted(set(range(32)) - self._ends(other, written=False))
        count = min(len(readable), len(targets), self._random.choice((1, 1, 3, 12)))
        pairs = zip(self._random.sample(readable, count), self._random.sample(targets, count), strict=True)
        jobs = self._bench.jobs(kind, pairs)
        self._under_way |= {job.transfer_id: (job, sources[job.source].copy()) for job in jobs}
        self._bench.mover.submit(jobs)

    def _go_on(self) -> None:
        self._bench.device.advance(self._random.choice((1, 5, 30)))

    def _poll(self) -> None:
        for result in self._bench.mover.poll():
            job, expected = self._under_way.pop(result.transfer_id)
            assert result.outcome is DONE
            is_out = job.kind is OUT
            there = self._bench.host if is_out else self._bench.blocks
            np.testing.assert_array_equal(there[job.target], expected)
            (self._host if is_out else self._blocks)[job.target] = expected
            self.num_ended += 1


@settings(max_examples=2000 if SLOW else 40)
@given(seed=st.integers(0, 10**9), is_batched=st.booleans(), verified=st.booleans())
def test_any_life_goes_as_if_everything_were_done_at_once(
    seed: int, is_batched: bool, verified: bool
) -> None:
    with bench(seed=seed % 100, is_batched=is_batched, verified=verified) as b:
        life = Life(b, seed)
        for _ in range(60):
            life.step()
        life.finish()
