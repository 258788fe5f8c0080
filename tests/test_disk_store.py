"""The store on disk: what comes back, what is found again, and that damage of any kind is a miss."""

from __future__ import annotations

import errno
import mmap
import os
import random
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tiering.movers import disk_store
from tiering.movers.checksums import checksum
from tiering.movers.disk_store import DiskStore, DiskStoreError, open_secret
from tiering.types import BlockHash, BlockLabel

Block = npt.NDArray[np.uint8]
ROOT = Path(__file__).parent.parent
KILLS = 200 if os.environ.get("TIDEGATE_SLOW") == "1" else 12
FINGERPRINT = b"weights-and-such"
NOBODY = 65534
FILES = ("lock", "table.kv", "blocks.kv")
PAGE = 4096
TABLE_HEADER_BYTES = 64
ENTRY = struct.Struct("<16sI4xQ")
RECORD_FIELDS = {"magic": 0, "version": 8, "fingerprint": 16, "name": 32, "checksum": 48}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")


def record_bytes(block_bytes: int) -> int:
    return PAGE + -(-block_bytes // PAGE) * PAGE


def store_bytes(num_slots: int, block_bytes: int) -> int:
    return TABLE_HEADER_BYTES + num_slots * (record_bytes(block_bytes) + ENTRY.size)


@contextmanager
def opened(
    directory: Path, num_slots: int = 8, block_bytes: int = 5000, fingerprint: bytes = FINGERPRINT
) -> Iterator[DiskStore]:
    store = DiskStore(directory, store_bytes(num_slots, block_bytes), block_bytes, fingerprint)
    try:
        assert store.num_slots == num_slots
        yield store
    finally:
        store.close()


def label(number: int) -> BlockLabel:
    return BlockLabel(BlockHash(number.to_bytes(16, "little")), depth=number % 7)


def content(number: int, block_bytes: int = 5000) -> Block:
    return np.random.default_rng(number).integers(0, 256, block_bytes, dtype=np.uint8)


def put(store: DiskStore, slot: int, number: int, block_bytes: int = 5000) -> None:
    block = content(number, block_bytes)
    store.write(slot, label(number), block, checksum(block))


def holds(store: DiskStore, slot: int, number: int, block_bytes: int = 5000) -> bool:
    """Whether the slot gives this block. What it must never do is give another one under its name."""
    block = np.zeros(block_bytes, dtype=np.uint8)
    digest = store.read(slot, label(number).name, block)
    if digest is None:
        return False
    np.testing.assert_array_equal(block, content(number, block_bytes))
    assert digest == checksum(block)
    return True


def found(store: DiskStore) -> list[tuple[int, BlockLabel]]:
    return [(stored.slot, stored.label) for stored in store.found]


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    patch(path, offset, bytes([path.read_bytes()[offset] ^ (1 << bit)]))


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def is_one_plain_sentence(error: DiskStoreError, directory: Path) -> bool:
    text = str(error)
    return text.endswith(".") and "\n" not in text and str(directory) in text and "Errno" not in text


@contextmanager
def refused(directory: Path, words: str = "") -> Iterator[None]:
    """The store is refused in plain words, and nothing is left open."""
    before = num_descriptors()
    with pytest.raises(DiskStoreError, match=words) as caught:
        yield
    assert is_one_plain_sentence(caught.value, directory), str(caught.value)
    assert num_descriptors() == before


# ---- round trip ----------------------------------------------------------------------------------


def aligned_array(num_bytes: int) -> Block:
    return np.frombuffer(mmap.mmap(-1, num_bytes), dtype=np.uint8)


def without_direct_io(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that cannot bypass the page cache."""
    real_open = os.open

    def open_(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, mode)

    monkeypatch.setattr(disk_store.os, "open", open_)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("shift", [0, 1, 512])
@pytest.mark.parametrize("block_bytes", [1, 100, 4095, 4096, 4097, 8192, 10_000, 122_880])
def test_blocks_come_back_whatever_their_size_and_place_in_memory(
    block_bytes: int, shift: int, direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:
        without_direct_io(monkeypatch)
    memory = aligned_array(3 * block_bytes + shift)[shift:].reshape(3, block_bytes)
    with opened(tmp_path, 4, block_bytes) as store:
        assert store.is_direct <= direct
        for slot, number in ((0, 1), (3, 2), (2, 3), (0, 4)):
            memory[1] = content(number, block_bytes)
            store.write(slot, label(number), memory[1], checksum(memory[1]))
        for slot, number in ((3, 2), (0, 4), (2, 3)):
            memory[:] = 0xA5
            digest = store.read(slot, label(number).name, memory[1])
            np.testing.assert_array_equal(memory[1], content(number, block_bytes))
            assert digest == checksum(memory[1])
            assert (memory[0] == 0xA5).all() and (memory[2] == 0xA5).all()


def test_only_the_name_that_a_slot_holds_is_a_hit(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 2, 1)
        put(store, 2, 5)
        assert holds(store, 2, 5)
        assert not holds(store, 2, 1)
        assert not holds(store, 3, 5)
        assert not any(holds(store, slot, 0) for slot in range(8))  # a name of zeros is no free slot's


def test_a_write_cut_short_is_an_error_and_never_a_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        put(store, 0, 1)
        monkeypatch.setattr(
            disk_store.os, "pwritev", lambda fd, buffers, offset: os.pwrite(fd, buffers[0], offset)
        )
        with pytest.raises(OSError, match="in part"):
            put(store, 0, 2)
        assert not holds(store, 0, 2)
        assert not holds(store, 0, 1)


def test_four_threads_write_and_read_distinct_slots(tmp_path: Path) -> None:
    num_slots, block_bytes = 16, 20_000
    start = threading.Barrier(4, timeout=60)
    latest: dict[int, int] = {}

    def work(worker: int) -> None:
        rng = random.Random(worker)
        mine = range(worker, num_slots, 4)
        start.wait()
        for round_ in range(40):
            slot, number = rng.choice(mine), 1000 * worker + round_
            put(store, slot, number, block_bytes)
            latest[slot] = number
            again = rng.choice([slot for slot in mine if slot in latest])
            assert holds(store, again, latest[again], block_bytes)

    with opened(tmp_path, num_slots, block_bytes) as store, ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    with opened(tmp_path, num_slots, block_bytes) as store:
        assert dict(found(store)) == {slot: label(number) for slot, number in latest.items()}
        assert all(holds(store, slot, number, block_bytes) for slot, number in latest.items())
    table = (tmp_path / "table.kv").read_bytes()[TABLE_HEADER_BYTES:]
    generations = [generation for _, _, generation in ENTRY.iter_unpack(table) if generation]
    assert len(generations) == len(set(generations)) == len(latest)


# ---- privacy -------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_new_files_are_private_under_any_umask(mask: int, tmp_path: Path) -> None:
    directory = tmp_path / "kv"
    with umask(mask), opened(directory):
        open_secret(directory)
    assert mode(directory) == 0o700
    assert {name: mode(directory / name) for name in (*FILES, "secret")} == dict.fromkeys(
        (*FILES, "secret"), 0o600
    )


@pytest.mark.parametrize("name", [*FILES, "secret"])
def test_files_that_existed_with_wider_modes_become_private(name: str, tmp_path: Path) -> None:
    with opened(tmp_path):
        secret = open_secret(tmp_path)
    os.chmod(tmp_path / name, 0o666)
    with opened(tmp_path):
        assert open_secret(tmp_path) == secret
    assert mode(tmp_path / name) == 0o600


def test_the_mode_of_a_directory_that_existed_is_left_alone(tmp_path: Path) -> None:
    directory = tmp_path / "kv"
    directory.mkdir()
    os.chmod(directory, 0o777)
    with opened(directory):
        assert mode(directory) == 0o777


# ---- size ----------------------------------------------------------------------------------------


def size_of(directory: Path) -> int:
    return sum((directory / name).stat().st_size for name in FILES)


@pytest.mark.parametrize("block_bytes", [100, 4096, 5000, 122_880])
@pytest.mark.parametrize("asked", [150_000, 1_000_000, 2**20, 3_000_001])
def test_the_store_takes_what_was_asked_and_never_grows(asked: int, block_bytes: int, tmp_path: Path) -> None:
    for round_ in range(2):
        store = DiskStore(tmp_path, asked, block_bytes, FINGERPRINT)
        one = record_bytes(block_bytes) + ENTRY.size
        assert store.record_bytes == record_bytes(block_bytes)
        assert asked - one < store.num_bytes <= asked
        assert size_of(tmp_path) == store.num_bytes
        blocks = (tmp_path / "blocks.kv").stat()
        assert blocks.st_blocks * 512 >= blocks.st_size  # taken now, not promised
        for slot in range(store.num_slots):
            put(store, slot, slot + round_, block_bytes)
        assert size_of(tmp_path) == store.num_bytes
        store.close()
    assert size_of(tmp_path) == store.num_bytes
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)


@pytest.mark.parametrize("asked", [-1, 0, 63, store_bytes(1, 5000) - 1])
def test_a_store_of_less_than_one_block_is_refused(asked: int, tmp_path: Path) -> None:
    with pytest.raises(DiskStoreError, match="too small") as caught:
        DiskStore(tmp_path, asked, 5000, FINGERPRINT)
    assert str(caught.value).endswith(".") and "12288" in str(caught.value)
    with opened(tmp_path, 1) as store:
        put(store, 0, 1)
        assert holds(store, 0, 1)


# ---- found again ---------------------------------------------------------------------------------


def test_what_was_written_is_found_again_oldest_first(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.found == []
        for slot, number in ((5, 50), (1, 10), (7, 70), (0, 8)):
            put(store, slot, number)
        put(store, 5, 51)
        assert store.found == []
    expected = [(1, label(10)), (7, label(70)), (0, label(8)), (5, label(51))]
    for _ in range(2):
        with opened(tmp_path) as store:
            assert found(store) == expected
            assert all(holds(store, slot, int.from_bytes(lbl.name, "little")) for slot, lbl in expected)
    with opened(tmp_path) as store:
        put(store, 1, 11)
    with opened(tmp_path) as store:
        assert found(store) == [*expected[1:], (1, label(11))]


def test_depths_are_kept_to_the_end_of_their_range(tmp_path: Path) -> None:
    depths = [0, 1, 2**16, 2**32 - 1]
    block = content(0)
    with opened(tmp_path) as store:
        for slot, depth in enumerate(depths):
            store.write(slot, BlockLabel(label(slot).name, depth), block, checksum(block))
    with opened(tmp_path) as store:
        assert [stored.label.depth for stored in store.found] == depths


def fill(directory: Path, num_slots: int = 8, block_bytes: int = 5000) -> None:
    """Slot i holds block i + 1."""
    with opened(directory, num_slots, block_bytes) as store:
        for slot in range(num_slots):
            put(store, slot, slot + 1, block_bytes)


@pytest.mark.parametrize(
    ("block_bytes", "fingerprint"),
    [
        (5000, b"other-weights---"),
        (4097, FINGERPRINT),  # with records of the same size
        (8192, FINGERPRINT),
        (4096, FINGERPRINT),
        (12_288, FINGERPRINT),
        (4096, b"other-weights---"),
    ],
)
def test_a_store_of_another_model_or_layout_is_empty_and_never_a_hit(
    block_bytes: int, fingerprint: bytes, tmp_path: Path
) -> None:
    fill(tmp_path)
    with opened(tmp_path, 8, block_bytes, fingerprint) as store:
        assert store.found == []
        block = np.zeros(block_bytes, dtype=np.uint8)
        for slot in range(8):
            assert all(store.read(slot, label(n).name, block) is None for n in range(10))
        put(store, 3, 77, block_bytes)
    with opened(tmp_path) as store:  # and back: what was there is gone, not mixed in
        assert store.found == []
        assert not holds(store, 3, 77)
    with opened(tmp_path, 8, block_bytes, fingerprint) as store:
        assert store.found == []


def test_a_table_of_another_version_is_empty(tmp_path: Path) -> None:
    fill(tmp_path)
    patch(tmp_path / "table.kv", 8, struct.pack("<I", 999))
    with opened(tmp_path) as store:
        assert store.found == []
        put(store, 0, 9)
        assert holds(store, 0, 9)


def test_a_record_of_another_version_is_a_miss(tmp_path: Path) -> None:
    fill(tmp_path)
    patch(tmp_path / "blocks.kv", 3 * record_bytes(5000) + 8, struct.pack("<I", 999))
    with opened(tmp_path) as store:
        assert [holds(store, slot, slot + 1) for slot in range(8)] == [slot != 3 for slot in range(8)]


@pytest.mark.parametrize("sizes", [(8, 3, 8), (8, 12, 8), (8, 1, 20, 2)])
def test_a_store_of_another_size_keeps_what_fits(sizes: tuple[int, ...], tmp_path: Path) -> None:
    fill(tmp_path)
    there = set(range(8))
    for now in sizes:
        there = {slot for slot in there if slot < now}
        with opened(tmp_path, now) as store:
            assert size_of(tmp_path) == store.num_bytes == store_bytes(now, 5000)
            assert sorted(found(store)) == [(slot, label(slot + 1)) for slot in sorted(there)]
            assert [slot for slot in range(now) if holds(store, slot, slot + 1)] == sorted(there)
            put(store, now - 1, now)
            there.add(now - 1)
            assert holds(store, now - 1, now)


# ---- damage --------------------------------------------------------------------------------------

RECORD = record_bytes(5000)
Damage = Callable[[Path, Path], None]


def in_blocks(offset: int, bit: int = 0) -> Damage:
    """Flip one bit of slot 3's record."""
    return lambda table, blocks: flip(blocks, 3 * RECORD + offset, bit)


def _write_half(table: Path, blocks: Path) -> None:
    patch(blocks, 3 * RECORD + RECORD // 2, bytes(RECORD // 2))


def _copy_other_slot(table: Path, blocks: Path) -> None:
    patch(blocks, 3 * RECORD, blocks.read_bytes()[5 * RECORD : 6 * RECORD])


def _copy_other_header(table: Path, blocks: Path) -> None:
    patch(blocks, 3 * RECORD, blocks.read_bytes()[5 * RECORD : 5 * RECORD + PAGE])


def _copy_other_payload(table: Path, blocks: Path) -> None:
    patch(blocks, 3 * RECORD + PAGE, blocks.read_bytes()[5 * RECORD + PAGE : 6 * RECORD])


def _zero_record(table: Path, blocks: Path) -> None:
    patch(blocks, 3 * RECORD, bytes(RECORD))


def _run_table_ahead(table: Path, blocks: Path) -> None:
    patch(table, TABLE_HEADER_BYTES + 3 * ENTRY.size, ENTRY.pack(label(99).name, 0, 99))


DAMAGES = {
    "first payload bit": in_blocks(PAGE),
    "payload bit in the middle": in_blocks(PAGE + 2500, bit=5),
    "last payload bit": in_blocks(PAGE + 4999, bit=7),
    **{f"{field} in the header": in_blocks(offset) for field, offset in RECORD_FIELDS.items()},
    "half a record": _write_half,
    "another slot's record": _copy_other_slot,
    "another slot's header": _copy_other_header,
    "another slot's payload": _copy_other_payload,
    "zeros": _zero_record,
    "a table entry ahead of its record": _run_table_ahead,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_to_a_record_is_a_miss_of_that_one_and_the_slot_can_be_used_again(
    damage: Damage, tmp_path: Path
) -> None:
    fill(tmp_path)
    damage(tmp_path / "table.kv", tmp_path / "blocks.kv")
    with opened(tmp_path) as store:
        for slot, stored in found(store):
            hit = store.read(slot, stored.name, np.empty(5000, dtype=np.uint8)) is not None
            assert hit == (slot != 3)
        assert all(holds(store, slot, slot + 1) for slot in range(8) if slot != 3)
        put(store, 3, 44)
        assert holds(store, 3, 44)
    with opened(tmp_path) as store:
        assert found(store)[-1] == (3, label(44))


def test_no_flipped_byte_of_a_header_gives_wrong_bytes(tmp_path: Path) -> None:
    fill(tmp_path)
    blocks = tmp_path / "blocks.kv"
    with opened(tmp_path) as store:
        missed = []
        for offset in range(96):
            flip(blocks, 3 * RECORD + offset, bit=offset % 8)
            if not holds(store, 3, 4):
                missed.append(offset)
            flip(blocks, 3 * RECORD + offset, bit=offset % 8)
        assert holds(store, 3, 4)
    assert set(missed) >= {*range(12), *range(16, 64)}


def test_a_block_under_the_name_of_another_is_a_miss(tmp_path: Path) -> None:
    fill(tmp_path)
    patch(tmp_path / "blocks.kv", 3 * RECORD + RECORD_FIELDS["name"], label(6).name)
    with opened(tmp_path) as store:
        assert not holds(store, 3, 6)
        assert not holds(store, 3, 4)
        assert holds(store, 5, 6)


@pytest.mark.parametrize("block_bytes", [5000, 8192])
def test_a_record_torn_anywhere_is_the_old_block_the_new_one_or_none(
    block_bytes: int, tmp_path: Path
) -> None:
    blocks, size = tmp_path / "blocks.kv", record_bytes(block_bytes)
    with opened(tmp_path, 2, block_bytes) as store:
        put(store, 0, 1, block_bytes)
        old = blocks.read_bytes()[:size]
        put(store, 0, 2, block_bytes)
        new = blocks.read_bytes()[:size]
        for cut in (*range(0, size + 1, 512), PAGE + 1, PAGE + block_bytes - 1, PAGE + block_bytes):
            patch(blocks, 0, new[:cut] + old[cut:])
            is_old, is_new = holds(store, 0, 1, block_bytes), holds(store, 0, 2, block_bytes)
            assert is_new == (cut >= PAGE + block_bytes)
            assert is_old == (cut == 0)
            patch(blocks, 0, old[:cut] + new[cut:])  # the end before the beginning
            assert holds(store, 0, 1, block_bytes) == (cut >= PAGE + block_bytes)
            assert holds(store, 0, 2, block_bytes) == (cut == 0)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 64 + 31, 64 + 32, 64 + 3 * 32, 64 + 3 * 32 + 7, 319])
def test_a_truncated_table_knows_what_is_left_of_it(length: int, tmp_path: Path) -> None:
    fill(tmp_path)
    os.truncate(tmp_path / "table.kv", length)
    num_left = max(0, length - TABLE_HEADER_BYTES) // ENTRY.size
    with opened(tmp_path) as store:
        assert found(store) == [(slot, label(slot + 1)) for slot in range(num_left)]
        assert all(holds(store, slot, slot + 1) for slot in range(num_left))
        put(store, 7, 70)
        assert size_of(tmp_path) == store.num_bytes
    with opened(tmp_path) as store:
        assert found(store)[:num_left] == [(slot, label(slot + 1)) for slot in range(num_left)]
        assert found(store)[-1] == (7, label(70))


def _use(directory: Path) -> None:
    """Whatever the store says is there gives right bytes or none, and new blocks can be stored."""
    with opened(directory) as store:
        assert len({slot for slot, _ in found(store)}) == len({lbl.name for _, lbl in found(store)})
        assert all(0 <= slot < store.num_slots for slot, _ in found(store))
        known = {label(number).name: number for number in range(1, 9)}
        for slot, lbl in found(store):
            if lbl.name in known:
                holds(store, slot, known[lbl.name])
            else:
                assert store.read(slot, lbl.name, np.empty(5000, dtype=np.uint8)) is None
        assert size_of(directory) == store.num_bytes
        put(store, 2, 500)
        put(store, 6, 600)
    with opened(directory) as store:
        assert found(store)[-2:] == [(2, label(500)), (6, label(600))]
        assert holds(store, 2, 500) and holds(store, 6, 600)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("start", [0, TABLE_HEADER_BYTES, 200])
def test_a_table_of_garbage_is_no_hit_and_no_error(start: int, seed: int, tmp_path: Path) -> None:
    fill(tmp_path)
    table = tmp_path / "table.kv"
    patch(table, start, random.Random(seed).randbytes(table.stat().st_size - start))
    _use(tmp_path)


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0xFF])
@pytest.mark.parametrize("start", [0, TABLE_HEADER_BYTES, 200])
def test_a_table_of_one_byte_over_and_over_is_no_hit_and_no_error(
    start: int, byte: int, tmp_path: Path
) -> None:
    fill(tmp_path)
    table = tmp_path / "table.kv"
    patch(table, start, bytes([byte]) * (table.stat().st_size - start))
    _use(tmp_path)


@pytest.mark.parametrize("length", [0, 1, RECORD, 3 * RECORD + 100, 100 * RECORD])
def test_blocks_of_another_length_are_hits_as_far_as_they_are_whole(length: int, tmp_path: Path) -> None:
    fill(tmp_path)
    os.truncate(tmp_path / "blocks.kv", length)
    with opened(tmp_path) as store:
        assert size_of(tmp_path) == store.num_bytes
        for slot in range(8):
            assert holds(store, slot, slot + 1) == (length >= (slot + 1) * RECORD)
    _use(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_gone_is_made_anew(name: str, tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / name).unlink()
    with opened(tmp_path) as store:
        hits = [holds(store, slot, slot + 1) for slot, _ in found(store)]
    assert hits == {"lock": [True] * 8, "table.kv": [], "blocks.kv": [False] * 8}[name]
    _use(tmp_path)


def test_of_two_slots_with_one_name_the_later_written_counts(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 6, 1)
        put(store, 0, 2)
        put(store, 2, 1)
        put(store, 4, 3)
        put(store, 1, 1)
        put(store, 7, 4)
    with opened(tmp_path) as store:
        assert found(store) == [(0, label(2)), (4, label(3)), (1, label(1)), (7, label(4))]
        assert holds(store, 1, 1)


# ---- one at a time -------------------------------------------------------------------------------

OWNER = """
import sys, time
from pathlib import Path
from tests.test_disk_store import opened, put
with opened(Path(sys.argv[1])) as store:
    put(store, 3, 33)
    print("open", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """It has the store open, with block 33 in slot 3; killed in the end."""
    command = [sys.executable, "-c", OWNER, str(directory)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


def test_what_was_erased_is_not_found_nor_an_older_copy_of_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for slot, number in enumerate((1, 2, 1, 3)):
            put(store, slot, number)
    with opened(tmp_path) as store:
        assert found(store) == [(1, label(2)), (2, label(1)), (3, label(3))]
        store.erase([2])
    with opened(tmp_path) as store:
        assert found(store) == [(1, label(2)), (3, label(3))]
        assert holds(store, 3, 3)


def test_that_a_name_could_not_be_erased_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "no such luck")

    with opened(tmp_path) as store:
        put(store, 0, 1)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", fail)
            store.erase([0])
    assert "may be found on disk after a restart" in caplog.text


def test_a_store_in_use_is_refused_and_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_store, "_LOCK_TIMEOUT_S", 0.1)
    with another_process(tmp_path) as owner:
        before = {name: (tmp_path / name).read_bytes() for name in FILES}
        with refused(tmp_path, "in use by another server"), opened(tmp_path, 2, 100, b"x" * 16):
            pass
        assert {name: (tmp_path / name).read_bytes() for name in FILES} == before
        owner.communicate("")
    with opened(tmp_path) as store:
        assert holds(store, 3, 33)


def test_a_store_is_free_again_after_its_owner_was_killed(tmp_path: Path) -> None:
    for _ in range(3):
        with another_process(tmp_path) as owner:
            owner.send_signal(signal.SIGKILL)
            assert owner.wait() == -signal.SIGKILL
            with opened(tmp_path) as store:
                assert found(store) == [(3, label(33))]
                assert holds(store, 3, 33)


WRITER = """
import itertools, sys, threading
from pathlib import Path
from tests.test_disk_store import opened, put
first = int(sys.argv[2])
with opened(Path(sys.argv[1]), 12, 100_000) as store:
    def write(slots):
        for number in itertools.count(first):
            for slot in slots:
                put(store, slot, 1000 * slot + number % 1000, 100_000)
    for worker in range(4):
        threading.Thread(target=write, args=(range(worker, 12, 4),), daemon=True).start()
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_store_whose_owner_is_killed_as_it_writes_gives_right_blocks_or_none(tmp_path: Path) -> None:
    rng = random.Random(3)
    num_hits = 0
    for round_ in range(KILLS):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(round_ * 10)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            threading.Event().wait(rng.random() * 0.03)
            process.kill()
        with opened(tmp_path, 12, 100_000) as store:
            assert size_of(tmp_path) == store.num_bytes
            for slot, lbl in found(store):
                number = int.from_bytes(lbl.name, "little")
                assert number // 1000 == slot
                num_hits += holds(store, slot, number, 100_000)
    assert num_hits > KILLS  # most of what was written survives


def test_a_store_that_is_about_to_be_closed_is_waited_for(tmp_path: Path) -> None:
    with another_process(tmp_path) as owner:
        killer = threading.Timer(0.2, owner.kill)
        killer.start()
        with opened(tmp_path) as store:
            assert holds(store, 3, 33)
        killer.join()


def test_two_stores_of_one_process_exclude_each_other_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_store, "_LOCK_TIMEOUT_S", 0.05)
    with opened(tmp_path / "a"), opened(tmp_path / "b"), refused(tmp_path / "a", "in use"):
        DiskStore(tmp_path / "a", store_bytes(8, 5000), 5000, FINGERPRINT)
    with opened(tmp_path / "a"):
        pass


# ---- what cannot be used -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_too_little_space_is_said_plainly_and_the_store_let_go(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    fill(tmp_path)
    monkeypatch.setattr(disk_store.os, "posix_fallocate", fail)
    with refused(tmp_path, "not enough room"), opened(tmp_path, 50):
        pass
    monkeypatch.undo()
    with opened(tmp_path) as store:  # not locked, and nothing lost
        assert all(holds(store, slot, slot + 1) for slot in range(8))


def test_a_store_that_finds_too_little_space_keeps_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_up(descriptor: int, start: int, num_bytes: int) -> None:
        """As ext4 does it: what there is is taken, and then there is no more."""
        os.ftruncate(descriptor, num_bytes // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fill(tmp_path)
    before = (tmp_path / "blocks.kv").stat().st_size
    monkeypatch.setattr(disk_store.os, "posix_fallocate", fill_up)
    with refused(tmp_path, "not enough room"), opened(tmp_path, 50):
        pass
    assert (tmp_path / "blocks.kv").stat().st_size == before


LIMITED = """
import resource, sys
from pathlib import Path
from tests.test_disk_store import opened, put, holds, size_of
from tiering.movers.disk_store import DiskStoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
directory = Path(sys.argv[1])
try:
    with opened(directory, 1000):
        print("opened")
except DiskStoreError as error:
    print(error)
with opened(directory, 8) as store:
    put(store, 7, 1)
    assert holds(store, 7, 1)
    print(size_of(directory) == store.num_bytes)
"""


def test_a_real_limit_of_the_file_size_is_said_plainly(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == f"There is not enough room for --disk-kv in {tmp_path}.\nTrue\n"


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    for directory in (path, path / "below"):
        with refused(directory, "cannot be used"), opened(directory):
            pass
        with refused(directory, "cannot be used"):
            open_secret(directory)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("name", FILES)
def test_a_directory_where_a_file_should_be_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with refused(tmp_path, "cannot be used"), opened(tmp_path):
        pass


@pytest.mark.parametrize("dangling", [False, True])
@pytest.mark.parametrize("name", [*FILES, "secret"])
def test_a_symbolic_link_for_a_file_is_refused_and_not_followed(
    name: str, dangling: bool, tmp_path: Path
) -> None:
    target, directory = tmp_path / "precious", tmp_path / "kv"
    directory.mkdir()
    if not dangling:
        target.write_bytes(b"p" * 32)
    (directory / name).symlink_to(target)
    with refused(directory, "cannot be used"):
        if name == "secret":
            open_secret(directory)
        else:
            DiskStore(directory, store_bytes(8, 5000), 5000, FINGERPRINT)
    assert target.exists() != dangling
    if not dangling:
        assert target.read_bytes() == b"p" * 32


@contextmanager
def as_nobody() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def public_directory(mode: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, mode)
        yield Path(folder)


@needs_root
def test_a_directory_that_cannot_be_written_is_refused() -> None:
    with public_directory(0o555) as directory, as_nobody():
        for path in (directory, directory / "below"):
            with refused(path, "Permission denied"), opened(path):
                pass
            with refused(path, "Permission denied"):
                open_secret(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_we_may_not_write_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o500)
    with refused(tmp_path, "Permission denied"), opened(tmp_path):
        pass


@needs_root
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_user_is_refused(name: str) -> None:
    with public_directory(0o777) as directory:
        (directory / name).touch()
        os.chmod(directory / name, 0o666)
        with as_nobody(), refused(directory, "belongs to another user"), opened(directory):
            pass
        assert (directory / name).stat().st_size == 0


def test_a_file_system_without_direct_io_leaves_no_descriptor_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_preadv = os.preadv

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if os.get_blocking(descriptor) and _flags(descriptor) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_preadv(descriptor, buffers, offset)

    monkeypatch.setattr(disk_store.os, "preadv", preadv)
    before = num_descriptors()
    with opened(tmp_path) as store:
        assert not store.is_direct
        put(store, 1, 1)
        assert holds(store, 1, 1)
    assert num_descriptors() == before


def _flags(descriptor: int) -> int:
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("flags:")), 8)


def test_closing_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    before = num_descriptors()
    for _ in range(5):
        with opened(tmp_path) as store:
            put(store, 1, 1)
    assert num_descriptors() == before


# ---- the secret ----------------------------------------------------------------------------------


def test_the_secret_is_made_once_and_is_of_this_store_alone(tmp_path: Path) -> None:
    first, other = tmp_path / "a" / "deep", tmp_path / "b"
    secret = open_secret(first)
    assert len(secret) == 32
    assert open_secret(first) == secret
    with opened(first):
        assert open_secret(first) == secret
    assert open_secret(other) != secret
    assert mode(first / "secret") == 0o600
    assert mode(first) == 0o700


@pytest.mark.parametrize("length", [1, 31, 33, 10_000])
def test_a_damaged_secret_is_refused_and_not_replaced(length: int, tmp_path: Path) -> None:
    open_secret(tmp_path)
    (tmp_path / "secret").write_bytes(b"s" * length)
    with refused(tmp_path, "is damaged"):
        open_secret(tmp_path)
    assert (tmp_path / "secret").read_bytes() == b"s" * length


DYING = """
import os, signal, sys
from pathlib import Path
from tiering.movers import disk_store
disk_store.os.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
disk_store.open_secret(Path(sys.argv[1]))
"""


def test_a_secret_whose_maker_was_killed_is_made_again(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], cwd=ROOT, check=False)
    assert result.returncode == -signal.SIGKILL
    secret = open_secret(tmp_path)
    assert len(secret) == 32
    assert open_secret(tmp_path) == secret


def test_a_secret_that_found_no_room_is_made_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_store.os, "write", fail)
    with refused(tmp_path, "not enough room"):
        open_secret(tmp_path)
    monkeypatch.undo()
    assert len(open_secret(tmp_path)) == 32


# ---- looking without touching ----------------------------------------------------------------------


def look(directory: Path) -> disk_store.StoreFigures:
    return disk_store.look_into(directory, store_bytes(8, 5000), 5000, FINGERPRINT)


def test_a_look_tells_that_the_store_is_in_use_and_leaves_it_alone(tmp_path: Path) -> None:
    assert not look(tmp_path / "new").is_in_use
    assert not (tmp_path / "new").exists()
    with opened(tmp_path):
        before = sorted((path.name, path.stat().st_size) for path in tmp_path.iterdir())
        assert look(tmp_path).is_in_use
        assert sorted((path.name, path.stat().st_size) for path in tmp_path.iterdir()) == before
    assert not look(tmp_path).is_in_use


def test_a_look_tells_what_opening_would(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DiskStoreError, match="is a file, not a directory"):
        look(tmp_path / "file" / "kv")


def test_a_secret_is_not_made_by_looking(tmp_path: Path) -> None:
    assert disk_store.look_at_secret(tmp_path) == b""
    assert not (tmp_path / "secret").exists()
    secret = open_secret(tmp_path)
    assert disk_store.look_at_secret(tmp_path) == secret


def test_a_table_that_is_gone_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path):
        pass
    assert caplog.text == ""
    (tmp_path / "table.kv").unlink()
    with opened(tmp_path) as store:
        assert store.found == []
    assert "are dropped" in caplog.text
