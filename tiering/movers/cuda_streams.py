"""Streams, events and pinned memory of CUDA, and the mover made of them.

Runs on: the thread that steps, and the mover's own; ``CudaPinning`` on the one that takes host memory.
Streams and events are torch's, which keeps the context of each thread; copies are the driver's own calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tiering.memory.host_pool import HostPool
from tiering.movers.checksums import HostChecksums
from tiering.movers.copy_path import TIMED_BYTES, CopyPath, choose_path
from tiering.movers.copy_runs import CopyList, Ends
from tiering.movers.copy_stream import CopyError
from tiering.movers.cuda import CudaMover
from tiering.movers.cuda_driver import BatchCopy, CudaDriver
from tiering.types import TransferKind


def cuda_mover(
    pool: torch.Tensor, memory: HostPool, checksums: HostChecksums | None, on_done: Callable[[], None]
) -> CudaMover:
    """A mover between ``pool`` ``[N, ...]`` on a GPU and ``memory``, with the best way to copy that works.

    To find out it copies some blocks to and fro, over what is in them: nobody may use either yet. Waits for
    as much of ``memory`` as that takes. Raises CopyError if none works.
    """
    assert pool.is_cuda and pool.is_contiguous()
    assert pool[0].nbytes == memory.slots.shape[1]
    ends = Ends(pool.data_ptr(), memory.slots.ctypes.data, pool[0].nbytes)
    memory.wait_some(TIMED_BYTES // ends.block_bytes)
    paths, num_slots = cuda_paths(pool.device), memory.num_pinned
    if num_slots == 0:  # nothing is pinned, and nothing will be: batches are for pinned memory
        paths, num_slots = paths[-1:], memory.num_ready
    chosen = choose_path(paths, ends, pool.shape[0], memory.slots[:num_slots])
    return CudaMover(ends, memory, chosen.path, checksums, on_done, description=chosen.description)


def cuda_paths(device: torch.device) -> list[CopyPath]:
    """The ways there are to copy, the one to be preferred first."""
    driver = CudaDriver.load()

    def path(name: str, batch: BatchCopy | None) -> CopyPath:
        kinds = (TransferKind.SWAP_OUT, TransferKind.SWAP_IN)
        streams = {kind: CudaCopyStream(device, kind, driver, batch) for kind in kinds}
        return CopyPath(name, streams, is_batched=batch is not None)

    paths = [path(f"batched copies as of CUDA {_number(b.version)}", b) for b in driver.batch_copies()]
    return [*paths, path("one copy a run of blocks", None)]


class CudaCopyStream:
    """A stream of its own for one direction. Compute is on the stream that is current when this is made."""

    def __init__(
        self, device: torch.device, kind: TransferKind, driver: CudaDriver, batch: BatchCopy | None
    ) -> None:
        self._device = device
        self._is_outward = kind is TransferKind.SWAP_OUT
        self._driver = driver
        self._batch = batch
        self._stream = torch.cuda.Stream(device)
        self._handle = self._stream.cuda_stream
        self._compute = torch.cuda.current_stream(device)
        self._idle: list[torch.cuda.Event] = []

    def wait_for_compute(self) -> None:
        current = torch.cuda.current_stream(self._device)
        assert current == self._compute, "blocks are moved from another stream than steps are computed on"
        # A copy cannot be captured, and a stream that waits for one under capture would be drawn into it.
        assert not torch.cuda.is_current_stream_capturing(), "blocks are moved while a graph is captured"
        with _as_copy_errors():
            self._stream.wait_stream(self._compute)

    def record(self) -> CudaCopyEvent:
        with _as_copy_errors():
            idle = self._idle
            event = idle.pop() if idle else torch.cuda.Event(enable_timing=True, blocking=True)
            event.record(self._stream)
            return CudaCopyEvent(event)

    def reuse(self, event: CudaCopyEvent) -> None:
        self._idle.append(event.event)

    def copy(self, device: int, host: int, num_bytes: int) -> None:
        if self._is_outward:
            self._driver.copy_to_host(host, device, num_bytes, self._handle)
        else:
            self._driver.copy_to_device(device, host, num_bytes, self._handle)

    def copy_batch(self, copies: CopyList) -> None:
        assert self._batch is not None
        if self._is_outward:
            self._batch(copies.host, copies.device, copies.sizes, self._handle)
        else:
            self._batch(copies.device, copies.host, copies.sizes, self._handle)

    def synchronize(self) -> None:
        with _as_copy_errors():
            self._stream.synchronize()


class CudaCopyEvent:
    """A torch event; who waits for it sleeps."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def is_over(self) -> bool:
        with _as_copy_errors():
            return bool(self.event.query())

    def wait(self) -> None:
        with _as_copy_errors():
            self.event.synchronize()

    def seconds_since(self, earlier: CudaCopyEvent) -> float:
        with _as_copy_errors():
            return float(earlier.event.elapsed_time(self.event)) / 1000


class CudaPinning:
    """Registers host memory with the driver, so that copies are asynchronous and at the link's full rate.

    torch's own call makes the device's context current on a thread that has none yet.
    """

    def pin(self, address: int, num_bytes: int) -> None:
        """Raises OSError."""
        self._check("cudaHostRegister", torch.cuda.cudart().cudaHostRegister(address, num_bytes, 0))

    def unpin(self, address: int) -> None:
        """Raises OSError."""
        self._check("cudaHostUnregister", torch.cuda.cudart().cudaHostUnregister(address))

    def _check(self, call: str, status: Any) -> None:
        if (code := int(getattr(status, "value", status))) != 0:  # an enum, in torch
            raise OSError(f"{call} answered error {code}")


@contextlib.contextmanager
def _as_copy_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # as torch's CUDA errors are
        raise CopyError(str(error).partition("\n")[0]) from error


def _number(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
