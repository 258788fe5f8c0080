"""Moves between host tier and disk, on a few threads: loads before stores.

Runs on: threads ``kv-disk-N``. A record that is not what its name says is CORRUPT: a miss, never an error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tiering.movers.base import WorkerMover
from tiering.movers.checksums import HostChecksums, checksum
from tiering.movers.disk_store import DiskStore
from tiering.types import TransferJob, TransferKind, TransferOutcome

DISK_THREADS = 4


def disk_mover(
    store: DiskStore,
    host: npt.NDArray[np.uint8],
    checksums: HostChecksums | None,
    on_done: Callable[[], None],
) -> WorkerMover:
    """A mover between ``host``, uint8 ``[num_slots, block_bytes]``, and a store."""
    return WorkerMover("kv-disk", DISK_THREADS, DiskCopier(store, host, checksums).copy, on_done)


class DiskCopier:
    """Writes and reads one block."""

    def __init__(
        self, store: DiskStore, host: npt.NDArray[np.uint8], checksums: HostChecksums | None
    ) -> None:
        self._store = store
        self._host = host
        self._checksums = checksums

    def copy(self, job: TransferJob) -> TransferOutcome:
        if job.kind is TransferKind.DEMOTE:
            return self._demote(job)
        return self._promote(job)

    def _demote(self, job: TransferJob) -> TransferOutcome:
        assert job.label is not None
        block = self._host[job.source]
        if self._checksums is not None and not self._checksums.agrees(job.source, block):
            return TransferOutcome.CORRUPT
        self._store.write(job.target, job.label, block, checksum(block))
        return TransferOutcome.DONE

    def _promote(self, job: TransferJob) -> TransferOutcome:
        assert job.label is not None
        digest = self._store.read(job.source, job.label.name, self._host[job.target])
        if digest is None:
            return TransferOutcome.CORRUPT
        if self._checksums is not None:
            self._checksums.note(job.target, digest)
        return TransferOutcome.DONE
