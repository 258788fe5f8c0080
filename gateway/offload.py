"""The one door through which work leaves the event loop: parsing, templates, tokenizing, large answers.

Runs on: the event loop, and ``tidegate-offload`` threads. Bound: ``max_pending`` calls of ``try_run`` wait or
run at once; one more is refused. ``run`` is for answers to what was let in. A call whose caller is cancelled
never starts if it still waits; if it runs already, it runs to its end and its result is dropped. Work given
to it must be of bounded cost, because a thread cannot be stopped. Those who wait go in turns, one call of
each owner after the other, so that nobody waits behind all that another one sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
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
        self._num_free = num_threads
        self._max_pending = max_pending
        self._pending = 0
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # by owner, whose turn is next first

    @property
    def pending(self) -> int:
        return self._pending

    async def try_run(self, function: Callable[..., T], *args: object, owner: str = "") -> T:
        """Like ``run``, unless too much is pending: raises OffloadFullError then."""
        if self._pending >= self._max_pending:
            raise OffloadFullError("too much work is waiting for the tokenizer threads")
        self._pending += 1
        try:
            return await self.run(function, *args, owner=owner)
        finally:
            self._pending -= 1

    async def run(self, function: Callable[..., T], *args: object, owner: str = "") -> T:
        """Call ``function(*args)`` on a thread and wait for it without blocking the loop."""
        await self._wait_for_turn(owner)
        loop = asyncio.get_running_loop()
        call = self._pool.submit(function, *args)
        call.add_done_callback(lambda _: loop.call_soon_threadsafe(self._pass_on))
        return await asyncio.wrap_future(call)

    async def _wait_for_turn(self, owner: str) -> None:
        """Until a thread is free for this caller."""
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had come just then
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """A thread is free: whose turn is it?"""
        while self._lines:
            owner, line = next(iter(self._lines.items()))
            turn = line.popleft()
            if not line:
                del self._lines[owner]
            if not turn.done():  # else its caller went
                if line:
                    self._lines[owner] = self._lines.pop(owner)
                turn.set_result(None)
                return
        self._num_free += 1

    async def close(self) -> None:
        """Drop what waits, wait for what runs."""
        for line in self._lines.values():
            for turn in line:
                turn.cancel()
        self._lines.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._pool.shutdown, wait=True)
