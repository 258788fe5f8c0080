"""Which copies carry out a batch of moves between device and host: pure, no driver.

Blocks that are neighbours on both sides go in one copy. None goes over the end of a chunk of host memory,
since chunks are registered with the driver one by one, and a copy must not touch two registrations. The step
thread plans while others wait for it, so what is done for each block is done on arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tiering.types import TransferJob, TransferKind

Addresses = npt.NDArray[np.uint64]
Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """Copies in the order of host slots, int64 ``[num_runs]`` each.

    Run ``i`` is of ``counts[i]`` blocks, from device block ``device[i]`` and host slot ``host[i]`` on.
    ``ordered`` has the jobs of all runs, by index in ``jobs``; those of run ``i`` begin at ``firsts[i]``.
    """

    device: Indexes
    host: Indexes
    counts: Indexes
    firsts: Indexes
    ordered: Indexes
    jobs: Sequence[TransferJob]

    def __len__(self) -> int:
        return len(self.host)

    def part(self, which: slice) -> Runs:
        """Some of them."""
        columns = (self.device[which], self.host[which], self.counts[which], self.firsts[which])
        return Runs(*columns, self.ordered, self.jobs)

    def jobs_of(self, index: int) -> list[TransferJob]:
        """What a run carries out: its ``i``-th job is between blocks ``device + i`` and ``host + i``."""
        first = int(self.firsts[index])
        return [self.jobs[i] for i in self.ordered[first : first + int(self.counts[index])]]


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

    def copy_list(self, runs: Runs) -> CopyList:
        """The copies of ``runs``, in their order."""
        columns = (self.device, runs.device), (self.host, runs.host), (0, runs.counts)
        return CopyList(*((base + index * self.block_bytes).astype(np.uint64) for base, index in columns))


def plan_runs(jobs: Sequence[TransferJob], blocks_per_chunk: int) -> Runs:
    """As few copies as do these moves between device and host, which are all of one direction.

    The moves of a batch end together, so their order does not matter.
    """
    sources = np.array([job.source for job in jobs], dtype=np.int64)
    targets = np.array([job.target for job in jobs], dtype=np.int64)
    is_outward = len(jobs) > 0 and jobs[0].kind is TransferKind.SWAP_OUT
    device, host = (sources, targets) if is_outward else (targets, sources)
    ordered = host.argsort()
    device, host = device[ordered], host[ordered]
    is_bound = np.ones(len(jobs) + 1, dtype=np.bool_)
    are_neighbours = (device[1:] - device[:-1] == 1) & (host[1:] - host[:-1] == 1)
    is_bound[1:-1] = ~are_neighbours | (host[1:] % blocks_per_chunk == 0)
    bounds = is_bound.nonzero()[0]
    firsts = bounds[:-1]
    return Runs(device[firsts], host[firsts], bounds[1:] - firsts, firsts, ordered, jobs)
