"""The mover between a GPU and host memory, driven by a device of CPU memory: bytes, bounds, waiting, ends."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.fake_cuda import FakeEvent
from tests.support.mover_bench import (
    BLOCK_BYTES,
    DONE,
    IN,
    OUT,
    PATIENCE_S,
    SLOTS_PER_CHUNK,
    bench,
    ids,
)
from tiering.movers import cuda
from tiering.movers.disk import disk_mover
from tiering.movers.disk_store import DiskStore
from tiering.transfers import TransferEngine
from tiering.types import TransferKind, TransferResult


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
