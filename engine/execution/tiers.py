"""Builds the KV tiers that the settings ask for: pools, memory, files, movers.

Runs on: step thread, once. Which mover copies what is decided here and nowhere else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from engine.config import ConfigError, DiskTier, EngineConfig, MemorySize
from engine.execution.hardware import device_memory
from engine.execution.runner import LoadedRunner
from tiering.block_pool import BlockPool
from tiering.cost_model import CostModel
from tiering.memory.host_pool import HostPool, Pinning
from tiering.movers.checksums import HostChecksums
from tiering.movers.copy_stream import CopyError
from tiering.movers.disk import disk_mover
from tiering.movers.disk_store import (
    FINGERPRINT_BYTES,
    DiskStore,
    DiskStoreError,
    StoreFigures,
    look_at_secret,
    look_into,
    nearest_existing,
    open_secret,
)
from tiering.movers.thread import thread_mover
from tiering.policies.registry import PolicyError, eviction_factory, restore_factory, write_factory
from tiering.policies.restore import RestorePolicy
from tiering.policies.write import WritePolicy
from tiering.tiers import Tiers
from tiering.transfers import Mover, TransferEngine
from tiering.types import Tier, TransferKind

_DEFAULT_DISK_BYTES = 10 * 2**30
_LARGE_SHARE = 0.95  # of the free space on a disk, above which others may be left without
_DEFAULT_HOST_SHARE = 0.25  # of RAM, with a GPU; without one the tier is off
_GPU_BYTES_IN_FLIGHT = 2**30  # each way: what a fast link moves between two steps, which is when more begin


@dataclass(frozen=True, slots=True)
class KvTiers:
    """What an engine core needs to move blocks, and what there is of each tier.

    ``cache_secret`` keys the block names; with a disk tier it is the store's, so that names outlive the
    process.
    """

    tiers: Tiers
    transfers: TransferEngine
    costs: CostModel
    restore: RestorePolicy
    take_new_host_blocks: Callable[[], int]
    release_memory: Callable[[], None]
    cache_secret: bytes
    host_blocks: int
    host_link: str
    disk_blocks: int
    disk_kv_bytes: int
    disk_blocks_found: int
    notes: tuple[str, ...]


def check_tier_settings(config: EngineConfig) -> None:
    """Raise ConfigError for what can be refused before a model is loaded."""
    if config.disk_kv is not None and not config.enable_prefix_caching:
        raise ConfigError("--disk-kv needs prefix caching: what is on disk is found by its name.")
    try:
        eviction_factory(config.eviction)
        write_factory(config.write_policy)
        restore_factory(config.restore)
    except PolicyError as error:
        raise ConfigError(str(error)) from error


def build_tiers(
    config: EngineConfig, loaded: LoadedRunner, wake: Callable[[], None], clock: Callable[[], float]
) -> KvTiers:
    """Set up host and disk beside the pool of ``loaded``. Raises ConfigError.

    Host memory is taken in the background, and ``wake`` called as it comes and as copies end.
    """
    return _Builder(config, loaded, wake).build(clock)


class _Builder:
    def __init__(self, config: EngineConfig, loaded: LoadedRunner, wake: Callable[[], None]) -> None:
        self._config = config
        self._pool = loaded.pool
        self._layout = loaded.layout
        self._fingerprint = loaded.fingerprint
        self._info = loaded.info
        self._wake = wake
        self._max_sequence_blocks = -(-loaded.info.max_model_len // loaded.layout.block_size)
        self._costs = CostModel(
            self._layout.block_size, self._layout.block_bytes, config.max_num_batched_tokens
        )
        self._movers: dict[TransferKind, Mover] = {}
        self._writes: dict[Tier, WritePolicy] = {}
        self._memory: HostPool | None = None
        self._checksums: HostChecksums | None = None
        self._host: BlockPool | None = None
        self._host_link = ""
        self._store: DiskStore | None = None
        self._disk: BlockPool | None = None
        self._found: StoreFigures | None = None
        self._notes: list[str] = []

    def build(self, clock: Callable[[], float]) -> KvTiers:
        host_size = self._host_size()
        if host_size is not None:
            self._add_host(host_size)
        elif self._config.kv_checksums:
            self._notes.append("--kv-checksums has no effect without --host-kv: nothing is moved.")
        if self._config.disk_kv is not None:
            self._add_disk(self._config.disk_kv)
        figures = self._found if self._store is None else self._store.figures
        device = self._block_pool(self._pool.shape[0], None if self._host is None else Tier.HOST)
        return KvTiers(
            tiers=Tiers(
                device, self._host, self._disk, self._writes, max_sequence_blocks=self._max_sequence_blocks
            ),
            transfers=self._transfers(clock),
            costs=self._costs,
            restore=restore_factory(self._config.restore)(),
            take_new_host_blocks=_none if self._memory is None else self._memory.take_ready,
            release_memory=self._release,
            cache_secret=self._secret(),
            host_blocks=0 if self._memory is None else self._memory.num_blocks,
            host_link=self._host_link,
            disk_blocks=0 if figures is None else figures.num_slots,
            disk_kv_bytes=0 if figures is None else figures.num_bytes,
            disk_blocks_found=0 if figures is None else figures.num_found,
            notes=tuple(self._notes),
        )

    def _transfers(self, clock: Callable[[], float]) -> TransferEngine:
        erase = None if self._store is None else self._store.erase
        if not self._pool.is_cuda:
            return TransferEngine(self._movers, self._layout.block_bytes, clock, erase=erase)
        return TransferEngine(
            self._movers,
            self._layout.block_bytes,
            clock,
            erase=erase,
            max_load_bytes=_GPU_BYTES_IN_FLIGHT,
            max_store_bytes=_GPU_BYTES_IN_FLIGHT,
        )

    def _release(self) -> None:
        """Close the files and stop taking memory; no copy may be under way any more."""
        if self._store is not None:
            self._store.close()
        if self._memory is not None:
            self._memory.close()

    def _add_host(self, num_bytes: int) -> None:
        self._memory = self._host_memory(num_bytes)
        self._host = self._block_pool(0, None if self._config.disk_kv is None else Tier.DISK)
        if self._config.kv_checksums:
            self._checksums = HostChecksums(self._memory.num_blocks)
        mover = self._link(self._memory)
        self._movers |= {TransferKind.SWAP_OUT: mover, TransferKind.SWAP_IN: mover}
        self._writes[Tier.DEVICE] = write_factory(self._config.write_policy)()

    def _add_disk(self, disk: DiskTier) -> None:
        if self._memory is None:
            raise ConfigError("--disk-kv needs --host-kv: blocks go to disk and come back by way of it.")
        if self._config.is_probe:
            self._found = self._look_into_store(disk)
            return
        self._store = self._open_store(disk)
        self._disk = self._block_pool(self._store.num_slots, None)
        self._disk.adopt({found.slot: found.label for found in self._store.found})
        mover = disk_mover(self._store, self._memory.slots, self._checksums, self._wake)
        self._movers |= {TransferKind.DEMOTE: mover, TransferKind.PROMOTE: mover}
        self._writes[Tier.HOST] = write_factory(self._config.write_policy)()
        self._memory.wait_some()  # the first requests may be for what was found, which comes by way of it

    def _block_pool(self, num_blocks: int, below: Tier | None) -> BlockPool:
        make = eviction_factory(self._config.eviction)
        return BlockPool(num_blocks, make, self._costs.block_s, below=below)

    def _host_size(self) -> int | None:
        """Bytes of the host tier; None: there is none. A GPU has one unasked, if there is room for it."""
        total = device_memory(torch.device("cpu")).total
        if self._config.host_kv is not None:
            return self._config.host_kv.resolve(total) or None
        if not self._pool.is_cuda:
            return None
        return min(int(_DEFAULT_HOST_SHARE * total), self._available_bytes() // 2)

    def _host_memory(self, wanted: int) -> HostPool:
        available = self._available_bytes()
        if wanted > available:
            raise ConfigError(
                f"--host-kv asks for {wanted / 2**30:.2f} GiB, but beside the model and the device pool only"
                f" {max(0, available) / 2**30:.2f} GiB are available."
            )
        num_blocks = self._layout.num_blocks(wanted)
        if num_blocks < 1:
            raise ConfigError(f"--host-kv is too small: a block takes {self._layout.block_bytes} bytes.")
        return HostPool(num_blocks, self._layout.block_bytes, self._wake, self._pinning())

    def _available_bytes(self) -> int:
        """RAM left for the tier. On a CPU weights and pool are in it too, maybe not with all pages yet."""
        if self._pool.is_cuda:
            return device_memory(torch.device("cpu")).available
        return self._info.memory_available_bytes - self._info.weight_bytes - self._info.kv_bytes

    def _pinning(self) -> Pinning | None:
        if not self._pool.is_cuda:
            return None
        from tiering.movers.cuda_streams import CudaPinning

        return CudaPinning()

    def _link(self, memory: HostPool) -> Mover:
        """The mover between device and host."""
        if not self._pool.is_cuda:
            return thread_mover(as_bytes(self._pool), memory.slots, self._checksums, self._wake)
        from tiering.movers.cuda_streams import cuda_mover

        try:
            mover = cuda_mover(self._pool, memory, self._checksums, self._wake)
        except CopyError as error:
            memory.close()
            raise ConfigError(
                f"KV blocks cannot be moved between the GPU and host memory ({error});"
                " --host-kv off does without."
            ) from error
        self._host_link = mover.description
        return mover

    def _open_store(self, disk: DiskTier) -> DiskStore:
        directory = Path(disk.path)
        try:
            num_bytes = _disk_bytes(directory, disk.size)
            return DiskStore(directory, num_bytes, self._layout.block_bytes, self._store_fingerprint())
        except DiskStoreError as error:
            raise ConfigError(str(error)) from error

    def _store_fingerprint(self) -> bytes:
        """Of all that a stored block can be found and used by, the key of the names included."""
        key = self._secret()
        return hashlib.blake2b(self._fingerprint, key=key, digest_size=FINGERPRINT_BYTES).digest()

    def _look_into_store(self, disk: DiskTier) -> StoreFigures:
        """What the store is and would be. Changes nothing, whoever uses it."""
        directory = Path(disk.path)
        try:
            num_bytes = _disk_bytes(directory, disk.size)
            figures = look_into(directory, num_bytes, self._layout.block_bytes, self._store_fingerprint())
        except DiskStoreError as error:
            raise ConfigError(str(error)) from error
        if figures.is_in_use:
            self._notes.append(f"--disk-kv {directory} is in use by another server; a second one is refused.")
        free = shutil.disk_usage(nearest_existing(directory)).free
        if num_bytes - _size_of(directory) > _LARGE_SHARE * free:
            self._notes.append(f"--disk-kv takes nearly all the space that is free at {directory}.")
        if figures.num_lost:
            self._notes.append(
                f"--disk-kv {directory} holds {figures.num_lost} blocks that do not fit these settings"
                " (another model, dtype, block size or way of computing, or a smaller size):"
                " a server would drop them."
            )
        return figures

    def _secret(self) -> bytes:
        if self._config.disk_kv is None:
            return self._config.cache_secret
        directory = Path(self._config.disk_kv.path)
        if self._config.is_probe:
            return look_at_secret(directory)
        try:
            return open_secret(directory)
        except DiskStoreError as error:
            raise ConfigError(str(error)) from error


def _disk_bytes(directory: Path, size: MemorySize | None) -> int:
    """What was asked for; else the size that the store has; else 10 GiB, or half of what is free."""
    existing = _size_of(directory)
    free = shutil.disk_usage(nearest_existing(directory)).free + existing
    if size is None:
        wanted = existing or min(_DEFAULT_DISK_BYTES, free // 2)
        if not wanted:
            raise ConfigError(f"There is no free space for --disk-kv at {directory}.")
        return wanted
    wanted = size.resolve(free)
    if wanted > free:
        raise ConfigError(
            f"--disk-kv asks for {wanted / 2**20:,.0f} MiB, but only {free / 2**20:,.0f} MiB"
            f" are free at {directory}."
        )
    return wanted


def as_bytes(pool: torch.Tensor) -> npt.NDArray[np.uint8]:
    """A CPU pool as uint8 ``[num_blocks, block_bytes]``, over the same memory."""
    flat: npt.NDArray[np.uint8] = pool.view(torch.uint8).flatten(1).numpy()
    return flat


def _size_of(directory: Path) -> int:
    """Bytes that a store takes now, 0 if there is none, or none with room for a record."""
    blocks, table = directory / "blocks.kv", directory / "table.kv"
    if not blocks.exists() or not os.stat(blocks).st_size:
        return 0
    return os.stat(blocks).st_size + (os.stat(table).st_size if table.exists() else 0)


def _none() -> int:
    return 0
