"""Hands moves of blocks to the movers: loads before stores, a bounded number of bytes in flight.

Runs on: step thread. Blocks: only in ``drain``. What a mover does with the bytes (streams, threads,
files, or a script in a test) is its own affair; it reports each move exactly once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiering.types import BlockId, TransferId, TransferJob, TransferKind, TransferOutcome, TransferResult

SECONDS_BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)


class Mover(Protocol):
    """Moves blocks between two neighbouring tiers. ``parallelism``: how many blocks it moves at a time."""

    parallelism: int

    def submit(self, jobs: Sequence[TransferJob]) -> None:
        """Begin these moves, in order as far as the medium has one. Returns at once."""
        ...

    def cancel(self, transfer_id: TransferId) -> bool:
        """True if the move had not begun and never will; it is then not reported."""
        ...

    def poll(self) -> list[TransferResult]:
        """The moves that have ended since the last call. Never blocks."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Block until a move has ended, none is under way, or the time is up."""
        ...

    def close(self) -> None:
        """End what is under way and give back threads, streams and files."""
        ...


@dataclass(slots=True)
class TransferTotals:
    """Running totals of one kind; they only grow. ``buckets`` counts by ``SECONDS_BUCKETS``, and above."""

    num_done: int = 0
    num_failed: int = 0
    num_corrupt: int = 0
    num_bytes: int = 0
    copy_s: float = 0.0
    queue_s: float = 0.0
    cpu_s: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BUCKETS) + 1))


@dataclass(slots=True)
class _Lane:
    """One mover's queues. ``in_flight`` maps what it was given to the kind."""

    mover: Mover
    loads: dict[TransferId, TransferJob] = field(default_factory=dict)
    stores: dict[TransferId, TransferJob] = field(default_factory=dict)
    in_flight: dict[TransferId, TransferKind] = field(default_factory=dict)
    num_stores_in_flight: int = 0


class TransferEngine:
    """All moves of one engine. ``max_in_flight_bytes`` bounds each mover's loads, and apart its stores."""

    def __init__(
        self,
        movers: Mapping[TransferKind, Mover],
        block_bytes: int,
        clock: Callable[[], float],
        *,
        erase: Callable[[Iterable[BlockId]], None] | None = None,
        max_load_bytes: int = 256 * 2**20,
        max_store_bytes: int = 32 * 2**20,
    ) -> None:
        self.totals = {kind: TransferTotals() for kind in TransferKind}
        self._block_bytes = block_bytes
        self._clock = clock
        self._erase = erase
        self._max_loads = max(1, max_load_bytes // block_bytes)
        self._max_stores = max(1, max_store_bytes // block_bytes)
        lanes: dict[int, _Lane] = {}
        self._lane_of = {kind: lanes.setdefault(id(mover), _Lane(mover)) for kind, mover in movers.items()}
        self._lanes = tuple(lanes.values())
        self._submitted_at: dict[TransferId, float] = {}
        self._ended: deque[TransferResult] = deque()
        self._observations: list[tuple[TransferKind, float]] = []

    @property
    def num_pending(self) -> int:
        """Moves that have not been reported yet."""
        return len(self._submitted_at) + len(self._ended)

    @property
    def has_results(self) -> bool:
        """Whether ``poll`` has something to report already, that nobody will call attention to."""
        return bool(self._ended)

    def submit(self, jobs: Iterable[TransferJob]) -> None:
        """Queue moves and begin what may begin. Returns at once."""
        now = self._clock()
        for job in jobs:
            lane = self._lane_of[job.kind]
            (lane.loads if job.kind.is_load else lane.stores)[job.transfer_id] = job
            self._submitted_at[job.transfer_id] = now
        self._pump()

    def cancel(self, transfer_ids: Iterable[TransferId]) -> None:
        """Drop the moves that have not begun; ``poll`` reports them as CANCELLED, the others as they end."""
        for transfer_id in transfer_ids:
            if any(self._try_cancel(lane, transfer_id) for lane in self._lanes):
                del self._submitted_at[transfer_id]
                self._ended.append(TransferResult(transfer_id, TransferOutcome.CANCELLED))

    def erase(self, blocks: Iterable[BlockId]) -> None:
        """Take the names of disk blocks away, so that a restart does not find them. A short write each."""
        if self._erase is not None:
            self._erase(blocks)

    def poll(self) -> list[TransferResult]:
        """The moves that have ended, each reported once; begins others in their place."""
        for lane in self._lanes:
            for result in lane.mover.poll():
                kind = lane.in_flight.pop(result.transfer_id)
                lane.num_stores_in_flight -= not kind.is_load
                del self._submitted_at[result.transfer_id]
                self._count(kind, result)
                self._ended.append(result)
        self._pump()
        ended, self._ended = list(self._ended), deque()
        return ended

    def take_observations(self) -> list[tuple[TransferKind, float]]:
        """Since the last call: each finished copy's kind, and the seconds it held up the next."""
        observations, self._observations = self._observations, []
        return observations

    def drain(self, timeout_s: float) -> list[TransferResult]:
        """Wait for all moves, at most so long; the results of those that ended."""
        deadline = self._clock() + timeout_s
        ended = self.poll()
        while self._submitted_at and (left := deadline - self._clock()) > 0:
            busy = next(lane for lane in self._lanes if lane.in_flight)
            busy.mover.wait(min(left, 0.1))
            ended += self.poll()
        return ended

    def close(self) -> None:
        """Close the movers."""
        for lane in self._lanes:
            lane.mover.close()

    def _pump(self) -> None:
        for lane in self._lanes:
            num_loads = len(lane.in_flight) - lane.num_stores_in_flight
            jobs = _take(lane.loads, self._max_loads - num_loads)
            if not lane.loads:
                stores = _take(lane.stores, self._max_stores - lane.num_stores_in_flight)
                lane.num_stores_in_flight += len(stores)
                jobs += stores
            if jobs:
                lane.in_flight.update((job.transfer_id, job.kind) for job in jobs)
                lane.mover.submit(jobs)

    def _try_cancel(self, lane: _Lane, transfer_id: TransferId) -> bool:
        if lane.loads.pop(transfer_id, None) or lane.stores.pop(transfer_id, None):
            return True
        if transfer_id not in lane.in_flight or not lane.mover.cancel(transfer_id):
            return False
        lane.num_stores_in_flight -= not lane.in_flight.pop(transfer_id).is_load
        return True

    def _count(self, kind: TransferKind, result: TransferResult) -> None:
        totals = self.totals[kind]
        if result.outcome is TransferOutcome.DONE:
            totals.num_done += 1
            totals.num_bytes += self._block_bytes
            totals.copy_s += result.copy_s
            totals.queue_s += result.queue_s
            totals.cpu_s += result.cpu_s
            self._observations.append((kind, result.copy_s / self._lane_of[kind].mover.parallelism))
            totals.buckets[sum(result.copy_s > bound for bound in SECONDS_BUCKETS)] += 1
        elif result.outcome is TransferOutcome.CORRUPT:
            totals.num_corrupt += 1
        else:
            totals.num_failed += 1


def _take(queue: dict[TransferId, TransferJob], count: int) -> list[TransferJob]:
    ids = [transfer_id for transfer_id, _ in zip(queue, range(max(0, count)), strict=False)]
    return [queue.pop(transfer_id) for transfer_id in ids]
