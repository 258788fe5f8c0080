"""Memory of the host tier: RAM that is taken chunk by chunk in the background, and pinned if there is a GPU.

Runs on: the thread ``host-kv`` touches and registers chunks; the step thread asks how far it is. A pinned
allocator would round the pool up to a power of two and hold up the start (16 GB take 8 s), so the region is
mapped here, and each chunk is registered with the driver as it is ready.
"""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

_PAGE = 4096
_CHUNK_BYTES = 256 * 2**20


class HostPool:
    """``num_blocks`` slots of ``block_bytes`` bytes, taken ``blocks_per_chunk`` at a time.

    ``slots`` is uint8 ``[num_blocks, block_bytes]``.
    ``register(address, num_bytes)`` pins memory; it may raise, and the chunk is then used unpinned.
    ``on_ready`` is called on the filling thread after each chunk.
    """

    def __init__(
        self,
        num_blocks: int,
        block_bytes: int,
        on_ready: Callable[[], None],
        register: Callable[[int, int], None] | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.is_pinned = register is not None
        self._block_bytes = block_bytes
        self._on_ready = on_ready
        self._register = register
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._region = mmap.mmap(-1, num_blocks * block_bytes, flags=flags)
        with contextlib.suppress(AttributeError, OSError):
            self._region.madvise(mmap.MADV_HUGEPAGE)
        self.slots: npt.NDArray[np.uint8] = np.frombuffer(self._region, dtype=np.uint8).reshape(
            num_blocks, block_bytes
        )
        blocks_per_page = _PAGE // math.gcd(block_bytes, _PAGE)  # so that chunks end on pages
        self.blocks_per_chunk = max(1, _CHUNK_BYTES // block_bytes // blocks_per_page) * blocks_per_page
        self._num_ready = 0
        self._num_taken = 0
        self._closing = False
        self._has_some = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="host-kv", daemon=True)
        self._thread.start()

    def take_ready(self) -> int:
        """How many slots, from the last taken one on, have become usable since the last call."""
        fresh = self._num_ready - self._num_taken
        self._num_taken += fresh
        return fresh

    def wait_some(self) -> None:
        """Wait until the first chunk is there."""
        self._has_some.wait()

    def wait_ready(self) -> None:
        """Wait until the whole pool is there."""
        self._thread.join()

    def close(self) -> None:
        """Stop filling."""
        self._closing = True
        self._thread.join()

    def _fill(self) -> None:
        step = self.blocks_per_chunk
        for first in range(0, self.num_blocks, step):
            if self._closing:
                return
            chunk = self.slots[first : first + step].reshape(-1)
            chunk[::_PAGE] = 0  # takes the pages, with the interpreter's lock released
            self._pin(chunk)
            self._num_ready = min(first + step, self.num_blocks)
            self._has_some.set()
            self._on_ready()

    def _pin(self, chunk: npt.NDArray[np.uint8]) -> None:
        if self._register is None:
            return
        try:
            self._register(chunk.ctypes.data, chunk.nbytes)
        except Exception as error:
            logger.warning("host memory cannot be pinned (%s); copies to the GPU will be slower", error)
            self._register = None
            self.is_pinned = False
