"""Calls of the CUDA driver, made by its calling convention to a driver that is none.

Its entries are C functions whose bodies are here: they read the arguments as a driver would.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tiering.movers import cuda_driver
from tiering.movers.copy_stream import CopyError, DeviceLostError
from tiering.movers.cuda_driver import (
    MAX_BATCH_COPIES,
    CudaDriver,
    CudaDriverError,
    CudaDriverMissingError,
    MemcpyAttributes,
    MemLocation,
)

STREAM = 0x7F12_3456_7890
NAMES = {1: b"CUDA_ERROR_INVALID_VALUE", 700: b"CUDA_ERROR_ILLEGAL_ADDRESS", 801: b"CUDA_ERROR_NOT_SUPPORTED"}
HEADER = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include" / "cudaTypedefs.h"


class FakeLibrary:
    """A driver of one version. ``answers`` are error codes by entry; ``fails_at`` is what a batch tells."""

    def __init__(self, version: int, *, lacks: tuple[str, ...] = ()) -> None:
        self.version = version
        self.asked: list[tuple[str, int]] = []
        self.answers: dict[str, int] = {}
        self.fails_at: int | None = None
        self.attributes: list[tuple[int, ...]] = []
        self.streams: list[int] = []
        self._lacks = lacks
        self._entries = {
            ("cuDriverGetVersion", 2020): cuda_driver.DriverGetVersion(self._get_version),
            ("cuGetErrorName", 6000): cuda_driver.GetErrorName(self._error_name),
            ("cuMemcpyHtoDAsync", 3020): cuda_driver.MemcpyHtoDAsync(self._copy),
            ("cuMemcpyDtoHAsync", 3020): cuda_driver.MemcpyDtoHAsync(self._copy),
            ("cuMemcpyBatchAsync", 12080): cuda_driver.MemcpyBatchAsync12080(self._batch_12080),
            ("cuMemcpyBatchAsync", 13000): cuda_driver.MemcpyBatchAsync13000(self._batch_13000),
        }
        self.get_proc_address = cuda_driver.GetProcAddress(self._get_proc_address)

    def _get_proc_address(self, name: bytes, found: Any, version: int, flags: int, status: Any) -> int:
        self.asked.append((name.decode(), version))
        if version > self.version:
            return 1
        assert flags == 0
        entry = None if name.decode() in self._lacks else self._entries.get((name.decode(), version))
        found[0] = None if entry is None else ctypes.cast(entry, ctypes.c_void_p).value
        status[0] = 1 if entry is None else 0
        return 0

    def _get_version(self, number: Any) -> int:
        number[0] = self.version
        return self.answers.get("cuDriverGetVersion", 0)

    def _error_name(self, code: int, name: Any) -> int:
        if code not in NAMES:
            return 1
        name[0] = NAMES[code]
        return 0

    def _copy(self, target: int, source: int, num_bytes: int, stream: int) -> int:
        self.streams.append(stream)
        if not self.answers.get("copy", 0):
            ctypes.memmove(target, source, num_bytes)
        return self.answers.get("copy", 0)

    def _batch_12080(self, *arguments: Any) -> int:
        *rest, failed, stream = arguments
        if self.fails_at is not None:
            failed[0] = self.fails_at
        return self.answers.get("batch of 12.8", 0) or self._batch(*rest, stream)

    def _batch_13000(self, *arguments: Any) -> int:
        return self._batch(*arguments)

    def _batch(
        self,
        targets: int,
        sources: int,
        sizes: int,
        count: int,
        sets: int,
        firsts: int,
        num_sets: int,
        stream: int,
    ) -> int:
        self.streams.append(stream)
        self.attributes.append((*(ctypes.c_int * 6).from_address(sets), num_sets))
        assert (ctypes.c_uint64 * count).from_address(firsts)[:] == [0] * count
        if answer := self.answers.get("batch", 0):
            return answer
        columns = [(ctypes.c_uint64 * count).from_address(column) for column in (targets, sources, sizes)]
        for target, source, size in zip(*columns, strict=True):
            ctypes.memmove(target, source, size)
        return 0


def addresses(*values: int) -> npt.NDArray[np.uint64]:
    return np.array(values, dtype=np.uint64)


def test_the_attributes_are_laid_out_as_in_the_header() -> None:
    assert ctypes.sizeof(MemLocation) == 8
    assert ctypes.sizeof(MemcpyAttributes) == 24
    offsets = [getattr(MemcpyAttributes, name).offset for name, _ in MemcpyAttributes._fields_]
    assert offsets == [0, 4, 12, 20]


@pytest.mark.skipif(not HEADER.exists(), reason="there is no CUDA toolkit here")
@pytest.mark.parametrize("version", [12080, 13000])
def test_the_signatures_are_those_of_the_header(version: int) -> None:
    found = re.search(rf"PFN_cuMemcpyBatchAsync_v{version}\)\(([^)]*)\)", HEADER.read_text())
    if found is None:
        pytest.skip(f"the toolkit here is older than {version}")
    names = [argument.split()[-1].lstrip("*") for argument in found[1].split(",")]
    expected = ["dsts", "srcs", "sizes", "count", "attrs", "attrIdxs", "numAttrs", "failIdx", "hStream"]
    assert names == [name for name in expected if version < 13000 or name != "failIdx"]
    prototype = getattr(cuda_driver, f"MemcpyBatchAsync{version}")
    assert len(prototype._argtypes_) == len(names)


@pytest.mark.parametrize(
    ("version", "versions"),
    [(12000, []), (12070, []), (12080, [12080]), (12090, [12080]), (13000, [12080, 13000])],
)
def test_a_driver_is_asked_for_no_more_than_its_version_has(version: int, versions: list[int]) -> None:
    library = FakeLibrary(version)
    driver = CudaDriver(library.get_proc_address)
    assert driver.version == version
    assert [batch.version for batch in driver.batch_copies()] == versions
    assert all(asked <= version for _, asked in library.asked)


def test_a_driver_that_has_dropped_an_entry_is_used_without() -> None:
    assert CudaDriver(FakeLibrary(13000, lacks=("cuMemcpyBatchAsync",)).get_proc_address).batch_copies() == ()
    with pytest.raises(CudaDriverError, match="no cuMemcpyHtoDAsync of version 3020"):
        CudaDriver(FakeLibrary(13000, lacks=("cuMemcpyHtoDAsync",)).get_proc_address)


def test_single_copies_say_which_end_is_which() -> None:
    library = FakeLibrary(12040)
    driver = CudaDriver(library.get_proc_address)
    device, host = np.arange(64, dtype=np.uint8), np.zeros(64, dtype=np.uint8)
    driver.copy_to_host(host.ctypes.data + 8, device.ctypes.data, 24, STREAM)
    assert host.tolist() == [0] * 8 + list(range(24)) + [0] * 32
    driver.copy_to_device(device.ctypes.data + 60, host.ctypes.data + 30, 2, STREAM)
    assert device.tolist() == [*range(60), 22, 23, 62, 63]
    assert library.streams == [STREAM, STREAM]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("count", [1, 7, MAX_BATCH_COPIES])
def test_a_batch_copies_all_in_stream_order_and_beside_compute(index: int, count: int) -> None:
    library = FakeLibrary(13010)
    batch = CudaDriver(library.get_proc_address).batch_copies()[index]
    source = np.random.default_rng(0).integers(0, 256, (count, 96), dtype=np.uint8)
    target = np.zeros_like(source)
    order = np.random.default_rng(1).permutation(count)
    sizes = addresses(*(32 + i % 64 for i in range(count)))
    batch(
        addresses(*(target.ctypes.data + 96 * i for i in range(count))),
        addresses(*(source.ctypes.data + 96 * int(i) for i in order)),
        sizes,
        STREAM,
    )
    for i, size in enumerate(sizes.tolist()):
        np.testing.assert_array_equal(target[i, :size], source[order[i], :size])
        assert not target[i, size:].any()
    assert library.attributes == [(1, 0, 0, 0, 0, 1, 1)]  # stream order, no hints, overlap; one set
    assert library.streams == [STREAM]


@pytest.mark.parametrize("index", [0, 1])
def test_errors_are_told_by_their_names_and_the_copy_at_fault(index: int) -> None:
    library = FakeLibrary(13000)
    driver = CudaDriver(library.get_proc_address)
    batch = driver.batch_copies()[index]
    library.answers["batch"] = 801
    library.fails_at = 2
    three = addresses(1, 2, 3)
    refused = "^cuMemcpyBatchAsync answered CUDA_ERROR_NOT_SUPPORTED" + ("", " for copy 2 of 3")[index == 0]
    with pytest.raises(CudaDriverError, match=refused + "$"):
        batch(three, three, three, STREAM)
    library.answers["copy"] = 12345
    with pytest.raises(CudaDriverError, match=r"^cuMemcpyDtoHAsync answered error 12345$"):
        driver.copy_to_host(1, 2, 3, STREAM)
    library.answers |= {"copy": 700, "batch": 700}
    with pytest.raises(DeviceLostError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        driver.copy_to_device(1, 2, 3, STREAM)
    with pytest.raises(DeviceLostError):
        batch(three, three, three, STREAM)


@pytest.mark.parametrize(("count", "stream"), [(0, STREAM), (MAX_BATCH_COPIES + 1, STREAM), (1, 0)])
def test_what_the_driver_would_refuse_or_crash_on_never_gets_there(count: int, stream: int) -> None:
    library = FakeLibrary(13000)
    (batch, _) = CudaDriver(library.get_proc_address).batch_copies()
    with pytest.raises(AssertionError):
        batch(*([addresses(*range(1, count + 1))] * 3), stream)
    assert library.streams == []


def test_a_machine_without_a_driver_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_LIBRARY", "libno-such-driver.so.1")
    with pytest.raises(CudaDriverMissingError, match=r"libno-such-driver\.so\.1 cannot be used"):
        CudaDriver.load()
    monkeypatch.setattr(cuda_driver, "_LIBRARY", "libc.so.6")  # one that lacks the entry
    with pytest.raises(CopyError, match=r"libc\.so\.6 cannot be used"):
        CudaDriver.load()
