"""Swaps as a load on an engine: moves of blocks that it does not use, through the transfers of its own steps.

So what swaps cost the step thread, which begins them and takes in their ends before the device has a step's
work, is in the time of a step.
"""

from __future__ import annotations

import itertools
import time

from benchmarks.gpu_check.link import Link
from tiering.transfers import TransferEngine
from tiering.types import TransferId, TransferJob, TransferKind, TransferOutcome, TransferResult

WAYS = (TransferKind.SWAP_OUT, TransferKind.SWAP_IN)
_IN_FLIGHT_BYTES = 2**30  # each way: the bound of an engine on a GPU
_DRAIN_S = 10.0


class SwapLoad(TransferEngine):
    """An engine's transfers which, from ``begin`` to ``end``, also keep both ways of ``link`` full.

    The engine has no tiers, so all moves are the load's, and it is told of none. ``host_s``: what the step
    thread has spent on them. ``moved_bytes``: what has been moved.
    """

    def __init__(self, link: Link) -> None:
        super().__init__(
            dict.fromkeys(WAYS, link.mover),
            link.block_bytes,
            time.perf_counter,
            max_load_bytes=_IN_FLIGHT_BYTES,
            max_store_bytes=_IN_FLIGHT_BYTES,
        )
        self.host_s = 0.0
        self.moved_bytes = 0
        self._block_bytes = link.block_bytes
        self._num_each_way = min(link.num_moved, max(1, _IN_FLIGHT_BYTES // link.block_bytes))
        self._is_on = False
        self._jobs = {
            kind: itertools.cycle(link.jobs(kind)) for kind in WAYS
        }  # one ends before it comes again
        self._under_way: dict[TransferKind, set[TransferId]] = {kind: set() for kind in WAYS}

    def begin(self) -> None:
        """Have the next steps swap; the first of them begins as many moves as may be under way."""
        self._is_on = True

    def end(self) -> None:
        """Begin no more moves and wait for those under way. Raises RuntimeError if they do not end."""
        self._is_on = False
        self.drain(_DRAIN_S)
        if self.num_pending:
            raise RuntimeError(f"{self.num_pending} moves have not ended")

    def poll(self) -> list[TransferResult]:
        """Take in ends of moves, and begin others in their place. Raises RuntimeError for one that failed."""
        started = time.perf_counter()
        ended = super().poll()
        for result in ended:
            if result.outcome is not TransferOutcome.DONE:
                raise RuntimeError("a block could not be moved; the log says why")
            for ids in self._under_way.values():
                ids.discard(result.transfer_id)
        self.moved_bytes += len(ended) * self._block_bytes
        if self._is_on:
            self._fill_up()
        self.host_s += time.perf_counter() - started
        return []

    def _fill_up(self) -> None:
        jobs: list[TransferJob] = []
        for kind, ids in self._under_way.items():
            fresh = list(itertools.islice(self._jobs[kind], self._num_each_way - len(ids)))
            ids.update(job.transfer_id for job in fresh)
            jobs += fresh
        if jobs:
            self.submit(jobs)
