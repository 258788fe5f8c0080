"""Blocks in a directory: a preallocated file of records, and a packed table of what is in them.

    lock       held (flock) by the one process that uses the store; the kernel lets go of it with the process
    secret     32 random bytes: the key of all block names in the store
    table.kv   64 bytes: magic, version, fingerprint, sizes; then 32 bytes a slot: name, depth, generation
    blocks.kv  a record a slot: a 4 KiB header page, then the block's bytes, padded to 4 KiB

All files are private to the owner; the mode of a directory that is there already is left alone. A record is
believed only if its header is whole and carries the right magic, version, fingerprint and name, and the
checksum of its bytes; so nothing needs syncing or repairing after a
crash: a torn record, or a table entry that is ahead of its record, is a miss. A store of another
fingerprint (weights, dtype, layout ...) is emptied. Runs on: ``open`` and ``close`` on the step thread;
``write`` and ``read`` on disk threads, each slot by one at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import mmap
import os
import secrets
import struct
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from tiering.movers.checksums import checksum
from tiering.types import BlockHash, BlockId, BlockLabel

logger = logging.getLogger(__name__)

PAGE = 4096
SECRET_BYTES = 32
FINGERPRINT_BYTES = 16
_VERSION = 1
_TABLE_HEADER = struct.Struct("<8sI4x16sQQQ8x")  # magic, version, fingerprint, block, record bytes, slots
_ENTRY = struct.Struct("<16sI4xQ")  # name, depth, generation (0: empty)
_RECORD_HEADER = struct.Struct(
    "<8sI4x16s16s16sIxxxxQ"
)  # magic, version, fingerprint, name, checksum, depth, gen.
_HEADER_END = _RECORD_HEADER.size + 16  # the header's own checksum follows it
_TABLE_MAGIC = b"TIDEKVT\x00"
_RECORD_MAGIC = b"TIDEKVR\x00"
_MAX_GENERATION = 2**62  # what counts higher is damage
_LOCK_TIMEOUT_S = 10.0  # a server that was just stopped may still be saving


class DiskStoreError(ValueError):
    """The store cannot be used. The message is one plain sentence for the user."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block that the table knows."""

    slot: BlockId
    label: BlockLabel


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """``num_found`` blocks can be used with these settings; ``num_lost`` would be dropped.

    ``is_in_use``: another process has the store open.
    """

    num_slots: int
    num_bytes: int
    num_found: int
    num_lost: int
    is_in_use: bool = False


def look_into(directory: Path, num_bytes: int, block_bytes: int, fingerprint: bytes) -> StoreFigures:
    """What a store is, and would be if it was opened with these settings. Changes nothing.

    Raises DiskStoreError if it could not be opened, but for being in use.
    """
    layout = _Layout.fit(num_bytes, block_bytes, fingerprint)
    _check_usable(directory)
    try:
        packed = (directory / "table.kv").read_bytes()
    except FileNotFoundError:
        packed = b""
    except OSError as error:
        raise DiskStoreError(f"--disk-kv {directory} cannot be used: {error.strerror or error}.") from error
    entries = layout.entries(packed[_TABLE_HEADER.size :])
    fitting = [e for e in entries if e[1].slot < layout.num_slots] if layout.agrees(packed) else []
    num_lost = len(entries) - len(fitting)
    return StoreFigures(layout.num_slots, layout.num_bytes, len(fitting), num_lost, _is_in_use(directory))


def nearest_existing(directory: Path) -> Path:
    """The directory, or the one above it that is there already."""
    return next(path for path in (directory, *directory.absolute().parents) if path.exists())


def _check_usable(directory: Path) -> None:
    nearest = nearest_existing(directory)
    if not nearest.is_dir():
        raise DiskStoreError(f"--disk-kv {directory} cannot be used: {nearest} is a file, not a directory.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise DiskStoreError(f"--disk-kv {directory} cannot be used: {nearest} is not writable.")


def _is_in_use(directory: Path) -> bool:
    try:
        descriptor = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes of a store, and what its table's header must say."""

    block_bytes: int
    record_bytes: int
    num_slots: int
    fingerprint: bytes

    @classmethod
    def fit(cls, num_bytes: int, block_bytes: int, fingerprint: bytes) -> _Layout:
        """As many slots as ``num_bytes`` hold in all. Raises DiskStoreError if that is none."""
        assert len(fingerprint) == FINGERPRINT_BYTES
        record_bytes = PAGE + -(-block_bytes // PAGE) * PAGE
        num_slots = (num_bytes - _TABLE_HEADER.size) // (record_bytes + _ENTRY.size)
        if num_slots < 1:
            raise DiskStoreError(f"--disk-kv is too small: one block takes {record_bytes} bytes there.")
        return cls(block_bytes, record_bytes, num_slots, fingerprint)

    @property
    def num_bytes(self) -> int:
        return _TABLE_HEADER.size + self.num_slots * (self.record_bytes + _ENTRY.size)

    def header(self) -> bytes:
        sizes = (self.block_bytes, self.record_bytes, self.num_slots)
        return _TABLE_HEADER.pack(_TABLE_MAGIC, _VERSION, self.fingerprint, *sizes)

    def agrees(self, packed: bytes) -> bool:
        """Whether a table that begins so is of the same model and layout; its number of slots may differ."""
        if len(packed) < _TABLE_HEADER.size:
            return False
        found = _TABLE_HEADER.unpack(packed[: _TABLE_HEADER.size])
        return found[:5] == _TABLE_HEADER.unpack(self.header())[:5]

    def entries(self, packed: bytes) -> list[tuple[int, StoredBlock]]:
        """What a table says, oldest first; of two slots with one name, the later written counts."""
        whole = len(packed) // _ENTRY.size * _ENTRY.size
        entries = [
            (generation, StoredBlock(BlockId(slot), BlockLabel(BlockHash(name), depth)))
            for slot, (name, depth, generation) in enumerate(_ENTRY.iter_unpack(packed[:whole]))
            if 0 < generation < _MAX_GENERATION
        ]
        entries.sort(key=lambda entry: entry[0])
        latest = {stored.label.name: (generation, stored) for generation, stored in entries}
        return sorted(latest.values(), key=lambda entry: entry[0])

    def used_slots(self, packed: bytes) -> list[int]:
        """Slots of which a table with its header says anything."""
        end = _TABLE_HEADER.size + (len(packed) - _TABLE_HEADER.size) // _ENTRY.size * _ENTRY.size
        entries = _ENTRY.iter_unpack(packed[_TABLE_HEADER.size : end])
        return [slot for slot, (_, _, generation) in enumerate(entries) if generation]


def look_at_secret(directory: Path) -> bytes:
    """The store's secret; b"" if it has none yet, or none that can be read. Changes nothing."""
    with contextlib.suppress(OSError):
        return (directory / "secret").read_bytes()[:SECRET_BYTES]
    return b""


def open_secret(directory: Path) -> bytes:
    """The store's secret, made at first use. Raises DiskStoreError."""
    path = directory / "secret"
    with _plain_errors(directory):
        _make_directory(directory)
        if not path.exists():
            _make_secret(directory, path)
        with _opened(path, os.O_RDWR) as descriptor:
            secret = os.pread(descriptor, SECRET_BYTES + 1, 0)
    if len(secret) != SECRET_BYTES:
        raise DiskStoreError(f"{path} is damaged. Remove it: what is stored there is then dropped.")
    return secret


def _make_secret(directory: Path, path: Path) -> None:
    """Whole or not at all: written aside, and given its name when it is complete."""
    descriptor, aside = tempfile.mkstemp(prefix=".secret-", dir=directory)  # mode 0600
    try:
        os.write(descriptor, secrets.token_bytes(SECRET_BYTES))
        os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    finally:
        os.close(descriptor)
        os.unlink(aside)


class DiskStore:
    """An open store: ``num_slots`` blocks in ``num_bytes``. ``found`` is what was in it, oldest first."""

    def __init__(self, directory: Path, num_bytes: int, block_bytes: int, fingerprint: bytes) -> None:
        """Open or make the store in ``directory``, of ``num_bytes`` in all. Raises DiskStoreError."""
        self._layout = _Layout.fit(num_bytes, block_bytes, fingerprint)
        self.record_bytes = self._layout.record_bytes
        self.num_slots, self.num_bytes = self._layout.num_slots, self._layout.num_bytes
        self._block_bytes = block_bytes
        self._fingerprint = fingerprint
        self._local = threading.local()
        with contextlib.ExitStack() as undo, _plain_errors(directory):
            _make_directory(directory)
            self._lock = _open(directory / "lock", os.O_RDWR)
            undo.callback(os.close, self._lock)
            _take_lock(self._lock, directory)
            self._table = _open(directory / "table.kv", os.O_RDWR)
            undo.callback(os.close, self._table)
            self.is_direct, self._blocks = _open_direct(directory / "blocks.kv")
            undo.callback(os.close, self._blocks)
            # Space first: a table without room for its records would mislead a later start.
            had_records = self._take_space()
            entries = self._load_table(had_records=had_records)
            undo.pop_all()
        self.found = [stored for _, stored in entries]
        self._next_generation = itertools.count(max((entry[0] for entry in entries), default=0) + 1)

    @property
    def figures(self) -> StoreFigures:
        return StoreFigures(self.num_slots, self.num_bytes, len(self.found), 0)

    def write(self, slot: int, label: BlockLabel, block: npt.NDArray[np.uint8], digest: bytes) -> None:
        """Put a block into a slot. Raises OSError."""
        header, payload = self._scratch()
        generation = next(self._next_generation)  # a C call, so safe between threads
        fields = (self._fingerprint, label.name, digest, label.depth, generation)
        fixed = _RECORD_HEADER.pack(_RECORD_MAGIC, _VERSION, *fields)
        header[: _RECORD_HEADER.size] = fixed
        header[_RECORD_HEADER.size : _HEADER_END] = xxhash.xxh3_128_digest(fixed)
        if self._is_aligned(block):
            buffers = [header, block.data]
        else:
            payload[: self._block_bytes] = block.data
            buffers = [header, payload]
        offset = slot * self.record_bytes
        if os.pwritev(self._blocks, buffers, offset) != sum(len(buffer) for buffer in buffers):
            raise OSError(errno.EIO, "a record was written in part")
        entry = _ENTRY.pack(label.name, label.depth, generation)
        os.pwrite(self._table, entry, _TABLE_HEADER.size + slot * _ENTRY.size)
        if not self.is_direct:
            os.posix_fadvise(self._blocks, offset, self.record_bytes, os.POSIX_FADV_DONTNEED)

    def read(self, slot: int, name: BlockHash, block: npt.NDArray[np.uint8]) -> bytes | None:
        """Fill ``block`` from a slot; returns its checksum, or None if the slot does not hold ``name``.

        Raises OSError.
        """
        header, payload = self._scratch()
        offset = slot * self.record_bytes
        aligned = self._is_aligned(block)
        buffers = [header, block.data if aligned else payload]
        if os.preadv(self._blocks, buffers, offset) < PAGE + self._block_bytes:
            return None
        if not aligned:
            block[:] = np.frombuffer(payload, dtype=np.uint8, count=self._block_bytes)
        fixed = bytes(header[: _RECORD_HEADER.size])
        if header[_RECORD_HEADER.size : _HEADER_END] != xxhash.xxh3_128_digest(fixed):
            return None
        magic, version, fingerprint, stored, digest, _, _ = _RECORD_HEADER.unpack(fixed)
        if (magic, version, fingerprint, stored) != (_RECORD_MAGIC, _VERSION, self._fingerprint, name):
            return None
        return digest if checksum(block) == digest else None

    def erase(self, slots: Iterable[int]) -> None:
        """Let a later start find nothing in these slots: a short write for each, to the page cache.

        A failure is logged; a record that is not to be trusted is still told by its checksum.
        """
        try:
            for slot in slots:
                os.pwrite(self._table, bytes(_ENTRY.size), _TABLE_HEADER.size + slot * _ENTRY.size)
        except OSError as error:
            logger.error("what was to be forgotten may be found on disk after a restart: %s", error)

    def close(self) -> None:
        """Close the files and let go of the lock. No thread may use the store any more."""
        for descriptor in (self._blocks, self._table, self._lock):
            os.close(descriptor)

    # ---- inside --------------------------------------------------------------------------------

    def _load_table(self, *, had_records: bool) -> list[tuple[int, StoredBlock]]:
        """What the table says, with generations; a new one is begun if it is of another model or layout."""
        packed = os.pread(self._table, _TABLE_HEADER.size + self.num_slots * _ENTRY.size, 0)
        entries = self._layout.entries(packed[_TABLE_HEADER.size :])
        if not self._layout.agrees(packed):
            if had_records:
                logger.warning(
                    "the KV blocks on disk are of another model, layout or secret, or their table is damaged;"
                    " they are dropped"
                )
            entries = []
            os.ftruncate(self._table, 0)
        os.ftruncate(self._table, _TABLE_HEADER.size + self.num_slots * _ENTRY.size)
        os.pwrite(self._table, self._layout.header(), 0)
        if (
            entries
        ):  # of two slots with one name the older is free, and must not be found when the other is lost
            found = {stored.slot for _, stored in entries}
            self.erase(slot for slot in self._layout.used_slots(packed) if slot not in found)
        return entries

    def _take_space(self) -> bool:
        """Make the file of records as large as it is to be; returns whether there were any."""
        num_bytes, before = self.num_slots * self.record_bytes, os.fstat(self._blocks).st_size
        if before > num_bytes:
            os.ftruncate(self._blocks, num_bytes)
        try:
            os.posix_fallocate(self._blocks, 0, num_bytes)
        except OSError:
            os.ftruncate(self._blocks, min(before, num_bytes))
            raise
        return before > 0

    def _is_aligned(self, block: npt.NDArray[np.uint8]) -> bool:
        return self._block_bytes % PAGE == 0 and block.ctypes.data % PAGE == 0

    def _scratch(self) -> tuple[memoryview, memoryview]:
        """This thread's header page and payload buffer, both aligned for direct I/O."""
        if not hasattr(self._local, "views"):
            buffer = mmap.mmap(-1, self.record_bytes)
            view = memoryview(buffer)
            self._local.views = (view[:PAGE], view[PAGE:])
        views: tuple[memoryview, memoryview] = self._local.views
        return views


@contextlib.contextmanager
def _plain_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskStoreError(f"There is not enough room for --disk-kv in {directory}.") from error
        raise DiskStoreError(f"--disk-kv {directory} cannot be used: {error.strerror or error}.") from error


def _make_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _open(path: Path, flags: int) -> int:
    """Open or make a file that is ours alone."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        os.close(descriptor)
        raise DiskStoreError(f"{path} belongs to another user.")
    if status.st_mode & 0o077:
        os.fchmod(descriptor, 0o600)
    return descriptor


def _open_direct(path: Path) -> tuple[bool, int]:
    """The file, past the page cache if the file system can do that."""
    try:
        with _opened(path, os.O_RDWR | os.O_DIRECT) as descriptor, mmap.mmap(-1, PAGE) as page:
            os.preadv(descriptor, [page], 0)
            return True, os.dup(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False, _open(path, os.O_RDWR)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = _open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, directory: Path) -> None:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise DiskStoreError(
                    f"--disk-kv {directory} is in use by another server; give each its own directory."
                ) from None
            time.sleep(0.05)
