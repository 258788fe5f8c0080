"""Copies between HBM and pinned host memory: one stream a direction, events, no thread that copies.

Runs on: step thread enqueues and asks events; a thread a direction, ``kv-watch-out`` and ``kv-watch-in``,
waits for the event of each batch, verifies it where that is asked for, and wakes a step thread that waits.
Three rules order it all. A copy begins after the compute that was enqueued before it: so a store reads what
that step wrote, and a load overwrites nothing that it reads. A loaded block is used only after ``poll`` has
seen its event, so compute waits for no copy. Both ends of a move are pinned until ``poll`` has told of it,
and it tells of none that might still be under way. No torch: the streams are handed in.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest

from tiering.memory.host_pool import HostPool
from tiering.movers.checksums import HostChecksums, checksum
from tiering.movers.copy_path import CopyPath
from tiering.movers.copy_runs import CopyList, Ends, Runs, plan_runs
from tiering.movers.copy_stream import CopyError, CopyEvent, CopyStream, DeviceLostError
from tiering.movers.cuda_driver import MAX_BATCH_COPIES
from tiering.movers.failure_count import FailureCount
from tiering.types import TransferId, TransferJob, TransferKind, TransferOutcome, TransferResult

logger = logging.getLogger(__name__)

_KINDS = (TransferKind.SWAP_IN, TransferKind.SWAP_OUT)  # loads first: somebody waits for them
_BATCH_BYTES = 128 * 2**20  # that end together; 2 ms of a link of 64 GB/s, and they are told of once a step
_MAX_UNDER_WAY = 1024  # blocks of a direction on its stream; others wait here, where they can be cancelled
_MAX_REFUSALS = 3  # of batches whose copies went well one by one
_WAKE_S = 0.002
_CLOSE_TIMEOUT_S = 10.0


class CudaMover:
    """A mover between the blocks at ``ends`` on a device and the slots of ``memory``, along ``path``.

    With ``checksums`` each host slot is summed up when it was filled, and held against that after it was
    read, on the watching threads: what is found is damage in host memory, not on the link.
    ``on_done`` is called on these threads, and by ``submit`` for what could not begin. ``description`` says
    what the link is.
    """

    parallelism = 1

    def __init__(
        self,
        ends: Ends,
        memory: HostPool,
        path: CopyPath,
        checksums: HostChecksums | None,
        on_done: Callable[[], None],
        *,
        description: str = "",
    ) -> None:
        self.description = description
        self._changed = threading.Condition()
        self._directions = {
            kind: _Direction(
                kind, path.streams[kind], ends, memory, checksums, path.is_batched, self._changed, on_done
            )
            for kind in _KINDS
        }

    def submit(self, jobs: Sequence[TransferJob]) -> None:
        now = time.perf_counter()
        for kind, direction in self._directions.items():
            direction.add([job for job in jobs if job.kind is kind], now)
        self._begin()

    def cancel(self, transfer_id: TransferId) -> bool:
        return any(direction.cancel(transfer_id) for direction in self._directions.values())

    def poll(self) -> list[TransferResult]:
        directions = self._directions.values()
        ended = [result for direction in directions for result in direction.take_ended()]
        self._begin()
        return [result for direction in directions for result in direction.take_failed()] + ended

    def wait(self, timeout_s: float) -> None:
        directions = self._directions.values()
        with self._changed:
            self._changed.wait_for(
                lambda: any(d.has_results for d in directions) or not any(d.is_busy for d in directions),
                timeout_s,
            )

    def close(self) -> None:
        """Drop what has not begun, and let the rest end; what hangs is left behind."""
        for direction in self._directions.values():
            direction.close()

    def _begin(self) -> None:
        """Enqueue what may go. Directions take turns, a batch each, so that neither link stands meanwhile."""
        for _ in zip_longest(*(direction.begin() for direction in self._directions.values())):
            pass


class _Batch:
    """Moves of one direction that were enqueued together; ``started`` and ``ended`` enclose their copies.

    ``outcomes`` has those that are not DONE. ``seen_at``: when the watching thread had seen it
    end, and verified it if it has to be; None until then.
    """

    def __init__(self, jobs: Sequence[TransferJob], submitted_at: float) -> None:
        self.jobs = jobs
        self.submitted_at = submitted_at
        self.outcomes: dict[TransferId, TransferOutcome] = {}
        self.kept: CopyList | None = None  # the driver may read it until the copies have ended
        self.started: CopyEvent
        self.ended: CopyEvent
        self.verify_s = 0.0
        self.seen_at: float | None = None

    def fail(self, jobs: Sequence[TransferJob]) -> None:
        self.outcomes |= dict.fromkeys((job.transfer_id for job in jobs), TransferOutcome.FAILED)

    def results(self) -> list[TransferResult]:
        """How each ended; the time is shared out among them."""
        try:
            copy_s = self.ended.seconds_since(self.started)
        except CopyError:
            copy_s = 0.0
        seen_at = time.perf_counter() if self.seen_at is None else self.seen_at
        queue_s = max(0.0, seen_at - self.submitted_at - copy_s - self.verify_s)
        each_s, verify_s = (copy_s + self.verify_s) / len(self.jobs), self.verify_s / len(self.jobs)
        done, outcomes = TransferOutcome.DONE, self.outcomes
        return [
            TransferResult(job.transfer_id, outcomes.get(job.transfer_id, done), each_s, queue_s, verify_s)
            for job in self.jobs
        ]


class _Direction:
    """What waits, what is under way on one stream, in order, and the thread that sees it end.

    ``changed`` guards ``seen_at`` of batches; all else is the step thread's.
    """

    def __init__(
        self,
        kind: TransferKind,
        stream: CopyStream,
        ends: Ends,
        memory: HostPool,
        checksums: HostChecksums | None,
        is_batched: bool,
        changed: threading.Condition,
        on_done: Callable[[], None],
    ) -> None:
        self._kind = kind
        self._stream = stream
        self._ends = ends
        self._memory = memory
        self._checksums = checksums
        self._is_batched = is_batched
        self._changed = changed
        self._on_done = on_done
        self._jobs_per_batch = min(MAX_BATCH_COPIES, max(1, _BATCH_BYTES // ends.block_bytes))
        self._waiting: dict[TransferId, tuple[TransferJob, float]] = {}
        self._under_way: deque[_Batch] = deque()
        self._num_under_way = 0
        self._told: deque[_Batch] = deque()  # whose events the thread may still ask
        self._failed: list[TransferResult] = []
        self._num_refusals = 0
        self._failures = FailureCount()
        self._watched: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        name = "kv-watch-out" if kind is TransferKind.SWAP_OUT else "kv-watch-in"
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way or self._waiting)

    @property
    def has_results(self) -> bool:
        return bool(self._failed) or (bool(self._under_way) and self._under_way[0].seen_at is not None)

    def add(self, jobs: Sequence[TransferJob], now: float) -> None:
        self._waiting |= {job.transfer_id: (job, now) for job in jobs}

    def cancel(self, transfer_id: TransferId) -> bool:
        return self._waiting.pop(transfer_id, None) is not None

    def take_ended(self) -> list[TransferResult]:
        ended: list[TransferResult] = []
        while self._under_way and self._has_ended(self._under_way[0]):
            batch = self._under_way.popleft()
            self._num_under_way -= len(batch.jobs)
            ended += batch.results()
            self._told.append(batch)
        while self._told and self._told[0].seen_at is not None:
            batch = self._told.popleft()
            self._stream.reuse(batch.started)
            self._stream.reuse(batch.ended)
        return ended

    def take_failed(self) -> list[TransferResult]:
        failed, self._failed = self._failed, []
        return failed

    def close(self) -> None:
        self._waiting.clear()
        self._watched.put(None)
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.error("copies (%s) still have not ended and are left behind", self._kind)

    # ---- beginning -----------------------------------------------------------------------------

    def begin(self) -> Iterator[None]:
        """Enqueue what may go, a batch each time that it is asked, behind the compute of before the first."""
        is_behind_compute = False
        while self._waiting and self._num_under_way < _MAX_UNDER_WAY:
            batch = self._next_batch()
            try:
                if not is_behind_compute:
                    self._stream.wait_for_compute()
                    is_behind_compute = True
                self._enqueue(batch)
            except CopyError as error:
                self._give_up(batch, error)
            else:
                self._under_way.append(batch)
                self._num_under_way += len(batch.jobs)
                self._watched.put(batch)
            yield

    def _next_batch(self) -> _Batch:
        entries = [self._waiting.pop(i) for i in list(islice(self._waiting, self._jobs_per_batch))]
        return _Batch([job for job, _ in entries], entries[0][1])

    def _enqueue(self, batch: _Batch) -> None:
        batch.started = self._stream.record()
        runs = plan_runs(batch.jobs, self._memory.blocks_per_chunk)
        if self._is_batched:
            num_pinned = int(runs.host.searchsorted(self._memory.num_pinned))  # runs cross no end of a chunk
            if num_pinned and self._try_batch(batch, runs.part(slice(num_pinned))):
                runs = runs.part(slice(num_pinned, None))
        if len(runs):
            self._copy_singly(batch, runs)
        batch.ended = self._stream.record()

    def _try_batch(self, batch: _Batch, runs: Runs) -> bool:
        """False if the driver refuses. What it began all the same may be copied again: it is in order."""
        batch.kept = self._ends.copy_list(runs)
        try:
            self._stream.copy_batch(batch.kept)
        except DeviceLostError:
            raise
        except CopyError as error:
            self._note_failure("a batch of %d copies (%s) was refused: %s", len(runs), self._kind, error)
            self._num_refusals += 1
            if self._num_refusals >= _MAX_REFUSALS:
                logger.warning("blocks (%s) are copied one run at a time from now on", self._kind)
                self._is_batched = False
            return False
        return True

    def _copy_singly(self, batch: _Batch, runs: Runs) -> None:
        """One call a run; those whose call fails fail, at the end of the batch."""
        copies = self._ends.copy_list(runs)
        columns = (copies.device.tolist(), copies.host.tolist(), copies.sizes.tolist())
        for index, (device, host, size) in enumerate(zip(*columns, strict=True)):
            try:
                self._stream.copy(device, host, size)
            except DeviceLostError:
                raise
            except CopyError as error:
                jobs = runs.jobs_of(index)
                self._note_failure("a copy (%s) of %d blocks failed: %s", self._kind, len(jobs), error)
                batch.fail(jobs)

    def _give_up(self, batch: _Batch, error: CopyError) -> None:
        """Fail a batch that has no event to end by, once nothing of it can be under way any more."""
        self._note_failure("%d moves (%s) failed: %s", len(batch.jobs), self._kind, error)
        with contextlib.suppress(CopyError):  # who cannot be asked has lost the device, and copies no more
            self._stream.synchronize()
        self._failed += [TransferResult(job.transfer_id, TransferOutcome.FAILED) for job in batch.jobs]
        self._on_done()

    def _note_failure(self, text: str, *details: object) -> None:
        if self._failures.add():
            logger.warning(text, *details)

    # ---- ending --------------------------------------------------------------------------------

    def _has_ended(self, batch: _Batch) -> bool:
        """Without anything to verify, the event's own word is sooner than the thread's."""
        if batch.seen_at is not None or self._checksums is not None:
            return batch.seen_at is not None
        try:
            return batch.ended.is_over()
        except CopyError:
            return False  # the thread is told the same, and fails the batch

    def _watch(self) -> None:
        woken_at = 0.0
        while (batch := self._watched.get()) is not None:
            self._see_end(batch)
            now = time.perf_counter()
            with self._changed:
                batch.seen_at = now
                self._changed.notify_all()
            if self._watched.empty() or now - woken_at > _WAKE_S:
                woken_at = now
                self._on_done()

    def _see_end(self, batch: _Batch) -> None:
        try:
            batch.ended.wait()
        except CopyError as error:
            self._note_failure("%d moves (%s) failed: %s", len(batch.jobs), self._kind, error)
            batch.fail(batch.jobs)
            return
        if self._checksums is not None:
            started = time.thread_time()
            for job in batch.jobs:
                if job.transfer_id not in batch.outcomes and not self._verify(self._checksums, job):
                    batch.outcomes[job.transfer_id] = TransferOutcome.CORRUPT
            batch.verify_s = time.thread_time() - started

    def _verify(self, checksums: HostChecksums, job: TransferJob) -> bool:
        if self._kind is TransferKind.SWAP_OUT:
            checksums.note(job.target, checksum(self._memory.slots[job.target]))
            return True
        if checksums.agrees(job.source, self._memory.slots[job.source]):
            return True
        self._note_failure("host slot %d is not what was put there; its text is computed instead", job.source)
        return False
