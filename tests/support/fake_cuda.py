"""A device that copies by itself, made of CPU memory: what is enqueued happens when a test lets it.

Each stream is a queue of operations. ``advance`` carries some out, of any streams in any order that events
allow, so what is not ordered comes out of order; ``running`` does so on a thread. Addresses are real ones,
and checked: nothing beyond the pools, no batch outside of pinned memory or over the end of a registration.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tiering.movers.copy_path import CopyPath
from tiering.movers.copy_runs import CopyList, Ends
from tiering.movers.copy_stream import CopyError, DeviceLostError
from tiering.types import TransferKind

Operation = Callable[[], None]
Lie = Callable[[CopyList], CopyList]


class FakePinning:
    """Notes what is registered; refuses from chunk ``fails_at`` on, or to let go of anything."""

    def __init__(self, fails_at: int | None = None, *, keeps: bool = False) -> None:
        self.chunks: dict[int, int] = {}  # number of bytes by address
        self.num_calls = 0
        self._fails_at = fails_at
        self._keeps = keeps

    def pin(self, address: int, num_bytes: int) -> None:
        self.num_calls += 1
        if self._fails_at is not None and self.num_calls > self._fails_at:
            raise OSError("the driver says no")
        assert address not in self.chunks
        self.chunks[address] = num_bytes

    def unpin(self, address: int) -> None:
        if self._keeps:
            raise OSError("the driver does not let go")
        del self.chunks[address]

    def holds(self, address: int, num_bytes: int) -> bool:
        """Whether one registration has all of it."""
        return any(a <= address and address + num_bytes <= a + n for a, n in self.chunks.items())


class FakeDevice:
    """Device memory ``blocks``, uint8 ``[num_blocks, block_bytes]``, and what happens to it.

    ``refuses_batches``, ``lies`` (what is copied instead, by direction and whether in a batch),
    ``failing_copies`` (which single copies fail, by number), ``failing_records`` and ``is_lost`` are the
    faults. ``calls`` counts what streams were asked; ``batches`` has the directions of batches, in order.
    """

    def __init__(self, blocks: npt.NDArray[np.uint8], seed: int = 0) -> None:
        self.blocks = blocks
        self.refuses_batches = False
        self.lies: dict[tuple[TransferKind, bool], Lie] = {}
        self.failing_copies: set[int] = set()
        self.failing_records: set[int] = set()
        self.is_lost = False
        self.calls = dict.fromkeys(("batch", "copy", "record"), 0)
        self.batches: list[TransferKind | None] = []
        self.pinning = FakePinning()
        self.num_events = 0  # that streams of copies made
        self.ticks = 0
        self.changed = threading.Condition()
        self.random = random.Random(seed)
        self._queues: list[deque[tuple[FakeEvent | None, Operation]]] = []
        self.compute = FakeStream(self, None, b"")

    def add_queue(self) -> deque[tuple[FakeEvent | None, Operation]]:
        self._queues.append(deque())
        return self._queues[-1]

    def path(self, host: npt.NDArray[np.uint8], *, is_batched: bool = True, name: str = "fake") -> CopyPath:
        kinds = (TransferKind.SWAP_OUT, TransferKind.SWAP_IN)
        return CopyPath(name, {kind: FakeStream(self, kind, host) for kind in kinds}, is_batched)

    def ends(self, host: npt.NDArray[np.uint8]) -> Ends:
        return Ends(self.blocks.ctypes.data, host.ctypes.data, self.blocks.shape[1])

    @property
    def num_pending(self) -> int:
        with self.changed:
            return sum(map(len, self._queues))

    def advance(self, count: int = 1) -> int:
        """Carry out up to ``count`` operations; how many there were to do."""
        with self.changed:
            for done in range(count):
                ready = [q for q in self._queues if q and (q[0][0] is None or q[0][0].over)]
                if not ready or self.is_lost:
                    return done
                _, operation = self.random.choice(ready).popleft()
                operation()
                self.ticks += 1
                self.changed.notify_all()
        return count

    def finish(self) -> None:
        """Carry out all that events allow."""
        while self.advance():
            pass

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Goes on by itself meanwhile."""
        stopping = threading.Event()

        def run() -> None:
            while not stopping.is_set():
                if not self.advance(self.random.randint(1, 8)):
                    stopping.wait(0.0002)

        thread = threading.Thread(target=run, name="fake-device", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()

    def lose(self) -> None:
        with self.changed:
            self.is_lost = True
            self.changed.notify_all()


class FakeEvent:
    """``over`` once the stream has come to it; ``tick`` is when. ``is_idle``: given back, and nobody's."""

    def __init__(self, device: FakeDevice) -> None:
        self.over = False
        self.tick = 0
        self.is_idle = False
        self._num_waiting = 0
        self._device = device

    def give_back(self) -> None:
        with self._device.changed:
            assert not self.is_idle and not self._num_waiting, "an event is given back while it is in use"
            assert self.over or self._device.is_lost
            self.is_idle = True

    def is_over(self) -> bool:
        self._check()
        return self.over

    def wait(self) -> None:
        with self._device.changed:
            self._num_waiting += 1
            self._device.changed.wait_for(lambda: self.over or self._device.is_lost)
            self._num_waiting -= 1
        self._check()

    def seconds_since(self, earlier: Any) -> float:
        self._check()
        assert self.over and earlier.over, "a time is asked for that is not known yet"
        return (self.tick - earlier.tick) / 1e6

    def _check(self) -> None:
        assert not self.is_idle, "an event is asked that was given back"
        if self._device.is_lost and not self.over:
            raise DeviceLostError("illegal address")


class FakeStream:
    """A queue of the device; one of the mover's directions, or compute."""

    def __init__(self, device: FakeDevice, kind: TransferKind | None, host: Any) -> None:
        self._device = device
        self._kind = kind
        self._host = host
        self._queue = device.add_queue()
        self._idle: list[FakeEvent] = []

    def enqueue(self, operation: Operation, after: FakeEvent | None = None) -> None:
        self._check()
        with self._device.changed:
            self._queue.append((after, operation))
            self._device.changed.notify_all()

    def wait_for_compute(self) -> None:
        self.enqueue(lambda: None, after=self._device.compute.record())

    def record(self) -> FakeEvent:
        if self._kind is not None:
            self._count("record", self._device.failing_records)
        event = self._idle.pop() if self._idle else self._new_event()
        event.over = event.is_idle = False

        def pass_by() -> None:
            event.over, event.tick = True, self._device.ticks

        self.enqueue(pass_by)
        return event

    def reuse(self, event: FakeEvent) -> None:
        event.give_back()
        self._idle.append(event)

    def _new_event(self) -> FakeEvent:
        self._device.num_events += self._kind is not None
        return FakeEvent(self._device)

    def copy(self, device: int, host: int, num_bytes: int) -> None:
        self._count("copy", self._device.failing_copies)
        columns = (np.array([value], dtype=np.uint64) for value in (device, host, num_bytes))
        self._enqueue_copies(CopyList(*columns), is_batch=False)

    def copy_batch(self, copies: CopyList) -> None:
        self._count("batch", set())
        self._device.batches.append(self._kind)
        assert 0 < len(copies.sizes) <= 256
        for host, size in zip(copies.host.tolist(), copies.sizes.tolist(), strict=True):
            if not self._device.pinning.holds(host, size):
                raise CopyError("cuMemcpyBatchAsync answered CUDA_ERROR_INVALID_VALUE")
        if self._device.refuses_batches:
            begun = self._device.random.randint(0, len(copies.sizes))
            self._enqueue_copies(_part(copies, slice(begun)), is_batch=True)
            raise CopyError("cuMemcpyBatchAsync answered CUDA_ERROR_NOT_SUPPORTED")
        self._enqueue_copies(copies, is_batch=True)

    def synchronize(self) -> None:
        self.record_unfailingly().wait()

    def record_unfailingly(self) -> FakeEvent:
        failing, self._device.failing_records = self._device.failing_records, set()
        try:
            return self.record()
        finally:
            self._device.failing_records = failing

    def _enqueue_copies(self, copies: CopyList, *, is_batch: bool) -> None:
        assert self._kind is not None
        copies = self._device.lies.get((self._kind, is_batch), lambda told: told)(copies)
        moves = [
            self._move(*numbers)
            for numbers in zip(
                copies.device.tolist(), copies.host.tolist(), copies.sizes.tolist(), strict=True
            )
        ]
        self._device.random.shuffle(moves)
        for halves in moves:
            for half in halves:
                self.enqueue(half)

    def _move(self, device: int, host: int, num_bytes: int) -> tuple[Operation, Operation]:
        """A copy in two halves: others may come in between."""
        blocks = self._device.blocks
        assert 0 <= device - blocks.ctypes.data <= blocks.nbytes - num_bytes
        assert 0 <= host - self._host.ctypes.data <= self._host.nbytes - num_bytes
        target, source = (host, device) if self._kind is TransferKind.SWAP_OUT else (device, host)
        cut = num_bytes // 2
        return (
            lambda: _memmove(target, source, cut),
            lambda: _memmove(target + cut, source + cut, num_bytes - cut),
        )

    def _count(self, call: str, failing: set[int]) -> None:
        self._check()
        number = self._device.calls[call]
        self._device.calls[call] += 1
        if number in failing:
            raise CopyError(f"{call} {number} fails")

    def _check(self) -> None:
        if self._device.is_lost:
            raise DeviceLostError("illegal address")


def _memmove(target: int, source: int, num_bytes: int) -> None:
    ctypes.memmove(target, source, num_bytes)


def _part(copies: CopyList, which: slice) -> CopyList:
    return CopyList(copies.device[which], copies.host[which], copies.sizes[which])
