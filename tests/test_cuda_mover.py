"""The mover between a GPU and host memory, driven by a device of CPU memory that does what it may."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_cuda import FakeDevice, FakeEvent, FakePinning
from tiering.memory import host_pool
from tiering.memory.host_pool import HostPool
from tiering.movers import cuda
from tiering.movers.checksums import HostChecksums, checksum
from tiering.movers.copy_path import choose_path
from tiering.movers.copy_runs import CopyList
from tiering.movers.copy_stream import CopyError, DeviceLostError
from tiering.movers.cuda import CudaMover
from tiering.movers.disk import disk_mover
from tiering.movers.disk_store import DiskStore
from tiering.transfers import TransferEngine
from tiering.types import (
    BlockHash,
    BlockId,
    BlockLabel,
    TransferId,
    TransferJob,
    TransferKind,
    TransferOutcome,
    TransferResult,
)

OUT, IN = TransferKind.SWAP_OUT, TransferKind.SWAP_IN
DONE, FAILED, CORRUPT = TransferOutcome.DONE, TransferOutcome.FAILED, TransferOutcome.CORRUPT
BLOCK_BYTES = 512
SLOTS_PER_CHUNK = 8
SLOW = os.environ.get("TIDEGATE_SLOW") == "1"
PATIENCE_S = 60  # how long a test waits for what must happen; no test passes by its end

Blocks = npt.NDArray[np.uint8]


class Bench:
    """A mover, its device, and the memory on both sides."""

    def __init__(
        self,
        num_blocks: int = 32,
        num_slots: int = 32,
        *,
        seed: int = 0,
        is_batched: bool = True,
        verified: bool = False,
        pinning: FakePinning | None = None,
    ) -> None:
        blocks = np.random.default_rng(seed).integers(0, 256, (num_blocks, BLOCK_BYTES), dtype=np.uint8)
        self.device = FakeDevice(blocks, seed)
        self.device.pinning = pinning or self.device.pinning
        self.memory = HostPool(num_slots, BLOCK_BYTES, lambda: None, self.device.pinning)
        self.memory.wait_ready()
        self.host = self.memory.slots
        self.host[:] = np.random.default_rng(seed + 1).integers(0, 256, self.host.shape, dtype=np.uint8)
        self.checksums = HostChecksums(num_slots) if verified else None
        for slot in range(num_slots if self.checksums is not None else 0):
            assert self.checksums is not None
            self.checksums.note(slot, checksum(self.host[slot]))
        self.woken = threading.Semaphore(0)
        self.path = self.device.path(self.host, is_batched=is_batched)
        ends = self.device.ends(self.host)
        self.mover = CudaMover(ends, self.memory, self.path, self.checksums, self.woken.release)
        self.numbers = iter(range(10**9))

    @property
    def blocks(self) -> Blocks:
        return self.device.blocks

    def jobs(self, kind: TransferKind, pairs: Iterable[tuple[int, int]]) -> list[TransferJob]:
        """Moves from source to target."""
        return [
            TransferJob(TransferId(next(self.numbers)), kind, BlockId(source), BlockId(target), label(index))
            for index, (source, target) in enumerate(pairs)
        ]

    def finish(self, jobs: Sequence[TransferJob]) -> list[TransferOutcome]:
        """Carry these out, one way or the other; how each ended."""
        self.mover.submit(jobs)
        with self.device.running():
            return self.await_ends(jobs)

    def await_ends(self, jobs: Sequence[TransferJob]) -> list[TransferOutcome]:
        ended: list[TransferResult] = []
        while len(ended) < len(jobs):
            self.mover.wait(PATIENCE_S)
            fresh = self.mover.poll()
            assert fresh, "nothing ended"
            ended += fresh
        outcomes = {result.transfer_id: result.outcome for result in ended}
        assert len(outcomes) == len(ended) == len(jobs), "a move is told of twice"
        return [outcomes[job.transfer_id] for job in jobs]

    def settle(self) -> None:
        """Carry out what may be, and let the watching threads see it."""
        self.device.finish()
        for direction in self.mover._directions.values():
            while any(batch.ended.over and batch.seen_at is None for batch in list(direction._under_way)):  # type: ignore[attr-defined]
                threading.Event().wait(0.0005)

    def close(self) -> None:
        with self.device.running():
            self.mover.close()
        self.memory.close()
        assert self.device.pinning.chunks == {} or self.device.is_lost


@contextmanager
def bench(**options: object) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_pool, "_CHUNK_BYTES", SLOTS_PER_CHUNK * BLOCK_BYTES)
        made = Bench(**options)  # type: ignore[arg-type]
    assert made.memory.blocks_per_chunk == SLOTS_PER_CHUNK
    try:
        yield made
    finally:
        made.close()


def label(index: int) -> BlockLabel:
    return BlockLabel(BlockHash(index.to_bytes(16, "little")), depth=index)


def ids(results: Iterable[TransferResult]) -> list[int]:
    return [int(result.transfer_id) for result in results]


# ---- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize("count", [1, 7, 32])
def test_blocks_come_back_byte_for_byte(is_batched: bool, verified: bool, count: int) -> None:
    with bench(is_batched=is_batched, verified=verified) as b:
        original = b.blocks.copy()
        slots = random.Random(count).sample(range(32), count)
        assert b.finish(b.jobs(OUT, enumerate(slots))) == [DONE] * count
        np.testing.assert_array_equal(b.host[slots], original[:count])
        b.blocks[:] = 0
        assert b.finish(b.jobs(IN, ((slot, 31 - i) for i, slot in enumerate(slots)))) == [DONE] * count
        np.testing.assert_array_equal(b.blocks[::-1][:count], original[:count])
        assert not b.blocks[: 32 - count].any()
        assert bool(b.device.calls["batch"]) == is_batched
        assert bool(b.device.calls["copy"]) != is_batched


def test_neighbours_go_in_one_copy_but_none_over_two_registrations() -> None:
    with bench(is_batched=False) as b:
        assert b.finish(b.jobs(OUT, ((i, i) for i in range(32)))) == [DONE] * 32
        assert b.device.calls["copy"] == 32 // SLOTS_PER_CHUNK


def test_blocks_go_down_to_disk_and_come_back(tmp_path: Path) -> None:
    with bench(verified=True) as b, b.device.running():
        store = DiskStore(tmp_path, 2**20, BLOCK_BYTES, b"f" * 16)
        disk = disk_mover(store, b.host, b.checksums, lambda: None)
        kinds = {OUT: b.mover, IN: b.mover, TransferKind.DEMOTE: disk, TransferKind.PROMOTE: disk}
        transfers = TransferEngine(kinds, BLOCK_BYTES, time.perf_counter)
        original, slots, back = (
            b.blocks.copy(),
            list(range(31, -1, -1)),
            random.Random(1).sample(range(32), 32),
        )
        way = (
            (OUT, range(32), slots, b.blocks),
            (TransferKind.DEMOTE, slots, range(32), b.host),
            (TransferKind.PROMOTE, range(32), back, None),
            (IN, back, range(32), None),
        )
        for kind, sources, targets, left in way:
            transfers.submit(b.jobs(kind, zip(sources, targets, strict=True)))
            results = transfers.drain(PATIENCE_S)
            assert [result.outcome for result in results] == [DONE] * 32
            if left is not None:
                left[:] = 0
        np.testing.assert_array_equal(b.blocks, original)
        disk.close()
        store.close()


# ---- order ---------------------------------------------------------------------------------------


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


# ---- failures ------------------------------------------------------------------------------------


def test_of_copies_made_singly_only_those_fail_whose_calls_fail(caplog: pytest.LogCaptureFixture) -> None:
    with bench(is_batched=False) as b:
        b.device.failing_copies = {1, 2}
        before = b.host.copy()
        jobs = b.jobs(OUT, [(0, 0), (1, 2), (2, 3), (3, 5), (9, 8)])  # runs: 0, 2-3, 5, 8
        assert b.finish(jobs) == [DONE, FAILED, FAILED, FAILED, DONE]
        np.testing.assert_array_equal(b.host[[0, 8]], b.blocks[[0, 9]])
        np.testing.assert_array_equal(b.host[[2, 3, 5]], before[[2, 3, 5]])
        assert b.finish(b.jobs(OUT, [(1, 2)])) == [DONE]
    assert "copy 1 fails" in caplog.text


def test_a_batch_that_is_refused_is_copied_singly_and_after_three_all_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with bench() as b:
        b.device.refuses_batches = True
        for kind in (OUT, IN, OUT, OUT, IN, IN, OUT, IN):
            jobs = b.jobs(kind, ((i, 31 - 2 * i) for i in range(8)))
            assert b.finish(jobs) == [DONE] * 8
            a, c = (b.blocks, b.host) if kind is OUT else (b.host, b.blocks)
            np.testing.assert_array_equal(c[[31 - 2 * i for i in range(8)]], a[:8])
        assert b.device.calls["batch"] == 2 * 3
    assert caplog.text.count("one run at a time from now on") == 2


def test_one_refused_batch_does_not_end_batches() -> None:
    with bench() as b:
        b.device.refuses_batches = True
        assert b.finish(b.jobs(OUT, [(0, 0)])) == [DONE]
        b.device.refuses_batches = False
        for _ in range(5):
            assert b.finish(b.jobs(OUT, [(0, 0)])) == [DONE]
        assert (b.device.calls["batch"], b.device.calls["copy"]) == (6, 1)


@pytest.mark.parametrize("failing_record", [0, 1])
def test_what_cannot_be_watched_fails_once_nothing_of_it_is_under_way(failing_record: int) -> None:
    with bench() as b:
        b.device.failing_records = {failing_record}
        b.device.compute.enqueue(lambda: None)
        jobs = b.jobs(OUT, [(0, 0), (1, 1)])
        with b.device.running():  # submitting waits for what was begun
            b.mover.submit(jobs)
        assert b.device.num_pending == 0
        assert b.woken.acquire(timeout=PATIENCE_S)
        assert b.await_ends(jobs) == [FAILED, FAILED]
        assert b.finish(b.jobs(OUT, [(0, 0)])) == [DONE]


def test_a_device_that_is_lost_fails_everything_once_and_hangs_nobody() -> None:
    before = {thread.name for thread in threading.enumerate()}
    with bench() as b:
        early = b.jobs(OUT, [(0, 0), (1, 1)]) + b.jobs(IN, [(2, 2)])
        b.mover.submit(early)
        b.device.lose()
        late = b.jobs(IN, [(3, 3)])
        b.mover.submit(late)
        assert b.await_ends(early + late) == [FAILED] * 4
        assert b.mover.poll() == []
    assert {thread.name for thread in threading.enumerate()} == before


def test_memory_that_is_not_pinned_is_copied_singly() -> None:
    with bench(pinning=FakePinning(fails_at=2)) as b:
        assert b.memory.num_pinned == 2 * SLOTS_PER_CHUNK
        for kind in (OUT, IN):
            assert b.finish(b.jobs(kind, ((i, i) for i in range(0, 32, 3)))) == [DONE] * 11
        assert b.device.calls["batch"] == 2  # of 6 copies each
        assert b.device.calls["copy"] == 2 * 5
        np.testing.assert_array_equal(b.host[::3], b.blocks[::3])


# ---- checksums -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("verified", "outcome"), [(False, DONE), (True, CORRUPT)])
def test_damage_in_host_memory_is_found(verified: bool, outcome: TransferOutcome) -> None:
    with bench(verified=verified) as b:
        assert b.finish(b.jobs(OUT, ((i, i + 8) for i in range(6)))) == [DONE] * 6
        b.host[10, 77] ^= 4
        assert b.finish(b.jobs(IN, ((i + 8, i) for i in range(6)))) == [DONE, DONE, outcome, DONE, DONE, DONE]


def test_sums_are_those_of_what_came_and_cost_the_step_thread_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summing: set[str] = set()

    def noting(block: Blocks) -> bytes:
        summing.add(threading.current_thread().name)
        return checksum(block)

    monkeypatch.setattr(cuda, "checksum", noting)
    monkeypatch.setattr("tiering.movers.checksums.checksum", noting)
    with bench(verified=True) as b:
        summing.clear()
        assert b.finish(b.jobs(OUT, [(3, 9)])) == [DONE]
        assert b.checksums is not None
        assert b.finish(b.jobs(IN, [(9, 4)])) == [DONE]
        assert summing == {"kv-watch-out", "kv-watch-in"}
        assert b.checksums.agrees(9, b.blocks[3])


def test_a_failed_copy_leaves_no_sum_of_what_never_came() -> None:
    with bench(verified=True, is_batched=False) as b:
        b.device.failing_copies = {0}
        assert b.checksums is not None
        b.checksums.note(9, b"of what was there")
        assert b.finish(b.jobs(OUT, [(3, 9)])) == [FAILED]
        assert not b.checksums.agrees(9, b.host[9])


# ---- bounds, waiting, ends -----------------------------------------------------------------------


def test_what_is_beyond_the_bound_waits_in_order_and_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda, "_MAX_UNDER_WAY", 4)
    monkeypatch.setattr(cuda, "_BATCH_BYTES", 2 * BLOCK_BYTES)
    with bench() as b:
        jobs = b.jobs(OUT, ((i, i) for i in range(12)))
        b.mover.submit(jobs)
        assert b.device.calls["batch"] == 2
        assert not b.mover.cancel(jobs[3].transfer_id)
        assert b.mover.cancel(jobs[4].transfer_id)
        assert not b.mover.cancel(jobs[4].transfer_id)
        assert b.mover.cancel(jobs[11].transfer_id)
        ended: list[int] = []
        while len(ended) < 10:
            b.settle()
            ended += ids(b.mover.poll())
        assert ended == [int(job.transfer_id) for i, job in enumerate(jobs) if i not in (4, 11)]
        assert b.device.calls["batch"] == 5
        b.settle()
        assert b.mover.poll() == []


def test_a_submit_has_bounded_work_however_small_blocks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(num_blocks=3000, num_slots=3000) as b:
        scattered = random.Random(0).sample(range(3000), 3000)
        b.mover.submit(b.jobs(OUT, enumerate(scattered)))
        assert b.device.calls["batch"] == 1024 // 256
        before = b.device.calls["record"]
        assert b.mover.poll() == []
        assert b.device.calls["record"] == before


def test_waiting_ends_when_something_has_ended_when_nothing_is_under_way_and_when_time_is_up() -> None:
    with bench() as b:
        b.mover.wait(10 * PATIENCE_S)
        jobs = b.jobs(OUT, [(0, 0)])
        b.mover.submit(jobs)
        b.mover.wait(0.0)
        b.mover.wait(0.001)
        assert b.mover.poll() == []
        later = threading.Timer(0.02, b.device.finish)
        later.start()
        b.mover.wait(10 * PATIENCE_S)
        assert len(b.mover.poll()) == 1
        b.mover.wait(10 * PATIENCE_S)
        later.join()


@pytest.mark.parametrize("verified", [False, True])
def test_who_is_woken_finds_what_has_ended(verified: bool) -> None:
    with bench(verified=verified) as b, b.device.running():
        for number in range(20):
            b.mover.submit(b.jobs((OUT, IN)[number % 2], [(1, 1)]))
            ended: list[TransferResult] = []
            while not ended:
                assert b.woken.acquire(timeout=PATIENCE_S)
                ended = b.mover.poll()
            assert len(ended) == 1


def test_closing_lets_copies_end_and_drops_what_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_MAX_UNDER_WAY", 1)
    monkeypatch.setattr(cuda, "_BATCH_BYTES", BLOCK_BYTES)
    before = {thread.name for thread in threading.enumerate()}
    with bench() as b:
        assert {thread.name for thread in threading.enumerate()} - before == {"kv-watch-out", "kv-watch-in"}
        host = b.host.copy()
        b.mover.submit(b.jobs(OUT, [(0, 0), (1, 1)]))
        closer = threading.Thread(target=b.mover.close)
        closer.start()
        closer.join(0.05)
        assert closer.is_alive(), "close did not wait for the copy under way"
        b.device.finish()
        closer.join(PATIENCE_S)
        np.testing.assert_array_equal(b.host[0], b.blocks[0])
        np.testing.assert_array_equal(b.host[1:], host[1:])
    assert {thread.name for thread in threading.enumerate()} == before


def test_what_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(cuda, "_CLOSE_TIMEOUT_S", 0.01)
    with bench() as b:
        b.mover.submit(b.jobs(OUT, [(0, 0)]))
        b.mover.close()
        assert "left behind" in caplog.text
        b.device.finish()


@pytest.mark.parametrize("verified", [False, True])
def test_events_are_used_again_once_nobody_asks_them(verified: bool) -> None:
    with bench(verified=verified) as b:
        for _ in range(50):
            b.mover.submit(b.jobs(OUT, [(0, 0)]) + b.jobs(IN, [(1, 1)]))
            b.settle()
            assert len(b.mover.poll()) == 2
        assert b.device.num_events == 4


def test_events_are_kept_while_their_thread_may_ask_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, wait = threading.Event(), FakeEvent.wait

    def come_late(event: FakeEvent) -> None:
        gate.wait(PATIENCE_S)
        wait(event)

    monkeypatch.setattr(FakeEvent, "wait", come_late)
    with bench() as b:
        for _ in range(10):
            b.mover.submit(b.jobs(OUT, [(0, 0)]))
            b.device.finish()
            assert len(b.mover.poll()) == 1
        assert b.device.num_events == 20
        gate.set()


def test_times_are_the_devices_and_shared_by_a_batch() -> None:
    with bench() as b:
        b.mover.submit(b.jobs(OUT, [(0, 0), (5, 9), (7, 20)]))
        b.settle()
        results = b.mover.poll()
        assert len({result.copy_s for result in results}) == 1
        assert results[0].copy_s * 3 == pytest.approx(6e-6, abs=2e-6)  # three copies in halves, a tick each
        assert all(result.queue_s > 0 and result.cpu_s == 0 for result in results)


# ---- the choice of a path ------------------------------------------------------------------------


def rotated(copies: CopyList) -> CopyList:
    return CopyList(np.roll(copies.device, 1), copies.host, copies.sizes)


def short(copies: CopyList) -> CopyList:
    return CopyList(copies.device, copies.host, copies.sizes - np.uint64(1))


def without_last(copies: CopyList) -> CopyList:
    return CopyList(copies.device[:-1], copies.host[:-1], copies.sizes[:-1])


def all_to_one(copies: CopyList) -> CopyList:
    return CopyList(copies.device, np.full_like(copies.host, copies.host[0]), copies.sizes)


def nothing(copies: CopyList) -> CopyList:
    return CopyList(copies.device[:0], copies.host[:0], copies.sizes[:0])


LIES = [rotated, short, without_last, all_to_one, nothing]


def choose(b: Bench, num_slots: int | None = None) -> tuple[str, str]:
    paths = [
        b.device.path(b.host, is_batched=True, name="batches"),
        b.device.path(b.host, is_batched=False, name="singly"),
    ]
    with b.device.running():
        chosen = choose_path(paths, b.device.ends(b.host), len(b.blocks), b.host[:num_slots])
    return chosen.path.name, chosen.description


@pytest.mark.parametrize(("num_blocks", "num_slots"), [(32, 32), (1, 1), (3, 32), (32, 1), (500, 40)])
def test_batches_that_copy_truly_are_taken_and_the_link_is_measured(num_blocks: int, num_slots: int) -> None:
    with bench(num_blocks=num_blocks, num_slots=num_slots) as b:
        name, description = choose(b)
        assert name == "batches"
        assert description.startswith("batches, ") and description.count("GB/s") == 2


@pytest.mark.parametrize("kind", [OUT, IN])
@pytest.mark.parametrize("lie", LIES)
def test_batches_that_lie_either_way_are_not_taken(
    kind: TransferKind, lie: Callable[[CopyList], CopyList], caplog: pytest.LogCaptureFixture
) -> None:
    with bench() as b:
        b.device.lies = {(kind, True): lie}
        assert choose(b)[0] == "singly"
    assert "not moved by batches: blocks came back changed" in caplog.text


@pytest.mark.parametrize("lie", [rotated, without_last])
def test_lies_that_undo_each_other_are_found_too(lie: Callable[[CopyList], CopyList]) -> None:
    with bench() as b:
        b.device.lies = {(IN, True): lie, (OUT, True): lie}
        assert choose(b)[0] == "singly"


def test_batches_that_are_refused_are_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    with bench() as b:
        b.device.refuses_batches = True
        assert choose(b)[0] == "singly"
    assert "CUDA_ERROR_NOT_SUPPORTED" in caplog.text


def test_a_link_that_does_nothing_right_is_an_error() -> None:
    with bench() as b:
        b.device.lies = {(kind, batch): nothing for kind in (OUT, IN) for batch in (False, True)}
        with pytest.raises(CopyError, match=r"no way to copy blocks .* singly: blocks came back changed"):
            choose(b)


def test_a_device_that_is_lost_meanwhile_is_told_as_such() -> None:
    with bench() as b:
        b.device.lose()
        with pytest.raises(DeviceLostError):
            choose(b)
