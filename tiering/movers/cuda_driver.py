"""The calls of the CUDA driver that torch does not have: copies between device and host by address.

Runs on: any thread on which torch has used the device, so that its context is current. Blocks: never, but
for memory that is not pinned. Every entry is asked for by ``cuGetProcAddress`` with the version whose
signature is written here, never by its symbol: ``cuMemcpyBatchAsync`` of CUDA 12.8 tells by an argument
which copy was at fault, that of CUDA 13 has no such argument, and calling one as the other crashes. The
batched copy refuses the legacy default stream, a stream that is being captured, and sizes of zero.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tiering.movers.copy_runs import Addresses
from tiering.movers.copy_stream import CopyError, DeviceLostError

MAX_BATCH_COPIES = 256  # in one call, which the step thread waits for

_LIBRARY = "libcuda.so.1"
_NO_INDEX = 2**64 - 1
_SOURCE_ORDER_STREAM = 1  # the source is read no earlier than the stream comes to the copy
_PREFER_OVERLAP_WITH_COMPUTE = 1  # by copy engines, not by multiprocessors
_LOST = {
    46, 214, 220, 226,  # device unavailable, uncorrectable errors of memory and NVLink, contained errors
    700, 702, 709, 710,  # illegal address, launch timeout, context destroyed, assert
    714, 715, 716, 717, 718, 719, 721,  # faults of kernels
}  # fmt: skip

GetProcAddress = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_int,
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.c_int),
)
DriverGetVersion = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
GetErrorName = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
MemcpyHtoDAsync = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
)
MemcpyDtoHAsync = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
)
_BATCH_ARGUMENTS = (
    ctypes.c_void_p,  # targets
    ctypes.c_void_p,  # sources
    ctypes.c_void_p,  # sizes
    ctypes.c_size_t,  # how many of each
    ctypes.c_void_p,  # sets of attributes
    ctypes.c_void_p,  # the first copy that each set is for
    ctypes.c_size_t,  # how many sets
)
MemcpyBatchAsync12080 = ctypes.CFUNCTYPE(
    ctypes.c_int, *_BATCH_ARGUMENTS, ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p
)
MemcpyBatchAsync13000 = ctypes.CFUNCTYPE(ctypes.c_int, *_BATCH_ARGUMENTS, ctypes.c_void_p)


class CudaDriverError(CopyError):
    """A call that the driver refused."""


class CudaDriverMissingError(CopyError):
    """There is no driver, or none that can be asked for its entries."""


class MemLocation(ctypes.Structure):
    """``CUmemLocation``: a hint for managed memory, ignored for ours."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class MemcpyAttributes(ctypes.Structure):
    """``CUmemcpyAttributes``: 24 bytes."""

    _fields_ = (
        ("src_access_order", ctypes.c_int),
        ("src_location", MemLocation),
        ("dst_location", MemLocation),
        ("flags", ctypes.c_uint),
    )


class CudaDriver:
    """The driver behind ``get_proc_address``. ``version`` is 12080 for CUDA 12.8, and so on."""

    def __init__(self, get_proc_address: Any) -> None:
        self._get_proc_address = get_proc_address
        self._error_name = self._entry("cuGetErrorName", 6000, GetErrorName)
        number = ctypes.c_int()
        self._check("cuDriverGetVersion", self._entry("cuDriverGetVersion", 2020, DriverGetVersion)(number))
        self.version = number.value
        self._to_device = self._entry("cuMemcpyHtoDAsync", 3020, MemcpyHtoDAsync)
        self._to_host = self._entry("cuMemcpyDtoHAsync", 3020, MemcpyDtoHAsync)

    @classmethod
    def load(cls) -> CudaDriver:
        """The driver of this machine. Raises CudaDriverMissingError."""
        try:
            symbol = ctypes.CDLL(_LIBRARY).cuGetProcAddress_v2  # since CUDA 12.0
        except (OSError, AttributeError) as error:
            raise CudaDriverMissingError(f"{_LIBRARY} cannot be used: {error}") from error
        return cls(GetProcAddress(ctypes.cast(symbol, ctypes.c_void_p).value or 0))

    def copy_to_device(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        """Enqueue one copy from host to device. Raises CudaDriverError."""
        self._check("cuMemcpyHtoDAsync", self._to_device(target, source, num_bytes, stream))

    def copy_to_host(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        """Enqueue one copy from device to host. Raises CudaDriverError."""
        self._check("cuMemcpyDtoHAsync", self._to_host(target, source, num_bytes, stream))

    def batch_copies(self) -> tuple[BatchCopy, ...]:
        """The batched copies that this driver has, the one to be preferred first; none before CUDA 12.8."""
        found: list[BatchCopy] = []
        for version, prototype in ((12080, MemcpyBatchAsync12080), (13000, MemcpyBatchAsync13000)):
            if self.version >= version:
                try:
                    entry = self._entry("cuMemcpyBatchAsync", version, prototype)
                except CudaDriverError:
                    continue
                found.append(BatchCopy(version, entry, self._check))
        return tuple(found)

    def _entry(self, name: str, version: int, prototype: Any) -> Any:
        address, status = ctypes.c_void_p(), ctypes.c_int()
        code = self._get_proc_address(name.encode(), address, version, 0, status)
        if code or not address.value:
            raise CudaDriverError(
                f"the driver has no {name} of version {version} (error {code}, status {status.value})"
            )
        return prototype(address.value)

    def _check(self, call: str, code: int, remark: str = "") -> None:
        if code == 0:
            return
        name = ctypes.c_char_p()
        known = self._error_name(code, name) == 0 and name.value is not None
        text = name.value.decode() if known and name.value is not None else f"error {code}"
        kind = DeviceLostError if code in _LOST else CudaDriverError
        raise kind(f"{call} answered {text}{remark}")


class BatchCopy:
    """``cuMemcpyBatchAsync`` with the signature of one version."""

    def __init__(self, version: int, entry: Any, check: Callable[[str, int, str], None]) -> None:
        self.version = version
        self._entry = entry
        self._check = check
        self._attributes = MemcpyAttributes(
            src_access_order=_SOURCE_ORDER_STREAM, flags=_PREFER_OVERLAP_WITH_COMPUTE
        )
        # One index for one set of attributes is what the header asks for. Whoever reads it as one for each
        # copy, as some do, finds zeros too.
        self._first_copies: npt.NDArray[np.uint64] = np.zeros(MAX_BATCH_COPIES, dtype=np.uint64)

    def __call__(self, targets: Addresses, sources: Addresses, sizes: Addresses, stream: int) -> None:
        """Enqueue copies. Raises CudaDriverError; some of them may be under way then."""
        count = len(sizes)
        assert 0 < count <= MAX_BATCH_COPIES and len(targets) == len(sources) == count
        assert stream, "batched copies refuse the legacy default stream"
        arrays = (targets, sources, sizes)
        assert all(array.dtype == np.uint64 and array.flags.c_contiguous for array in arrays)
        failed = ctypes.c_size_t(_NO_INDEX)
        where = (failed,) if self.version == 12080 else ()
        code = self._entry(
            *(array.ctypes.data for array in arrays),
            count,
            ctypes.addressof(self._attributes),
            self._first_copies.ctypes.data,
            1,
            *where,
            stream,
        )
        remark = "" if failed.value == _NO_INDEX else f" for copy {failed.value} of {count}"
        self._check("cuMemcpyBatchAsync", code, remark)
