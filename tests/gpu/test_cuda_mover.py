"""KV blocks between a GPU, host memory and disk, bit for bit, while the GPU computes and copies otherwise."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.devices import GPU_MARKS
from tiering.memory.host_pool import HostPool
from tiering.movers.checksums import HostChecksums
from tiering.movers.copy_path import CopyPath, choose_path
from tiering.movers.copy_runs import Ends
from tiering.movers.cuda import CudaMover
from tiering.movers.cuda_streams import CudaPinning, cuda_mover, cuda_paths
from tiering.movers.disk import disk_mover
from tiering.movers.disk_store import DiskStore
from tiering.transfers import TransferEngine
from tiering.types import (
    BlockHash,
    BlockId,
    BlockLabel,
    TransferId,
    TransferJob,
    TransferKind,
    TransferOutcome,
)

pytestmark = GPU_MARKS

OUT, IN = TransferKind.SWAP_OUT, TransferKind.SWAP_IN
DEMOTE, PROMOTE = TransferKind.DEMOTE, TransferKind.PROMOTE
BLOCK_SHAPE = (8, 2, 8, 16, 128)  # 512 KiB in bfloat16
NUM_BLOCKS = 512
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def pool() -> torch.Tensor:
    return torch.empty((NUM_BLOCKS, *BLOCK_SHAPE), dtype=torch.bfloat16, device="cuda")


@pytest.fixture
def memory(pool: torch.Tensor) -> Iterator[HostPool]:
    made = HostPool(NUM_BLOCKS, pool[0].nbytes, lambda: None, CudaPinning())
    made.wait_ready()
    assert made.num_pinned == NUM_BLOCKS, "host memory cannot be pinned here"
    yield made
    made.close()


class Load:
    """Matrix products that keep the device busy for some milliseconds, and what they write."""

    def __init__(self) -> None:
        self._factors = torch.randn((2, 4096, 4096), dtype=torch.bfloat16, device="cuda") / 64

    def enqueue(self, count: int = 20) -> None:
        for _ in range(count):
            self._factors[0] = torch.tanh(self._factors[0] @ self._factors[1])

    def draw(self, like: torch.Tensor) -> torch.Tensor:
        """Random bits, NaN among them, behind all that is enqueued."""
        self.enqueue()
        bits = torch.randint(0, 256, (like.nbytes,), dtype=torch.uint8, device="cuda")
        return bits.view(like.dtype).view(like.shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int16)  # NaN is not equal to itself, its bits are


def engine(mover: CudaMover, memory: HostPool, others: dict[TransferKind, object]) -> TransferEngine:
    movers = {OUT: mover, IN: mover} | others
    return TransferEngine(movers, memory.slots.shape[1], time.perf_counter, max_store_bytes=2**30)  # type: ignore[arg-type]


class Numbers:
    """Makes moves, each with a number and a name of its own unless it is given that of another."""

    def __init__(self) -> None:
        self._next = 0

    def jobs(self, kind: TransferKind, sources: Sequence[int], targets: Sequence[int]) -> list[TransferJob]:
        made = []
        for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
            self._next += 1
            label = BlockLabel(BlockHash(index.to_bytes(16, "little")), depth=index)
            made.append(TransferJob(TransferId(self._next), kind, BlockId(source), BlockId(target), label))
        return made


def finish(transfers: TransferEngine, jobs: Sequence[TransferJob]) -> None:
    transfers.submit(jobs)
    results = transfers.drain(TIMEOUT_S)
    assert len(results) == len(jobs)
    assert {result.outcome for result in results} == {TransferOutcome.DONE}


def shuffled(seed: int, count: int, low: int = 0, high: int = NUM_BLOCKS) -> list[int]:
    found: list[int] = (np.random.default_rng(seed).permutation(high - low)[:count] + low).tolist()
    return found


def whole_path(path: CopyPath, pool: torch.Tensor, memory: HostPool) -> CudaMover:
    ends = Ends(pool.data_ptr(), memory.slots.ctypes.data, pool[0].nbytes)
    chosen = choose_path([path], ends, NUM_BLOCKS, memory.slots)
    return CudaMover(ends, memory, path, None, lambda: None, description=chosen.description)


def test_every_way_to_copy_that_the_driver_offers_copies_truly(pool: torch.Tensor, memory: HostPool) -> None:
    load = Load()
    for path in cuda_paths(pool.device):
        mover = whole_path(path, pool, memory)
        print(mover.description)
        transfers, numbers = engine(mover, memory, {}), Numbers()
        for seed in range(3):
            blocks, slots, back = (shuffled(3 * seed + i, 300) for i in range(3))
            expected = load.draw(pool)
            pool.copy_(expected)
            finish(transfers, numbers.jobs(OUT, blocks, slots))
            pool.fill_(float("nan"))
            finish(transfers, numbers.jobs(IN, slots, back))
            assert torch.equal(bits(pool[back]), bits(expected[blocks])), path.name
        transfers.close()


def test_blocks_go_down_to_disk_and_come_back_under_load_bit_for_bit(
    pool: torch.Tensor, memory: HostPool, tmp_path: Path
) -> None:
    """Half of the blocks make the journey, the others go to and fro meanwhile."""
    load, numbers, half = Load(), Numbers(), NUM_BLOCKS // 2
    checksums = HostChecksums(NUM_BLOCKS)
    store = DiskStore(tmp_path, (half + 8) * (pool[0].nbytes + 8192), pool[0].nbytes, b"f" * 16)
    mover = cuda_mover(pool, memory, checksums, lambda: None)
    disk = disk_mover(store, memory.slots, checksums, lambda: None)
    transfers = engine(mover, memory, {DEMOTE: disk, PROMOTE: disk})
    for seed in range(3):
        expected = load.draw(pool)
        pool.copy_(expected)
        blocks, slots, records = (shuffled(10 * seed + i, half, 0, half) for i in range(3))
        others, other_slots = (shuffled(10 * seed + i, half, half) for i in (3, 4))
        finish(transfers, numbers.jobs(OUT, blocks, slots) + numbers.jobs(OUT, others, other_slots))
        load.enqueue()
        finish(transfers, numbers.jobs(DEMOTE, slots, records) + numbers.jobs(IN, other_slots, others))
        memory.slots[:half] = 0xFF
        slots = slots[::-1]
        load.enqueue()
        finish(transfers, numbers.jobs(PROMOTE, records, slots) + numbers.jobs(OUT, others, other_slots))
        pool[:half] = float("nan")
        load.enqueue()
        back = shuffled(10 * seed + 5, half, 0, half)
        finish(transfers, numbers.jobs(IN, slots, back) + numbers.jobs(IN, other_slots, others))
        assert torch.equal(bits(pool[back]), bits(expected[blocks]))
        assert torch.equal(bits(pool[half:]), bits(expected[half:]))
    transfers.close()
    store.close()


def test_a_load_waits_for_compute_that_reads_what_it_overwrites(pool: torch.Tensor, memory: HostPool) -> None:
    load, numbers = Load(), Numbers()
    mover = cuda_mover(pool, memory, None, lambda: None)
    transfers = engine(mover, memory, {})
    for _ in range(10):
        expected = load.draw(pool)
        pool.copy_(expected)
        torch.cuda.synchronize()
        load.enqueue(50)
        seen = pool.clone()  # comes late
        finish(transfers, numbers.jobs(IN, range(NUM_BLOCKS), range(NUM_BLOCKS)))
        assert torch.equal(bits(seen), bits(expected))
    transfers.close()


def test_a_thousand_small_batches_end_once_each(pool: torch.Tensor, memory: HostPool) -> None:
    """To and fro without a rest, polled as steps would."""
    numbers, load = Numbers(), Load()
    mover = cuda_mover(pool, memory, HostChecksums(NUM_BLOCKS), lambda: None)
    expected = load.draw(pool)
    pool.copy_(expected)
    finish(engine(mover, memory, {}), numbers.jobs(OUT, range(NUM_BLOCKS), range(NUM_BLOCKS)))
    under_way: set[TransferId] = set()
    for step in range(1000):
        if step % 50 == 0:
            load.enqueue(5)
        first = step * 7 % (NUM_BLOCKS - 4)
        jobs = numbers.jobs((OUT, IN)[step % 2], range(first, first + 4), range(first, first + 4))
        if len(under_way) < 200:
            under_way |= {job.transfer_id for job in jobs}
            mover.submit(jobs)
        for result in mover.poll():
            under_way.remove(result.transfer_id)
            assert result.outcome is TransferOutcome.DONE
    deadline = time.monotonic() + TIMEOUT_S
    while under_way and time.monotonic() < deadline:
        mover.wait(1.0)
        under_way -= {result.transfer_id for result in mover.poll()}
    assert not under_way
    torch.cuda.synchronize()
    assert torch.equal(bits(pool), bits(expected))
    mover.close()
