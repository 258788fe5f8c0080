"""Chooses how blocks are copied between device and host: what is offered is tried out on the pools first.

Runs on: step thread, once, at start, before either pool is used. Blocks: for some milliseconds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tiering.movers.copy_runs import CopyList, Ends
from tiering.movers.copy_stream import CopyError, CopyStream, DeviceLostError
from tiering.types import TransferKind

logger = logging.getLogger(__name__)

TIMED_BYTES = 64 * 2**20  # of slots, if there are that many

_TRIED_BLOCKS = 8
_MAX_TIMED_COPIES = 256
_OUT, _IN = TransferKind.SWAP_OUT, TransferKind.SWAP_IN

Slots = npt.NDArray[np.uint8]
Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CopyPath:
    """One way to copy. With ``is_batched`` its streams take ``copy_batch``."""

    name: str
    streams: Mapping[TransferKind, CopyStream]
    is_batched: bool


@dataclass(frozen=True, slots=True)
class ChosenPath:
    """What was chosen, and bytes per second each way, measured on the first blocks; 0: too short to tell."""

    path: CopyPath
    out_bytes_s: float
    in_bytes_s: float

    @property
    def description(self) -> str:
        if not (self.out_bytes_s and self.in_bytes_s):
            return self.path.name
        return f"{self.path.name}, {self.out_bytes_s / 1e9:.1f} GB/s out, {self.in_bytes_s / 1e9:.1f} GB/s in"


def choose_path(paths: Sequence[CopyPath], ends: Ends, num_device_blocks: int, slots: Slots) -> ChosenPath:
    """The first of ``paths`` that brings blocks both ways unchanged. Raises CopyError if none does.

    ``slots`` are host slots from the first on, uint8 ``[num_slots, block_bytes]``; batches need them pinned.
    Overwrites some of them, and some of the device's blocks.
    """
    assert paths and num_device_blocks and len(slots)
    for path in paths:
        trial = _Trial(path, ends, num_device_blocks, slots)
        try:
            if trial.copies_truly():
                return ChosenPath(path, trial.bytes_s(_OUT), trial.bytes_s(_IN))
            failure = "blocks came back changed"
        except DeviceLostError:
            raise
        except CopyError as error:
            failure = str(error)
        logger.warning("blocks are not moved by %s: %s", path.name, failure)
    raise CopyError(f"no way to copy blocks between GPU and host works; of {paths[-1].name}: {failure}")


class _Trial:
    """Copies between blocks all over the device's pool and slots all over the host's."""

    def __init__(self, path: CopyPath, ends: Ends, num_device_blocks: int, slots: Slots) -> None:
        self._path = path
        self._ends = ends
        self._slots = slots
        self._num_pairs = min(num_device_blocks, len(slots))
        count = min(_TRIED_BLOCKS, self._num_pairs)
        self._blocks = np.linspace(0, num_device_blocks - 1, count).astype(np.int64)
        self._hosts = np.linspace(0, len(slots) - 1, count).astype(np.int64)

    def copies_truly(self) -> bool:
        """Whether what goes in comes out. Each direction is held against single copies of the other."""
        return all(self._goes_round(kind) for kind in (_IN, _OUT))

    def bytes_s(self, kind: TransferKind) -> float:
        """The rate of one direction, over neighbouring blocks."""
        block_bytes = self._ends.block_bytes
        count = min(self._num_pairs, max(1, TIMED_BYTES // block_bytes), _MAX_TIMED_COPIES)
        stream = self._path.streams[kind]
        blocks = np.arange(count)
        self._copy(kind, blocks, blocks, by_path=True)  # the first one takes longer
        started = stream.record()
        copies = self._copy(kind, blocks, blocks, by_path=True)
        ended = stream.record()
        ended.wait()
        del copies
        seconds = ended.seconds_since(started)
        return count * block_bytes / seconds if seconds > 0 else 0.0

    def _goes_round(self, tried: TransferKind) -> bool:
        """In to other places than out of: a copy that does nothing, or all to one place, is found."""
        shape = (len(self._hosts), self._ends.block_bytes)
        sent = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        self._slots[self._hosts] = sent
        self._finish(_IN, self._blocks, self._hosts, by_path=tried is _IN)
        self._slots[self._hosts] = ~sent
        self._finish(_OUT, self._blocks, self._hosts[::-1], by_path=tried is _OUT)
        return np.array_equal(self._slots[self._hosts[::-1]], sent)

    def _finish(self, kind: TransferKind, blocks: Indexes, hosts: Indexes, *, by_path: bool) -> None:
        stream = self._path.streams[kind]
        stream.wait_for_compute()
        copies = self._copy(kind, blocks, hosts, by_path=by_path)
        stream.record().wait()
        del copies

    def _copy(self, kind: TransferKind, blocks: Indexes, hosts: Indexes, *, by_path: bool) -> CopyList:
        stream, size = self._path.streams[kind], self._ends.block_bytes
        copies = CopyList(
            device=(self._ends.device + blocks * size).astype(np.uint64),
            host=(self._ends.host + hosts * size).astype(np.uint64),
            sizes=np.full(len(blocks), size, dtype=np.uint64),
        )
        if by_path and self._path.is_batched:
            stream.copy_batch(copies)
            return copies
        for device, host in zip(copies.device.tolist(), copies.host.tolist(), strict=True):
            stream.copy(device, host, size)
        return copies
