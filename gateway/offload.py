"""The one door through which work leaves the event loop: parsing, templates, tokenizing.

Runs on: the event loop, and ``tidegate-offload`` threads. Bound: ``max_pending`` calls wait or run at
once; one more is refused with OffloadFullError. A call whose caller is cancelled never starts if it
still waits; if it runs already, it runs to its end and its result is dropped. Work given to it must
be of bounded cost, because a thread cannot be stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class OffloadFullError(RuntimeError):
    """Too many calls wait already."""


class Offload:
    """Owns the threads. ``close`` waits for what runs."""

    def __init__(self, num_threads: int = 2, max_pending: int = 4096) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="tidegate-offload")
        self._max_pending = max_pending
        self._pending = 0

    @property
    def pending(self) -> int:
        return self._pending

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Call ``function(*args)`` on a thread and wait for it without blocking the loop."""
        if self._pending >= self._max_pending:
            raise OffloadFullError("too much work is waiting for the tokenizer threads")
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
        finally:
            self._pending -= 1

    async def close(self) -> None:
        """Drop what waits, wait for what runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._pool.shutdown, wait=True)
