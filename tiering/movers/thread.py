"""Copies between device and host tier where both are RAM: one thread, one memcpy a block.

Runs on: thread ``kv-copy-0``; numpy releases the interpreter's lock for the copy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tiering.movers.base import WorkerMover
from tiering.movers.checksums import HostChecksums, checksum
from tiering.types import TransferJob, TransferKind, TransferOutcome

Blocks = npt.NDArray[np.uint8]


def thread_mover(
    device: Blocks, host: Blocks, checksums: HostChecksums | None, on_done: Callable[[], None]
) -> WorkerMover:
    """A mover between ``device`` and ``host``, both uint8 ``[num_blocks, block_bytes]``.

    With ``checksums`` every block is verified on every move.
    """
    copier = BlockCopier(device, host, checksums)
    return WorkerMover("kv-copy", 1, copier.copy, on_done)


class BlockCopier:
    """Copies one block either way."""

    def __init__(self, device: Blocks, host: Blocks, checksums: HostChecksums | None) -> None:
        self._device = device
        self._host = host
        self._checksums = checksums

    def copy(self, job: TransferJob) -> TransferOutcome:
        if job.kind is TransferKind.SWAP_OUT:
            return self._swap_out(job)
        return self._swap_in(job)

    def _swap_out(self, job: TransferJob) -> TransferOutcome:
        source, target = self._device[job.source], self._host[job.target]
        if self._checksums is None:
            np.copyto(target, source)
            return TransferOutcome.DONE
        digest = checksum(source)
        np.copyto(target, source)
        if checksum(target) != digest:  # the source changed under the copy
            return TransferOutcome.CORRUPT
        self._checksums.note(job.target, digest)
        return TransferOutcome.DONE

    def _swap_in(self, job: TransferJob) -> TransferOutcome:
        source, target = self._host[job.source], self._device[job.target]
        np.copyto(target, source)
        if self._checksums is None or self._checksums.agrees(job.source, target):
            return TransferOutcome.DONE
        return TransferOutcome.CORRUPT
