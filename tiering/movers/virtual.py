"""A mover in simulated time: a copy takes bytes / bandwidth, one after another each way.

The simulator owns the clock and advances it to ``next_end``; nothing here waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from tiering.types import TransferId, TransferJob, TransferKind, TransferOutcome, TransferResult


class VirtualMover:
    """``block_s`` gives the seconds of one block's copy by kind."""

    parallelism = 1

    def __init__(self, block_s: Mapping[TransferKind, float], clock: Callable[[], float]) -> None:
        self._block_s = block_s
        self._clock = clock
        self._queues: dict[TransferKind, deque[tuple[TransferJob, float]]] = {k: deque() for k in block_s}
        self._free_at = dict.fromkeys(block_s, 0.0)

    @property
    def next_end(self) -> float | None:
        """When the next copy ends, None if none is under way."""
        ends = [
            max(self._free_at[kind], queue[0][1]) + self._block_s[kind]
            for kind, queue in self._queues.items()
            if queue
        ]
        return min(ends, default=None)

    def submit(self, jobs: Sequence[TransferJob]) -> None:
        for job in jobs:
            self._queues[job.kind].append((job, self._clock()))

    def cancel(self, transfer_id: TransferId) -> bool:
        """Only a copy that has not begun by now can be stopped."""
        for kind, queue in self._queues.items():
            starts_at = self._free_at[kind]
            for index, (job, submitted) in enumerate(queue):
                starts_at = max(starts_at, submitted)
                if job.transfer_id == transfer_id and starts_at >= self._clock():
                    del queue[index]
                    return True
                starts_at += self._block_s[kind]
        return False

    def poll(self) -> list[TransferResult]:
        ended = []
        for kind, queue in self._queues.items():
            while queue:
                job, submitted = queue[0]
                start = max(self._free_at[kind], submitted)
                end = start + self._block_s[kind]
                if end > self._clock():
                    break
                queue.popleft()
                self._free_at[kind] = end
                ended.append(
                    TransferResult(job.transfer_id, TransferOutcome.DONE, end - start, start - submitted)
                )
        return ended

    def wait(self, timeout_s: float) -> None:
        """Nothing to wait for: time is the simulator's."""

    def close(self) -> None:
        for queue in self._queues.values():
            queue.clear()
