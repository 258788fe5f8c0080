"""What the movers share: worker threads that carry out moves, loads before stores. And a scripted double.

Runs on: the mover's own named threads carry out; all methods are called by the step thread. Bounds: the
transfer engine bounds what is handed in. No torch.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiering.movers.failure_count import FailureCount
from tiering.types import TransferId, TransferJob, TransferOutcome, TransferResult

logger = logging.getLogger(__name__)

_WAKE_S = 0.002
_CLOSE_TIMEOUT_S = 2.0

CopyBlock = Callable[[TransferJob], TransferOutcome]


class WorkerMover:
    """Moves blocks on ``num_threads`` threads of its own; ``copy_block`` runs on them.

    ``on_done`` is called on a worker when no other move of the kind is waiting, and every ``_WAKE_S`` until
    then: a step thread that is woken for each block would take the time from the copies. An exception in
    ``copy_block`` fails that move.
    """

    def __init__(
        self, name: str, num_threads: int, copy_block: CopyBlock, on_done: Callable[[], None]
    ) -> None:
        self.parallelism = num_threads
        self._copy_block = copy_block
        self._on_done = on_done
        self._loads: deque[tuple[TransferJob, float]] = deque()
        self._stores: deque[tuple[TransferJob, float]] = deque()
        self._ended: deque[TransferResult] = deque()
        self._num_under_way = 0
        self._woken_at = 0.0
        self._failures = FailureCount()
        self._closing = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, jobs: Sequence[TransferJob]) -> None:
        now = time.perf_counter()
        with self._changed:
            for job in jobs:
                (self._loads if job.kind.is_load else self._stores).append((job, now))
            self._changed.notify_all()

    def cancel(self, transfer_id: TransferId) -> bool:
        with self._changed:
            for queue in (self._loads, self._stores):
                for entry in queue:
                    if entry[0].transfer_id == transfer_id:
                        queue.remove(entry)
                        return True
        return False

    def poll(self) -> list[TransferResult]:
        with self._changed:
            ended, self._ended = list(self._ended), deque()
        return ended

    def wait(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or not self._is_busy, timeout_s)

    def close(self) -> None:
        """Drop what has not begun, and let the rest end; what hangs is left behind."""
        with self._changed:
            self._loads.clear()
            self._stores.clear()
            self._closing = True
            self._changed.notify_all()
        deadline = time.perf_counter() + _CLOSE_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.perf_counter()))

    @property
    def _is_busy(self) -> bool:
        return bool(self._num_under_way or self._loads or self._stores)

    def _work(self) -> None:
        ended = cpu_ended = 0.0
        while (entry := self._next()) is not None:
            job, submitted = entry
            started = max(ended, submitted)  # what passes between two copies counts as the second's
            outcome = self._try_copy(job)
            ended, cpu_started, cpu_ended = time.perf_counter(), cpu_ended, time.thread_time()
            result = TransferResult(
                job.transfer_id, outcome, ended - started, started - submitted, cpu_ended - cpu_started
            )
            with self._changed:
                self._num_under_way -= 1
                self._ended.append(result)
                self._changed.notify_all()
                wakes = not (self._loads if job.kind.is_load else self._loads or self._stores)
                wakes = wakes or ended - self._woken_at > _WAKE_S
                if wakes:
                    self._woken_at = ended
            if wakes:
                self._on_done()

    def _next(self) -> tuple[TransferJob, float] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._loads or self._stores or self._closing)
            if self._closing:
                return None
            self._num_under_way += 1
            return (self._loads or self._stores).popleft()

    def _try_copy(self, job: TransferJob) -> TransferOutcome:
        try:
            outcome = self._copy_block(job)
        except Exception as error:
            self._log_failure(job, str(error))
            return TransferOutcome.FAILED
        if outcome is TransferOutcome.CORRUPT:
            self._log_failure(job, "what is there is not what it should be; its text is computed instead")
        return outcome

    def _log_failure(self, job: TransferJob, reason: str) -> None:
        if self._failures.add():
            logger.warning(
                "a %s of block %d failed (%s); failures so far: %d",
                job.kind, job.source, reason, self._failures.total,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mischief:
    """What a ``FakeMover`` does to moves. Probabilities per move; delays in polls."""

    seed: int = 0
    max_delay_polls: int = 0
    failure_rate: float = 0.0
    corruption_rate: float = 0.0
    shuffles: bool = False


class FakeMover:
    """A mover whose order, delays and failures are scripted. Time is counted in polls.

    ``copy_block`` (if any) carries the bytes, as early or as late as a real copy might: when the move is
    submitted or when it is reported, by chance. ``spoil`` (if any) overwrites the target of a move that is
    still to come, or that fails, with what nobody must read. ``hold`` stops all progress until ``release``;
    ``fail_next`` fails the next moves that end.
    """

    parallelism = 1

    def __init__(
        self,
        copy_block: CopyBlock | None = None,
        mischief: Mischief | None = None,
        spoil: Callable[[TransferJob], None] | None = None,
    ) -> None:
        self.started: list[TransferJob] = []
        self.fail_next = 0
        self._copy_block = copy_block
        self._spoil = spoil
        self._copied_early: dict[TransferId, TransferOutcome] = {}
        self._mischief = mischief or Mischief()
        self._random = random.Random(self._mischief.seed)
        self._under_way: dict[TransferId, tuple[TransferJob, int]] = {}
        self._num_polls = 0
        self._held = False

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False

    @property
    def num_under_way(self) -> int:
        return len(self._under_way)

    def submit(self, jobs: Sequence[TransferJob]) -> None:
        for job in jobs:
            due = self._num_polls + 1 + self._random.randint(0, self._mischief.max_delay_polls)
            self._under_way[job.transfer_id] = (job, due)
            self.started.append(job)
            if self._copy_block is not None and self._random.random() < 0.5:
                self._copied_early[job.transfer_id] = self._copy_block(job)
            elif self._spoil is not None:
                self._spoil(job)

    def cancel(self, transfer_id: TransferId) -> bool:
        begun = transfer_id in self._copied_early or self._random.random() < 0.3
        if transfer_id not in self._under_way or begun:
            return False
        del self._under_way[transfer_id]
        return True

    def poll(self) -> list[TransferResult]:
        if self._held:
            return []
        self._num_polls += 1
        due = [job for job, at in self._under_way.values() if at <= self._num_polls]
        if self._mischief.shuffles:
            self._random.shuffle(due)
        for job in due:
            del self._under_way[job.transfer_id]
        return [TransferResult(job.transfer_id, self._end(job)) for job in due]

    def wait(self, timeout_s: float) -> None:
        """Nothing to wait for: each poll makes progress."""

    def close(self) -> None:
        self._under_way.clear()

    def _end(self, job: TransferJob) -> TransferOutcome:
        outcome = self._draw_fault()
        early = self._copied_early.pop(job.transfer_id, None)
        if outcome is None:
            if early is not None or self._copy_block is None:
                return early or TransferOutcome.DONE
            return self._copy_block(job)
        if self._spoil is not None:
            self._spoil(job)
        return outcome

    def _draw_fault(self) -> TransferOutcome | None:
        if self.fail_next:
            self.fail_next -= 1
            return TransferOutcome.FAILED
        draw = self._random.random()
        if draw < self._mischief.failure_rate:
            return TransferOutcome.FAILED
        if draw < self._mischief.failure_rate + self._mischief.corruption_rate:
            return TransferOutcome.CORRUPT
        return None
