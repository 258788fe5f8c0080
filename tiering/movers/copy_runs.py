"""Which copies carry out a batch of moves between device and host: pure, no driver.

Blocks that are neighbours on both sides go in one copy. None goes over the end of a chunk of host memory,
since chunks are registered with the driver one by one, and a copy must not touch two registrations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tiering.types import TransferJob, TransferKind

Addresses = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Run:
    """One copy: job ``i`` is between device block ``device + i`` and host slot ``host + i``."""

    device: int
    host: int
    jobs: tuple[TransferJob, ...]


@dataclass(frozen=True, slots=True)
class CopyList:
    """Copies as a driver takes them: addresses and sizes in bytes, ``[num_copies]`` each."""

    device: Addresses
    host: Addresses
    sizes: Addresses


@dataclass(frozen=True, slots=True)
class Ends:
    """Where the blocks of both tiers are. Block ``i`` begins ``i * block_bytes`` behind the address."""

    device: int
    host: int
    block_bytes: int

    def copy_list(self, runs: Sequence[Run]) -> CopyList:
        """The copies of ``runs``, in their order."""

        def column(values: Callable[[Run], int]) -> Addresses:
            return np.fromiter(map(values, runs), dtype=np.uint64, count=len(runs))

        return CopyList(
            device=column(lambda run: self.device + run.device * self.block_bytes),
            host=column(lambda run: self.host + run.host * self.block_bytes),
            sizes=column(lambda run: len(run.jobs) * self.block_bytes),
        )


def plan_runs(jobs: Sequence[TransferJob], blocks_per_chunk: int) -> list[Run]:
    """As few copies as do these moves between device and host, which are all of one direction.

    They come in the order of host slots: the moves of a batch end together, so theirs does not matter.
    """
    runs: list[Run] = []
    pending: list[TransferJob] = []
    for job in sorted(jobs, key=_host_end):
        if pending and not _continues(pending[-1], job, blocks_per_chunk):
            runs.append(_run(pending))
            pending = []
        pending.append(job)
    if pending:
        runs.append(_run(pending))
    return runs


def _continues(last: TransferJob, job: TransferJob, blocks_per_chunk: int) -> bool:
    are_neighbours = job.source == last.source + 1 and job.target == last.target + 1
    return are_neighbours and _host_end(job) % blocks_per_chunk != 0


def _run(jobs: Sequence[TransferJob]) -> Run:
    return Run(device=_device_end(jobs[0]), host=_host_end(jobs[0]), jobs=tuple(jobs))


def _host_end(job: TransferJob) -> int:
    return job.target if job.kind is TransferKind.SWAP_OUT else job.source


def _device_end(job: TransferJob) -> int:
    return job.source if job.kind is TransferKind.SWAP_OUT else job.target
