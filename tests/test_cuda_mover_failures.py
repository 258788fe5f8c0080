"""What the mover between a GPU and host memory makes of calls that fail, and of memory that is damaged."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.support.fake_cuda import FakePinning
from tests.support.mover_bench import (
    CORRUPT,
    DONE,
    FAILED,
    IN,
    OUT,
    PATIENCE_S,
    SLOTS_PER_CHUNK,
    Blocks,
    bench,
)
from tiering.movers import cuda
from tiering.movers.checksums import checksum
from tiering.types import TransferOutcome


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
