"""Movers that copy real bytes on threads, the mover in simulated time, and the memory of the host tier."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tiering.memory import host_pool
from tiering.memory.host_pool import HostPool
from tiering.movers import thread as thread_module
from tiering.movers.base import FakeMover, Mischief, WorkerMover
from tiering.movers.checksums import HostChecksums, checksum
from tiering.movers.disk import DISK_THREADS, disk_mover
from tiering.movers.disk_store import DiskStore
from tiering.movers.thread import thread_mover
from tiering.movers.virtual import VirtualMover
from tiering.transfers import Mover, TransferEngine
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

Blocks = npt.NDArray[np.uint8]
OUT, IN, DEMOTE, PROMOTE = (
    TransferKind.SWAP_OUT,
    TransferKind.SWAP_IN,
    TransferKind.DEMOTE,
    TransferKind.PROMOTE,
)
DONE, FAILED, CORRUPT = TransferOutcome.DONE, TransferOutcome.FAILED, TransferOutcome.CORRUPT
PATIENCE_S = 60  # how long a test waits for what must happen; no test passes by its end
ROOT = Path(__file__).parent.parent


def job(number: int, kind: TransferKind, source: int = 0, target: int = 0) -> TransferJob:
    return TransferJob(TransferId(number), kind, BlockId(source), BlockId(target), label(number))


def label(number: int) -> BlockLabel:
    return BlockLabel(BlockHash(number.to_bytes(16, "little")), depth=number)


def ids(results: Iterable[TransferResult]) -> list[int]:
    return [int(result.transfer_id) for result in results]


def no_op() -> None:
    pass


def finish(mover: Mover, jobs: list[TransferJob]) -> dict[int, TransferOutcome]:
    """Carry these out, and how each ended."""
    mover.submit(jobs)
    ended: list[TransferResult] = []
    while len(ended) < len(jobs):
        mover.wait(PATIENCE_S)
        fresh = mover.poll()
        assert fresh, "nothing ended"
        ended += fresh
    assert sorted(ids(ended)) == sorted(int(job.transfer_id) for job in jobs)
    return {int(result.transfer_id): result.outcome for result in ended}


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@contextmanager
def closing(mover: WorkerMover) -> Iterator[WorkerMover]:
    try:
        yield mover
    finally:
        mover.close()


class GatedCopy:
    """A copy that begins only as ``let`` allows it; ``begun`` is in the order of beginning."""

    def __init__(self, outcome: TransferOutcome = DONE) -> None:
        self.begun: list[int] = []
        self.num_begun = threading.Semaphore(0)
        self._allowed = threading.Semaphore(0)
        self._outcome = outcome

    def __call__(self, job: TransferJob) -> TransferOutcome:
        self.begun.append(int(job.transfer_id))
        self.num_begun.release()
        assert self._allowed.acquire(timeout=PATIENCE_S)
        return self._outcome

    def await_begun(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.num_begun.acquire(timeout=PATIENCE_S)

    def let(self, count: int = 1) -> None:
        self._allowed.release(count)


# ---- worker threads ------------------------------------------------------------------------------


def test_loads_begin_before_stores_when_both_wait() -> None:
    gate = GatedCopy()
    with closing(WorkerMover("test", 1, gate, no_op)) as mover:
        mover.submit([job(0, OUT)])
        gate.await_begun()
        mover.submit([job(1, OUT), job(2, IN), job(3, DEMOTE), job(4, PROMOTE)])
        mover.submit([job(5, IN)])
        gate.let(6)
        gate.await_begun(5)
    assert gate.begun == [0, 2, 4, 5, 1, 3]


def test_as_many_moves_go_on_at_a_time_as_there_are_threads() -> None:
    barrier = threading.Barrier(3, timeout=PATIENCE_S)

    def meet(_: TransferJob) -> TransferOutcome:
        barrier.wait()
        return DONE

    with closing(WorkerMover("test", 3, meet, no_op)) as mover:
        assert mover.parallelism == 3
        assert set(finish(mover, [job(i, OUT) for i in range(9)]).values()) == {DONE}


def test_threads_are_named_and_gone_after_close() -> None:
    before = thread_names()
    mover = WorkerMover("kv-test", 3, lambda _: DONE, no_op)
    assert thread_names() - before == {"kv-test-0", "kv-test-1", "kv-test-2"}
    finish(mover, [job(i, IN) for i in range(20)])
    mover.close()
    assert thread_names() == before
    mover.close()


def test_an_exception_fails_one_move_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    def copy(job: TransferJob) -> TransferOutcome:
        if job.transfer_id == 2:
            raise OSError("no such luck")
        return CORRUPT if job.transfer_id == 3 else DONE

    before = thread_names()
    with closing(WorkerMover("test", 2, copy, no_op)) as mover:
        outcomes = finish(mover, [job(i, OUT, source=i) for i in range(6)])
        assert len(thread_names() - before) == 2
    assert outcomes == {0: DONE, 1: DONE, 2: FAILED, 3: CORRUPT, 4: DONE, 5: DONE}
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "swap_out of block 2" in caplog.text and "no such luck" in caplog.text


def test_cancel_stops_what_waits_and_nothing_else() -> None:
    gate = GatedCopy()
    with closing(WorkerMover("test", 1, gate, no_op)) as mover:
        mover.submit([job(0, OUT)])
        gate.await_begun()
        mover.submit([job(i, kind) for i, kind in enumerate((OUT, IN, OUT, IN), start=1)])
        assert not mover.cancel(TransferId(0))
        assert not mover.cancel(TransferId(99))
        assert mover.cancel(TransferId(1))
        assert mover.cancel(TransferId(4))
        assert not mover.cancel(TransferId(4))
        gate.let(3)
        ended: list[int] = []
        while len(ended) < 3:
            mover.wait(PATIENCE_S)
            ended += ids(mover.poll())
        assert not mover.cancel(TransferId(2))
        mover.wait(PATIENCE_S)
        assert mover.poll() == []
    assert ended == gate.begun == [0, 2, 3]


def test_wait_returns_when_nothing_is_under_way_when_something_ended_and_when_time_is_up() -> None:
    gate = GatedCopy()
    with closing(WorkerMover("test", 1, gate, no_op)) as mover:
        mover.wait(10 * PATIENCE_S)
        mover.submit([job(1, IN), job(2, IN)])
        mover.wait(0.0)
        mover.wait(0.001)
        assert mover.poll() == []
        gate.let()
        mover.wait(10 * PATIENCE_S)
        mover.wait(10 * PATIENCE_S)  # what has ended and was not taken counts
        assert ids(mover.poll()) == [1]
        gate.let()
        mover.wait(10 * PATIENCE_S)
        assert ids(mover.poll()) == [2]


def test_close_lets_what_is_under_way_end_and_drops_the_rest() -> None:
    gate = GatedCopy()
    before = thread_names()
    mover = WorkerMover("test", 2, gate, no_op)
    mover.submit([job(i, OUT if i % 2 else IN) for i in range(10)])
    gate.await_begun(2)
    closer = threading.Thread(target=mover.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive(), "close did not wait for the copies under way"
    gate.let(2)
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert thread_names() == before
    assert sorted(ids(mover.poll())) == sorted(gate.begun)
    assert len(gate.begun) == 2
    mover.wait(10 * PATIENCE_S)


def test_on_done_is_called_on_a_worker_after_each_result_is_there() -> None:
    callers: list[str] = []
    seen: list[TransferResult] = []
    done = threading.Semaphore(0)

    def on_done() -> None:
        callers.append(threading.current_thread().name)
        seen.extend(mover.poll())
        done.release()

    def copy(job: TransferJob) -> TransferOutcome:
        if job.transfer_id == 1:
            raise RuntimeError("broken")
        return DONE

    mover = WorkerMover("test", 1, copy, on_done)
    for number in range(3):
        mover.submit([job(number, OUT)])
        assert done.acquire(timeout=PATIENCE_S)
        assert ids(seen) == list(range(number + 1))
    mover.close()
    assert callers == ["test-0"] * 3


def test_times_tell_the_copy_from_the_wait_before_it() -> None:
    gate = GatedCopy()
    with closing(WorkerMover("test", 1, gate, no_op)) as mover:
        mover.submit([job(0, OUT), job(1, OUT)])
        gate.await_begun()
        threading.Event().wait(0.02)
        gate.let(2)
        gate.await_begun()
        mover.wait(PATIENCE_S)
        ended = mover.poll()
        while len(ended) < 2:
            mover.wait(PATIENCE_S)
            ended += mover.poll()
    first, second = ended
    assert all(part >= 0 for result in ended for part in (result.copy_s, result.queue_s, result.cpu_s))
    assert second.queue_s >= first.copy_s
    assert first.cpu_s < first.copy_s  # it slept


def test_many_moves_on_many_threads_end_once_each() -> None:
    random_sleep = random.Random(1)

    def copy(job: TransferJob) -> TransferOutcome:
        threading.Event().wait(random_sleep.random() / 2000)
        return DONE

    with closing(WorkerMover("test", 4, copy, no_op)) as mover:
        mover.submit([job(i, (OUT, IN)[i % 2]) for i in range(400)])
        stopped = {i for i in range(100, 400, 3) if mover.cancel(TransferId(i))}
        assert stopped
        ended: list[int] = []
        while len(ended) < 400 - len(stopped):
            mover.wait(PATIENCE_S)
            ended += ids(mover.poll())
        assert sorted(ended) == sorted(set(range(400)) - stopped)


# ---- device and host, both in RAM ----------------------------------------------------------------


def random_blocks(num_blocks: int, block_bytes: int, seed: int = 0) -> Blocks:
    return np.random.default_rng(seed).integers(0, 256, (num_blocks, block_bytes), dtype=np.uint8)


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("block_bytes", [1, 1000, 4096, 100_000])
def test_blocks_come_back_from_host_byte_for_byte(verified: bool, block_bytes: int) -> None:
    device, host = random_blocks(8, block_bytes), random_blocks(12, block_bytes, seed=1)
    original = device.copy()
    checksums = HostChecksums(12) if verified else None
    with closing(thread_mover(device, host, checksums, no_op)) as mover:
        slots = [7, 3, 11, 0, 5, 1, 10, 2]
        outward = [job(i, OUT, source=i, target=slot) for i, slot in enumerate(slots)]
        assert set(finish(mover, outward).values()) == {DONE}
        np.testing.assert_array_equal(host[slots], original)
        np.testing.assert_array_equal(device, original)
        device[:] = 0
        inward = [job(i, IN, source=slot, target=7 - i) for i, slot in enumerate(slots)]
        assert set(finish(mover, inward).values()) == {DONE}
    np.testing.assert_array_equal(device[::-1], original)


@pytest.mark.parametrize("verified", [False, True])
def test_random_moves_agree_with_plain_assignments(verified: bool) -> None:
    rng = random.Random(7)
    device, host = random_blocks(6, 500), random_blocks(6, 500, seed=1)
    checksums = HostChecksums(6) if verified else None
    if checksums is not None:
        for slot in range(6):
            checksums.note(slot, checksum(host[slot]))
    expected = {OUT: device.copy(), IN: host.copy()}  # by what a kind reads
    with closing(thread_mover(device, host, checksums, no_op)) as mover:
        for number in range(200):
            kind, source, target = rng.choice((OUT, IN)), rng.randrange(6), rng.randrange(6)
            assert finish(mover, [job(number, kind, source, target)]) == {number: DONE}
            expected[IN if kind is OUT else OUT][target] = expected[kind][source]
    np.testing.assert_array_equal(device, expected[OUT])
    np.testing.assert_array_equal(host, expected[IN])


@pytest.mark.parametrize(("verified", "outcome"), [(False, DONE), (True, CORRUPT)])
def test_a_source_that_changes_under_the_copy_is_found(
    verified: bool, outcome: TransferOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, host = random_blocks(2, 64), random_blocks(2, 64, seed=1)
    copyto = np.copyto

    def changing_copyto(target: Blocks, source: Blocks) -> None:
        device[0, 13] ^= 1
        copyto(target, source)

    monkeypatch.setattr(thread_module.np, "copyto", changing_copyto)
    checksums = HostChecksums(2) if verified else None
    with closing(thread_mover(device, host, checksums, no_op)) as mover:
        assert finish(mover, [job(0, OUT, source=0, target=0)]) == {0: outcome}
        monkeypatch.undo()
        assert finish(mover, [job(1, OUT, source=1, target=1)]) == {1: DONE}
        assert finish(mover, [job(2, IN, source=1, target=1)]) == {2: DONE}
        if verified:  # what was put into slot 0 is not what it should be, so nobody gets it from there
            assert finish(mover, [job(3, IN, source=0, target=0)]) == {3: CORRUPT}


@pytest.mark.parametrize("place", [0, 31, 63])
def test_a_damaged_host_slot_is_found(place: int) -> None:
    device, host = random_blocks(4, 64), random_blocks(4, 64, seed=1)
    original = device.copy()
    with closing(thread_mover(device, host, HostChecksums(4), no_op)) as mover:
        finish(mover, [job(i, OUT, source=i, target=i) for i in range(4)])
        host[2, place] ^= 0x10
        outcomes = finish(mover, [job(i, IN, source=i, target=i) for i in range(4)])
        assert outcomes == {0: DONE, 1: DONE, 2: CORRUPT, 3: DONE}
        np.testing.assert_array_equal(device[[0, 1, 3]], original[[0, 1, 3]])
        assert finish(mover, [job(5, OUT, source=1, target=2)]) == {5: DONE}  # a slot can be used again
        assert finish(mover, [job(7, IN, source=2, target=3)]) == {7: DONE}
        np.testing.assert_array_equal(device[3], original[1])


def test_a_host_slot_that_nothing_was_put_into_is_not_believed() -> None:
    device, host = random_blocks(1, 64), random_blocks(1, 64, seed=1)
    with closing(thread_mover(device, host, HostChecksums(1), no_op)) as mover:
        assert finish(mover, [job(0, IN)]) == {0: CORRUPT}


# ---- host and disk -------------------------------------------------------------------------------


def open_store(directory: Path, block_bytes: int) -> DiskStore:
    return DiskStore(directory, 2**20, block_bytes, b"f" * 16)


@pytest.mark.parametrize("verified", [False, True])
def test_blocks_come_back_from_disk_byte_for_byte(verified: bool, tmp_path: Path) -> None:
    host = random_blocks(8, 5000)
    original = host.copy()
    checksums = HostChecksums(8) if verified else None
    if checksums is not None:
        for slot in range(8):
            checksums.note(slot, checksum(host[slot]))
    before = thread_names()
    store = open_store(tmp_path, 5000)
    mover = disk_mover(store, host, checksums, no_op)
    assert mover.parallelism == DISK_THREADS
    assert thread_names() - before == {f"kv-disk-{i}" for i in range(DISK_THREADS)}
    assert set(finish(mover, [job(i, DEMOTE, source=i, target=7 - i) for i in range(8)]).values()) == {DONE}
    host[:] = 0
    if checksums is not None:
        for slot in range(8):
            checksums.note(slot, b"of what was there")
    assert set(finish(mover, [job(i, PROMOTE, source=7 - i, target=i) for i in range(8)]).values()) == {DONE}
    np.testing.assert_array_equal(host, original)
    if checksums is not None:
        assert all(checksums.agrees(slot, original[slot]) for slot in range(8))
    mover.close()
    store.close()
    assert thread_names() == before


def test_a_record_under_another_name_is_corrupt_and_not_an_error(tmp_path: Path) -> None:
    host, store = random_blocks(2, 4096), open_store(tmp_path, 4096)
    with closing(disk_mover(store, host, None, no_op)) as mover:
        assert finish(mover, [job(1, DEMOTE, source=0, target=3)]) == {1: DONE}
        assert finish(mover, [job(2, PROMOTE, source=3, target=1)]) == {2: CORRUPT}
        assert finish(mover, [job(3, PROMOTE, source=4, target=1)]) == {3: CORRUPT}
        assert finish(mover, [job(1, PROMOTE, source=3, target=1)]) == {1: DONE}
    np.testing.assert_array_equal(host[1], host[0])
    store.close()


def test_a_damaged_host_slot_does_not_reach_the_disk(tmp_path: Path) -> None:
    host, store, checksums = random_blocks(2, 4096), open_store(tmp_path, 4096), HostChecksums(2)
    checksums.note(0, checksum(host[0]))
    host[0, 99] ^= 1
    with closing(disk_mover(store, host, checksums, no_op)) as mover:
        assert finish(mover, [job(1, DEMOTE, source=0, target=0)]) == {1: CORRUPT}
        assert finish(mover, [job(1, PROMOTE, source=0, target=1)]) == {1: CORRUPT}
    store.close()
    assert open_store(tmp_path, 4096).found == []


def test_a_disk_that_fails_fails_single_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host, store = random_blocks(2, 4096), open_store(tmp_path, 4096)
    write = store.write

    def failing_write(slot: int, *rest: object) -> None:
        if slot == 1:
            raise OSError(5, "Input/output error")
        write(slot, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "write", failing_write)
    with closing(disk_mover(store, host, None, no_op)) as mover:
        outcomes = finish(mover, [job(i, DEMOTE, source=0, target=i) for i in range(4)])
    assert outcomes == {0: DONE, 1: FAILED, 2: DONE, 3: DONE}
    assert "Input/output error" in caplog.text
    store.close()


# ---- simulated time ------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def virtual(clock: Clock) -> VirtualMover:
    """A copy outward takes 2 s, one inward 1 s."""
    return VirtualMover({OUT: 2.0, IN: 1.0}, clock)


def test_simulated_copies_of_a_direction_follow_one_another(virtual: VirtualMover, clock: Clock) -> None:
    assert virtual.next_end is None
    virtual.submit([job(1, OUT), job(2, OUT)])
    assert virtual.next_end == 2.0
    clock.now = 1.999
    assert virtual.poll() == []
    clock.now = 2.0
    assert virtual.poll() == [TransferResult(TransferId(1), DONE, copy_s=2.0, queue_s=0.0)]
    assert virtual.next_end == 4.0
    clock.now = 100.0
    assert virtual.poll() == [TransferResult(TransferId(2), DONE, copy_s=2.0, queue_s=2.0)]
    assert (virtual.poll(), virtual.next_end) == ([], None)


def test_a_simulated_copy_begins_no_earlier_than_it_is_submitted(virtual: VirtualMover, clock: Clock) -> None:
    virtual.submit([job(1, IN)])
    clock.now = 10.0
    virtual.poll()
    virtual.submit([job(2, IN)])
    assert virtual.next_end == 11.0
    clock.now = 10.5
    virtual.submit([job(3, IN)])
    clock.now = 12.0
    assert [(r.transfer_id, r.queue_s) for r in virtual.poll()] == [(2, 0.0), (3, 0.5)]


def test_simulated_directions_do_not_wait_for_each_other(virtual: VirtualMover, clock: Clock) -> None:
    virtual.submit([job(1, OUT), job(2, OUT), job(3, IN), job(4, IN), job(5, IN)])
    ends = []
    while (end := virtual.next_end) is not None:
        clock.now = end
        ends += [(end, int(number)) for number in sorted(ids(virtual.poll()))]
    assert ends == [(1.0, 3), (2.0, 1), (2.0, 4), (3.0, 5), (4.0, 2)]


def test_a_simulated_copy_can_be_stopped_until_it_begins(virtual: VirtualMover, clock: Clock) -> None:
    virtual.submit([job(i, OUT) for i in range(1, 5)])
    clock.now = 1.0
    assert not virtual.cancel(TransferId(1))
    assert not virtual.cancel(TransferId(99))
    assert virtual.cancel(TransferId(2))
    assert not virtual.cancel(TransferId(2))
    clock.now = 2.0
    assert ids(virtual.poll()) == [1]
    assert virtual.cancel(TransferId(3))  # it would begin just now
    assert virtual.next_end == 4.0
    clock.now = 4.0
    assert ids(virtual.poll()) == [4]
    assert not virtual.cancel(TransferId(4))


def test_a_simulated_copy_that_has_begun_behind_an_ended_one_cannot_be_stopped(
    virtual: VirtualMover, clock: Clock
) -> None:
    virtual.submit([job(1, OUT), job(2, OUT), job(3, OUT)])
    clock.now = 3.0  # the first has ended, and nobody has asked; the second is half done
    assert not virtual.cancel(TransferId(1))
    assert not virtual.cancel(TransferId(2))
    assert virtual.cancel(TransferId(3))
    clock.now = 6.0
    assert ids(virtual.poll()) == [1, 2]


def test_closing_a_simulated_mover_drops_everything(virtual: VirtualMover, clock: Clock) -> None:
    virtual.submit([job(1, OUT), job(2, IN)])
    virtual.wait(1.0)
    virtual.close()
    clock.now = 9.0
    assert (virtual.poll(), virtual.next_end) == ([], None)


def test_an_engine_runs_in_simulated_time(virtual: VirtualMover, clock: Clock) -> None:
    engine = TransferEngine({OUT: virtual, IN: virtual}, 10, clock, max_load_bytes=20, max_store_bytes=10)
    engine.submit([job(i, OUT) for i in range(5)] + [job(i, IN) for i in range(10, 16)])
    ended: list[int] = []
    while engine.num_pending:
        end = virtual.next_end
        assert end is not None
        clock.now = end
        ended += ids(engine.poll())
    assert sorted(ended) == [*range(5), *range(10, 16)]
    assert engine.totals[IN].copy_s == 6.0
    assert engine.totals[OUT].copy_s == 10.0
    assert clock.now == 14.0  # stores begin when the fifth load has ended, and the last load can begin


# ---- the scripted mover --------------------------------------------------------------------------


def test_a_held_fake_makes_no_progress() -> None:
    fake = FakeMover()
    fake.hold()
    fake.submit([job(1, OUT), job(2, IN)])
    assert fake.poll() == []
    fake.release()
    assert ids(fake.poll()) == [1, 2]
    assert fake.num_under_way == 0


def test_a_fake_fails_what_it_is_told_to_and_spoils_the_target() -> None:
    spoilt: list[int] = []
    fake = FakeMover(spoil=lambda job: spoilt.append(int(job.transfer_id)))
    fake.fail_next = 1
    fake.submit([job(1, OUT), job(2, OUT)])
    assert spoilt == [1, 2]
    assert [result.outcome for result in fake.poll()] == [FAILED, DONE]
    assert spoilt == [1, 2, 1]


def test_a_fake_copies_early_or_late_and_once_and_never_what_it_gave_up() -> None:
    copied: list[int] = []

    def copy(job: TransferJob) -> TransferOutcome:
        copied.append(int(job.transfer_id))
        return DONE

    fake = FakeMover(copy, Mischief(seed=5, max_delay_polls=3, shuffles=True))
    fake.submit([job(i, OUT) for i in range(50)])
    early = set(copied)
    assert 0 < len(early) < 50
    stopped = {i for i in range(0, 50, 2) if fake.cancel(TransferId(i))}
    assert stopped and not stopped & early
    ended: list[int] = []
    for _ in range(4):
        ended += ids(fake.poll())
    assert sorted(ended) == sorted(copied) == sorted(set(range(50)) - stopped)


# ---- memory of the host tier ---------------------------------------------------------------------

MEASURE = """
import json, resource, sys
from pathlib import Path
from tiering.memory.host_pool import HostPool

def rss_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

def peak_bytes():
    # Not getrusage: that counts what the parent had when it forked.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

def build(num_blocks, block_bytes):
    pool = HostPool(num_blocks, block_bytes, lambda: None)
    pool.wait_ready()
    assert pool.take_ready() == num_blocks
    return pool

num_blocks, block_bytes, rounds = map(int, sys.argv[1:])
build(1, 4096).close()
before = rss_bytes()
grown = []
for _ in range(rounds):
    pool = build(num_blocks, block_bytes)
    grown.append(rss_bytes() - before)
    peak = peak_bytes() - before
    pool.slots[-1, -1] = 1
    pool.close()
    del pool
print(json.dumps({"grown": grown, "left": rss_bytes() - before, "peak": peak}))
"""


def measure(num_blocks: int, block_bytes: int, rounds: int = 1) -> dict[str, object]:
    arguments = [str(number) for number in (num_blocks, block_bytes, rounds)]
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    report: dict[str, object] = json.loads(result.stdout)
    return report


@pytest.mark.parametrize(
    ("num_blocks", "block_bytes"), [(2000, 184_320), (129, 2**20), (40_000, 5000), (3, 100_000_001)]
)
def test_the_process_grows_by_the_pool_and_no_more(num_blocks: int, block_bytes: int) -> None:
    report = measure(num_blocks, block_bytes)
    pool = num_blocks * block_bytes
    assert report["grown"] == [pytest.approx(pool, rel=0.02)]
    assert report["peak"] == pytest.approx(pool, rel=0.02)


def test_pools_that_come_and_go_leave_nothing_behind() -> None:
    report = measure(512, 131_072, rounds=25)
    pool = 512 * 131_072
    assert report["grown"] == [pytest.approx(pool, rel=0.02)] * 25
    assert report["left"] == pytest.approx(0, abs=0.02 * pool)


class SteppedPinning:
    """Pins chunk by chunk as the test allows; notes what it was given."""

    def __init__(self, fails_at: int | None = None, *, keeps: bool = False) -> None:
        self.chunks: list[tuple[int, int]] = []
        self.released: list[int] = []
        self._keeps = keeps
        self.called = threading.Semaphore(0)
        self._allowed = threading.Semaphore(0)
        self._fails_at = fails_at

    def pin(self, address: int, num_bytes: int) -> None:
        self.chunks.append((address, num_bytes))
        self.called.release()
        assert self._allowed.acquire(timeout=PATIENCE_S)
        if len(self.chunks) - 1 == self._fails_at:
            raise OSError("the driver says no")

    def unpin(self, address: int) -> None:
        self.released.append(address)
        if self._keeps:
            raise OSError("the driver does not let go")

    def let(self, count: int = 1) -> None:
        self._allowed.release(count)


CHUNK_BYTES = 64 * 1024


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_pool, "_CHUNK_BYTES", CHUNK_BYTES)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("num_blocks", [1, 7, 100, 1024])
@pytest.mark.parametrize("block_bytes", [4096, 512, 1000, 4097, 12_288, 65_536, 100_000])
def test_registered_chunks_begin_on_pages_and_cover_the_pool(num_blocks: int, block_bytes: int) -> None:
    pinning = SteppedPinning()
    pinning.let(10**6)
    pool = HostPool(num_blocks, block_bytes, no_op, pinning)
    pool.wait_ready()
    assert pool.num_pinned == pool.num_ready == num_blocks
    assert pool.take_ready() == num_blocks
    assert pool.slots.shape == (num_blocks, block_bytes)
    expected = pool.slots.ctypes.data
    for address, num_bytes in pinning.chunks:
        assert address == expected
        assert address % 4096 == 0
        expected += num_bytes
    assert all(num_bytes % 4096 == 0 for _, num_bytes in pinning.chunks[:-1])
    assert expected == pool.slots.ctypes.data + num_blocks * block_bytes
    assert pinning.released == []
    pool.close()
    assert sorted(pinning.released) == [address for address, _ in pinning.chunks]
    assert pool.num_pinned == 0
    pool.slots[-1, -1] = 1  # all of it stays mapped
    pool.close()
    assert len(pinning.released) == len(pinning.chunks)


@pytest.mark.usefixtures("small_chunks")
def test_chunks_become_usable_in_order_while_others_are_still_taken() -> None:
    pinning, ready = SteppedPinning(), threading.Semaphore(0)
    pool = HostPool(100, 2048, ready.release, pinning)
    waiting = threading.Thread(target=pool.wait_some)
    waiting.start()
    num_usable = 0
    for num_fresh in (32, 32, 32, 4):
        assert pinning.called.acquire(timeout=PATIENCE_S)
        assert pool.take_ready() == 0  # a chunk is not usable before it is pinned
        assert pool.num_ready == pool.num_pinned == num_usable
        assert num_usable or waiting.is_alive()
        pinning.let()
        assert ready.acquire(timeout=PATIENCE_S)
        assert pool.take_ready() == num_fresh
        assert pool.take_ready() == 0
        num_usable += num_fresh
        pool.slots[num_usable - 1] = 7
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
    pool.wait_ready()
    assert not ready.acquire(blocking=False)
    assert list(np.flatnonzero(pool.slots.any(axis=1))) == [31, 63, 95, 99]  # none was touched afterwards


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("fails_at", [0, 2])
def test_memory_that_cannot_be_pinned_is_used_unpinned(
    fails_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    pinning, calls = SteppedPinning(fails_at), []
    pinning.let(10)
    with caplog.at_level(logging.WARNING):
        pool = HostPool(100, 4096, lambda: calls.append(None), pinning)
        pool.wait_ready()
    assert pool.num_pinned == fails_at * CHUNK_BYTES // 4096
    assert pool.take_ready() == pool.num_ready == 100
    assert len(pinning.chunks) == fails_at + 1  # and then no more
    assert len(calls) == 7
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"up to slot {pool.num_pinned} only (the driver says no)" in caplog.text
    pool.close()
    assert len(pinning.released) == fails_at


@pytest.mark.usefixtures("small_chunks")
def test_memory_that_the_driver_does_not_let_go_of_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    pinning = SteppedPinning(keeps=True)
    pinning.let(10)
    pool = HostPool(100, 4096, no_op, pinning)
    pool.wait_ready()
    pool.close()
    assert len(pinning.released) == len(pinning.chunks) == 7
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "7 chunks of host memory cannot be unpinned (the driver does not let go)" in caplog.text


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("wanted", "num_chunks"), [(0, 1), (32, 1), (33, 2), (97, 4), (10**6, 4)])
def test_as_many_slots_as_are_wanted_can_be_waited_for(wanted: int, num_chunks: int) -> None:
    pinning, ready = SteppedPinning(), threading.Semaphore(0)
    pool = HostPool(100, 2048, ready.release, pinning)
    waiting = threading.Thread(target=pool.wait_some, args=(wanted,))
    waiting.start()
    for _ in range(num_chunks):
        assert waiting.is_alive()
        pinning.let()
        assert ready.acquire(timeout=PATIENCE_S)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    pinning.let(10)
    pool.close()


def test_a_pool_without_a_gpu_is_not_pinned() -> None:
    pool = HostPool(3, 100, no_op)
    pool.wait_ready()
    assert (pool.num_pinned, pool.num_ready) == (0, 3)
    assert not pool.slots.any()
    pool.close()


@pytest.mark.usefixtures("small_chunks")
def test_closing_in_mid_fill_ends_the_thread_after_the_chunk_at_hand() -> None:
    pinning = SteppedPinning()
    pool = HostPool(1000, 4096, no_op, pinning)
    pinning.let(2)
    for _ in range(3):
        assert pinning.called.acquire(timeout=PATIENCE_S)
    assert "host-kv" in thread_names()
    closer = threading.Thread(target=pool.close)
    closer.start()
    while not pool._closing:
        closer.join(0.001)
    pinning.let(1000)
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert "host-kv" not in thread_names()
    assert len(pinning.chunks) == 3
    assert pool.take_ready() == 3 * CHUNK_BYTES // 4096
    pool.slots[-1] = 1  # all of it stays mapped
    pool.close()
