"""The engine's own mover between a pool and host memory, and how fast it moves blocks."""

from __future__ import annotations

import itertools
import time

import torch

from benchmarks.gpu_check.context import Context
from engine.execution.tiers import as_bytes
from tiering.memory.host_pool import HostPool, Pinning
from tiering.movers.thread import thread_mover
from tiering.transfers import Mover
from tiering.types import BlockId, TransferId, TransferJob, TransferKind, TransferOutcome


class Link:
    """Moves between ``pool`` and as many host slots, in scattered blocks: one half of each goes each way.

    ``scale.swap_blocks`` is how many blocks one direction moves at a time.
    """

    def __init__(self, context: Context, pool: torch.Tensor) -> None:
        self.block_bytes = pool[0].nbytes
        self._ids = itertools.count()
        self.num_moved = context.scale.swap_blocks
        num_blocks = 2 * self.num_moved
        assert pool.shape[0] >= num_blocks
        self.pinning = TimedPinning(_pinning()) if context.on_gpu else None
        self._memory = HostPool(num_blocks, self.block_bytes, _nothing, self.pinning)
        self._memory.wait_ready()
        self.num_unpinned = num_blocks - self._memory.num_pinned
        self.mover, self.description = self._make_mover(pool[:num_blocks])
        generator = torch.Generator().manual_seed(0)
        places = [torch.randperm(self.num_moved, generator=generator).tolist() for _ in range(2)]
        self._pairs = list(zip(*places, strict=True))

    def _make_mover(self, pool: torch.Tensor) -> tuple[Mover, str]:
        if not pool.is_cuda:
            return thread_mover(as_bytes(pool), self._memory.slots, None, _nothing), "memory copies"
        from tiering.movers.cuda_streams import cuda_mover

        mover = cuda_mover(pool, self._memory, None, _nothing)
        return mover, mover.description

    def jobs(self, kind: TransferKind) -> list[TransferJob]:
        """A move of each block that is there for this direction."""
        first = 0 if kind is TransferKind.SWAP_OUT else self.num_moved
        return [
            TransferJob(
                TransferId(next(self._ids)), kind, BlockId(first + source), BlockId(first + target), None
            )
            for source, target in self._pairs
        ]

    def move(self, *kinds: TransferKind) -> float:
        """Seconds that moving all blocks takes, each kind one way, from handing them in to having them."""
        jobs = [job for kind in kinds for job in self.jobs(kind)]
        started = time.perf_counter()
        self.mover.submit(jobs)
        self.wait(len(jobs))
        return time.perf_counter() - started

    def wait(self, count: int) -> None:
        """Until so many moves have ended. Raises RuntimeError for one that failed."""
        while count:
            count -= self.poll()

    def poll(self) -> int:
        """How many moves have ended since."""
        ended = self.mover.poll()
        if any(result.outcome is not TransferOutcome.DONE for result in ended):
            raise RuntimeError("a block could not be moved; the log says why")
        return len(ended)

    def close(self) -> None:
        self.mover.close()
        self._memory.close()


class TimedPinning:
    """Pins as ``pinning`` does, and has how long each call took and how much they pinned."""

    def __init__(self, pinning: Pinning) -> None:
        self.seconds: list[float] = []
        self.num_bytes = 0
        self._pinning = pinning

    def pin(self, address: int, num_bytes: int) -> None:
        started = time.perf_counter()
        self._pinning.pin(address, num_bytes)
        self.seconds.append(time.perf_counter() - started)
        self.num_bytes += num_bytes

    def unpin(self, address: int) -> None:
        self._pinning.unpin(address)


def _pinning() -> Pinning:
    from tiering.movers.cuda_streams import CudaPinning

    return CudaPinning()


def _nothing() -> None:
    pass
