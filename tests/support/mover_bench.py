"""A GPU's mover over a device of CPU memory, with what a test asks of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.fake_cuda import FakeDevice, FakePinning
from tiering.memory import host_pool
from tiering.memory.host_pool import HostPool
from tiering.movers.checksums import HostChecksums, checksum
from tiering.movers.cuda import CudaMover
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

OUT, IN = TransferKind.SWAP_OUT, TransferKind.SWAP_IN
DONE, FAILED, CORRUPT = TransferOutcome.DONE, TransferOutcome.FAILED, TransferOutcome.CORRUPT
BLOCK_BYTES = 512
SLOTS_PER_CHUNK = 8
PATIENCE_S = 60  # how long a test waits for what must happen; no test passes by its end

Blocks = npt.NDArray[np.uint8]


class Bench:
    """A mover, its device, and the memory on both sides."""

    def __init__(
        self,
        num_blocks: int = 32,
        num_slots: int = 32,
        *,
        seed: int = 0,
        is_batched: bool = True,
        verified: bool = False,
        pinning: FakePinning | None = None,
    ) -> None:
        blocks = np.random.default_rng(seed).integers(0, 256, (num_blocks, BLOCK_BYTES), dtype=np.uint8)
        self.device = FakeDevice(blocks, seed)
        self.device.pinning = pinning or self.device.pinning
        self.memory = HostPool(num_slots, BLOCK_BYTES, lambda: None, self.device.pinning)
        self.memory.wait_ready()
        self.host = self.memory.slots
        self.host[:] = np.random.default_rng(seed + 1).integers(0, 256, self.host.shape, dtype=np.uint8)
        self.checksums = HostChecksums(num_slots) if verified else None
        for slot in range(num_slots if self.checksums is not None else 0):
            assert self.checksums is not None
            self.checksums.note(slot, checksum(self.host[slot]))
        self.woken = threading.Semaphore(0)
        self.path = self.device.path(self.host, is_batched=is_batched)
        ends = self.device.ends(self.host)
        self.mover = CudaMover(ends, self.memory, self.path, self.checksums, self.woken.release)
        self.numbers = iter(range(10**9))

    @property
    def blocks(self) -> Blocks:
        return self.device.blocks

    def jobs(self, kind: TransferKind, pairs: Iterable[tuple[int, int]]) -> list[TransferJob]:
        """Moves from source to target."""
        return [
            TransferJob(TransferId(next(self.numbers)), kind, BlockId(source), BlockId(target), label(index))
            for index, (source, target) in enumerate(pairs)
        ]

    def finish(self, jobs: Sequence[TransferJob]) -> list[TransferOutcome]:
        """Carry these out, one way or the other; how each ended."""
        self.mover.submit(jobs)
        with self.device.running():
            return self.await_ends(jobs)

    def await_ends(self, jobs: Sequence[TransferJob]) -> list[TransferOutcome]:
        ended: list[TransferResult] = []
        while len(ended) < len(jobs):
            self.mover.wait(PATIENCE_S)
            fresh = self.mover.poll()
            assert fresh, "nothing ended"
            ended += fresh
        outcomes = {result.transfer_id: result.outcome for result in ended}
        assert len(outcomes) == len(ended) == len(jobs), "a move is told of twice"
        return [outcomes[job.transfer_id] for job in jobs]

    def settle(self) -> None:
        """Carry out what may be, and let the watching threads see it."""
        self.device.finish()
        for direction in self.mover._directions.values():
            while any(batch.ended.over and batch.seen_at is None for batch in list(direction._under_way)):  # type: ignore[attr-defined]
                threading.Event().wait(0.0005)

    def close(self) -> None:
        with self.device.running():
            self.mover.close()
        self.memory.close()
        assert self.device.pinning.chunks == {} or self.device.is_lost


@contextmanager
def bench(**options: object) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_pool, "_CHUNK_BYTES", SLOTS_PER_CHUNK * BLOCK_BYTES)
        made = Bench(**options)  # type: ignore[arg-type]
    assert made.memory.blocks_per_chunk == SLOTS_PER_CHUNK
    try:
        yield made
    finally:
        made.close()


def label(index: int) -> BlockLabel:
    return BlockLabel(BlockHash(index.to_bytes(16, "little")), depth=index)


def ids(results: Iterable[TransferResult]) -> list[int]:
    return [int(result.transfer_id) for result in results]
