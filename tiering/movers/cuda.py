"""Copies between HBM and pinned host memory: one stream a direction, events, no thread that copies.

Runs on: step thread enqueues and asks events; the thread ``kv-copy-watch`` waits for the newest event of
a batch, to wake a step thread that waits. Order: a copy begins after the compute that was enqueued before
it (``wait_stream``): so a store reads what that step wrote, and a load overwrites nothing that it reads.
A loaded block is used only after ``poll`` has seen its event, so compute waits for no copy. Neighbouring
blocks go in one copy. Nothing can be cancelled once submitted.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from tiering.types import TransferId, TransferJob, TransferKind, TransferOutcome, TransferResult

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Jobs of one direction that were enqueued together."""

    jobs: tuple[TransferJob, ...]
    started: torch.cuda.Event
    ended: torch.cuda.Event
    submitted_at: float


class CudaMover:
    """A mover between ``device`` ``[N, ...]`` on a GPU and ``host`` ``[M, ...]`` of one block shape."""

    parallelism = 1

    def __init__(
        self, device: torch.Tensor, host: torch.Tensor, blocks_per_chunk: int, on_done: Callable[[], None]
    ) -> None:
        assert device.is_cuda and not host.is_cuda and device.shape[1:] == host.shape[1:]
        self._device = device
        self._host = host
        self._blocks_per_chunk = blocks_per_chunk
        self._on_done = on_done
        self._failed: list[TransferResult] = []
        self._streams = {
            TransferKind.SWAP_IN: torch.cuda.Stream(device.device, priority=-1),
            TransferKind.SWAP_OUT: torch.cuda.Stream(device.device),
        }
        self._batches: dict[TransferKind, deque[_Batch]] = {kind: deque() for kind in self._streams}
        self._watched: queue.SimpleQueue[torch.cuda.Event | None] = queue.SimpleQueue()
        self._watch = threading.Thread(target=self._watch_events, name="kv-copy-watch", daemon=True)
        self._watch.start()

    def submit(self, jobs: Sequence[TransferJob]) -> None:
        for kind in self._streams:
            mine = tuple(job for job in jobs if job.kind is kind)
            if mine:
                self._try_enqueue(kind, mine)

    def cancel(self, transfer_id: TransferId) -> bool:
        return False

    def poll(self) -> list[TransferResult]:
        ended, self._failed = self._failed, []
        for batches in self._batches.values():
            while batches and batches[0].ended.query():
                ended += _results(batches.popleft())
        return ended

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            pending = [batches[0] for batches in self._batches.values() if batches]
            if not pending or any(batch.ended.query() for batch in pending):
                return
            time.sleep(0.0005)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.synchronize()
        self._watched.put(None)
        self._watch.join()

    def _try_enqueue(self, kind: TransferKind, jobs: tuple[TransferJob, ...]) -> None:
        try:
            self._enqueue(kind, jobs)
        except RuntimeError as error:  # as torch's CUDA errors are; the batch fails, not the engine
            logger.error("%d moves (%s) failed: %s", len(jobs), kind, error)
            torch.cuda.synchronize(self._device.device)  # some may have been enqueued
            self._failed += [TransferResult(job.transfer_id, TransferOutcome.FAILED) for job in jobs]
            self._on_done()

    def _enqueue(self, kind: TransferKind, jobs: tuple[TransferJob, ...]) -> None:
        stream = self._streams[kind]
        stream.wait_stream(torch.cuda.current_stream(self._device.device))
        started = torch.cuda.Event(enable_timing=True)
        ended = torch.cuda.Event(enable_timing=True, blocking=True)
        with torch.cuda.stream(stream):
            started.record(stream)
            host_first = "target" if kind is TransferKind.SWAP_OUT else "source"
            for source, target, count in _runs(jobs, host_first, self._blocks_per_chunk):
                if kind is TransferKind.SWAP_OUT:
                    outward = self._device[source : source + count]
                    self._host[target : target + count].copy_(outward, non_blocking=True)
                else:
                    inward = self._host[source : source + count]
                    self._device[target : target + count].copy_(inward, non_blocking=True)
            ended.record(stream)
        self._batches[kind].append(_Batch(jobs, started, ended, time.perf_counter()))
        self._watched.put(ended)

    def _watch_events(self) -> None:
        while (event := self._watched.get()) is not None:
            event.synchronize()
            self._on_done()


def _results(batch: _Batch) -> Iterator[TransferResult]:
    per_block_s = batch.started.elapsed_time(batch.ended) / 1000 / len(batch.jobs)
    queue_s = max(0.0, time.perf_counter() - batch.submitted_at - per_block_s * len(batch.jobs))
    for job in batch.jobs:
        yield TransferResult(job.transfer_id, TransferOutcome.DONE, per_block_s, queue_s)


def _runs(
    jobs: Sequence[TransferJob], host_end: str, blocks_per_chunk: int
) -> Iterator[tuple[int, int, int]]:
    """(source, target, count) of stretches that are neighbours on both sides.

    None goes over the end of a chunk of host memory, since each chunk is registered by itself.
    """
    source, target, count = jobs[0].source, jobs[0].target, 1
    for job in jobs[1:]:
        starts_chunk = (job.target if host_end == "target" else job.source) % blocks_per_chunk == 0
        if job.source == source + count and job.target == target + count and not starts_chunk:
            count += 1
            continue
        yield source, target, count
        source, target, count = job.source, job.target, 1
    yield source, target, count
