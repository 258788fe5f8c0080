"""What a mover asks of a device that copies by itself: one queue of copies a direction, and its events.

``tiering/movers/cuda_streams.py`` has it from CUDA, tests from a device made of CPU memory.
"""

from __future__ import annotations

from typing import Any, Protocol

from tiering.movers.copy_runs import CopyList


class CopyError(RuntimeError):
    """A call to the device failed; what it should have begun was not begun, or not all of it."""


class DeviceLostError(CopyError):
    """The device answers no call of this process any more, and carries nothing out."""


class CopyEvent(Protocol):
    """A place in a stream. Any thread may ask it."""

    def is_over(self) -> bool:
        """Whether the stream has come here. Never blocks. Raises CopyError."""
        ...

    def wait(self) -> None:
        """Block until it has, with the interpreter's lock released. Raises CopyError."""
        ...

    def seconds_since(self, earlier: Any) -> float:
        """By the device's clock; both must be over. Raises CopyError."""
        ...


class CopyStream(Protocol):
    """Carries out, in order, what one thread enqueues; its direction is fixed. All may raise CopyError."""

    def wait_for_compute(self) -> None:
        """What is enqueued from now on begins after the compute that was enqueued so far."""
        ...

    def record(self) -> CopyEvent:
        """An event behind all that is enqueued."""
        ...

    def reuse(self, event: Any) -> None:
        """Take back an event of this stream that is over and that no thread will ask any more."""
        ...

    def copy(self, device: int, host: int, num_bytes: int) -> None:
        """Enqueue one copy between these addresses. From or to memory that is not pinned it may block."""
        ...

    def copy_batch(self, copies: CopyList) -> None:
        """Enqueue copies by one call, in no order among themselves.

        All host memory must be pinned. After an error some may be under way. ``copies`` must be kept until
        they have ended.
        """
        ...

    def synchronize(self) -> None:
        """Block until all that is enqueued has ended."""
        ...
