"""Memory of the host tier: RAM that is taken chunk by chunk in the background, and pinned if there is a GPU.

Runs on: the thread ``host-kv`` touches and pins chunks; the step thread asks how far it is. A pinned
allocator would round the pool up to a power of two and hold up the start, so the region is mapped here, and
each chunk is registered with the driver as it is ready. Other calls of the driver, a step's launches among
them, may wait while it registers one, the longer the larger that is: hence small chunks.
"""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

_PAGE = 4096
_CHUNK_BYTES = 16 * 2**20  # also the longest copy


class Pinning(Protocol):
    """Pins memory for copies by a device. Both may raise anything, which is logged."""

    def pin(self, address: int, num_bytes: int) -> None: ...

    def unpin(self, address: int) -> None: ...


class HostPool:
    """``num_blocks`` slots of ``block_bytes`` bytes, taken ``blocks_per_chunk`` at a time.

    ``slots`` is uint8 ``[num_blocks, block_bytes]``. With ``pinning`` each chunk is pinned by itself; from
    the first one on that cannot be, they are used unpinned. ``on_ready`` is called on the filling thread
    after each chunk.
    """

    def __init__(
        self,
        num_blocks: int,
        block_bytes: int,
        on_ready: Callable[[], None],
        pinning: Pinning | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self._block_bytes = block_bytes
        self._on_ready = on_ready
        self._pinning = pinning
        self._may_pin = pinning is not None
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._region = mmap.mmap(-1, num_blocks * block_bytes, flags=flags)
        with contextlib.suppress(AttributeError, OSError):
            self._region.madvise(mmap.MADV_HUGEPAGE)
        self.slots: npt.NDArray[np.uint8] = np.frombuffer(self._region, dtype=np.uint8).reshape(
            num_blocks, block_bytes
        )
        blocks_per_page = _PAGE // math.gcd(block_bytes, _PAGE)  # so that chunks end on pages
        self.blocks_per_chunk = max(1, _CHUNK_BYTES // block_bytes // blocks_per_page) * blocks_per_page
        self._pinned_chunks: list[int] = []  # their addresses
        self._num_pinned = 0
        self._num_ready = 0
        self._num_taken = 0
        self._closing = False
        self._grown = threading.Condition()
        self._thread = threading.Thread(target=self._fill, name="host-kv", daemon=True)
        self._thread.start()

    @property
    def num_ready(self) -> int:
        """How many slots, from the first one on, are usable."""
        return self._num_ready

    @property
    def num_pinned(self) -> int:
        """How many slots, from the first one on, are pinned. Of a usable slot that never changes."""
        return self._num_pinned

    def take_ready(self) -> int:
        """How many slots, from the last taken one on, have become usable since the last call."""
        fresh = self._num_ready - self._num_taken
        self._num_taken += fresh
        return fresh

    def wait_some(self, num_slots: int = 1) -> None:
        """Wait until the first chunk is there, and so many slots of the pool, or all that it has."""
        wanted = min(max(1, num_slots), self.num_blocks)
        with self._grown:
            self._grown.wait_for(lambda: self._num_ready >= wanted)

    def wait_ready(self) -> None:
        """Wait until the whole pool is there."""
        self._thread.join()

    def close(self) -> None:
        """Stop filling and unpin all; no copy may be under way any more. The memory itself stays."""
        self._closing = True
        self._thread.join()
        chunks, self._pinned_chunks, self._num_pinned = self._pinned_chunks, [], 0
        errors = [error for chunk in chunks if (error := self._try_unpin(chunk)) is not None]
        if errors:
            logger.warning("%d chunks of host memory cannot be unpinned (%s)", len(errors), errors[0])

    def _fill(self) -> None:
        step = self.blocks_per_chunk
        for first in range(0, self.num_blocks, step):
            if self._closing:
                return
            chunk = self.slots[first : first + step].reshape(-1)
            chunk[::_PAGE] = 0  # takes the pages, with the interpreter's lock released
            end = min(first + step, self.num_blocks)
            if self._try_pin(chunk):
                self._num_pinned = end
            with self._grown:
                self._num_ready = end
                self._grown.notify_all()
            self._on_ready()

    def _try_pin(self, chunk: npt.NDArray[np.uint8]) -> bool:
        if self._pinning is None or not self._may_pin:
            return False
        address = chunk.ctypes.data
        try:
            self._pinning.pin(address, chunk.nbytes)
        except Exception as error:
            logger.warning(
                "host memory can be pinned up to slot %d only (%s); copies between the others and the GPU"
                " are slower and hold up steps",
                self._num_pinned, error,
            )  # fmt: skip
            self._may_pin = False
            return False
        self._pinned_chunks.append(address)
        return True

    def _try_unpin(self, address: int) -> Exception | None:
        assert self._pinning is not None
        try:
            self._pinning.unpin(address)
        except Exception as error:
            return error
        return None
