"""A real model's runner and real memory of all tiers under scripted movers; every block is checksummed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from engine.config import EngineConfig, MemorySize
from engine.execution.runner import LoadedRunner, load_runner
from engine.execution.tiers import as_bytes
from tiering.movers.checksums import HostChecksums
from tiering.movers.disk import DiskCopier
from tiering.movers.disk_store import DiskStore
from tiering.movers.thread import BlockCopier
from tiering.types import BlockId, Tier, TransferJob, TransferKind, TransferOutcome


def load_deterministic(
    model: str, num_blocks: int, dtype: str = "auto", max_model_len: int = 256
) -> LoadedRunner:
    """A model in deterministic mode with a pool of ``num_blocks``."""

    def load(num_bytes: int) -> LoadedRunner:
        config = EngineConfig(
            model=model,
            dtype=dtype,
            device="cpu",
            max_model_len=max_model_len,
            device_kv=MemorySize(num_bytes=num_bytes),
            deterministic=True,
        )
        return load_runner(config, lambda *_: None)

    block_bytes = load(256 * 2**20).layout.block_bytes
    return load(num_blocks * block_bytes)


class RealBackend:
    """``loaded``'s pool as device tier, arrays or files for the others. Use one for one engine at a time."""

    def __init__(self, loaded: LoadedRunner, host_blocks: int, disk_blocks: int, directory: Path) -> None:
        block_bytes = loaded.layout.block_bytes
        self.executor = loaded.runner
        self.vocab_size = loaded.info.vocab_size
        self._arrays = {
            Tier.DEVICE: as_bytes(loaded.pool),
            Tier.HOST: np.zeros((host_blocks, block_bytes), dtype=np.uint8),
        }
        checksums = HostChecksums(host_blocks)
        self._link = BlockCopier(self._arrays[Tier.DEVICE], self._arrays[Tier.HOST], checksums)
        self._store = None
        if disk_blocks:
            record_bytes = 8192 + block_bytes + 64
            self._store = DiskStore(
                directory, (disk_blocks + 1) * record_bytes, block_bytes, loaded.fingerprint
            )
            self._disk = DiskCopier(self._store, self._arrays[Tier.HOST], checksums)
        for array in self._arrays.values():
            array[:] = 0xFF  # NaN, in every format: nothing unwritten must ever be read

    def copy(self, job: TransferJob) -> TransferOutcome:
        if job.kind in (TransferKind.SWAP_OUT, TransferKind.SWAP_IN):
            return self._link.copy(job)
        return self._disk.copy(job)

    def erase(self, blocks: Iterable[BlockId]) -> None:
        if self._store is not None:
            self._store.erase(blocks)

    def spoil(self, job: TransferJob) -> None:
        if job.kind.target is not Tier.DISK:
            self._arrays[job.kind.target][job.target] = 0xFF

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
