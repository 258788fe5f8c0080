"""The one door through which work leaves the event loop: parsing, templates, tokenizing, large answers.

Runs on: the event loop, and ``tidegate-offload`` threads. Bound: ``max_pending`` calls of ``try_run`` wait or
run at once; one more is refused. ``run`` is for answers to what was let in. A call whose caller is cancelled
never starts if it still waits; if it runs already, it runs to its end and its result is dropped. Work given
to it must be of bounded cost, because a thread cannot be stopped. Those who wait go in turns, one call of
each owner after the other, so that nobody waits behind all that another one sent. A thread that is free takes
the next call by itself: a loop that lags holds up the results, not the work.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class OffloadFullError(RuntimeError):
    """Too many calls wait already."""


@dataclass(slots=True, eq=False)
class _Call:
    """``waiter`` is the loop's end of ``result``; a thread looks only at whether it was cancelled."""

    work: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)
    waiter: asyncio.Future[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.waiter = asyncio.wrap_future(self.result)

    def try_begin(self) -> bool:
        """False if its caller went."""
        return not self.waiter.cancelled() and self.result.set_running_or_notify_cancel()

    def run(self) -> None:
        try:
            found = self.work()
        except BaseException as error:  # which is the caller's
            self.result.set_exception(error)
            del self  # as in ``Offload.run``
        else:
            self.result.set_result(found)


class Offload:
    """Owns the threads. ``close`` waits for what runs."""

    def __init__(self, num_threads: int = 2, max_pending: int = 4096) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="tidegate-offload")
        self._max_pending = max_pending
        self._pending = 0
        self._lock = threading.Lock()
        self._lines: dict[str, deque[_Call]] = {}  # by owner, whose turn is next first

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
        call = _Call(partial(function, *args))
        with self._lock:
            self._lines.setdefault(owner, deque()).append(call)
        self._pool.submit(self._run_next)
        try:
            result: T = await call.waiter
            return result
        except asyncio.CancelledError:
            self._forget(owner, call)
            raise
        finally:
            del call  # which an error's traceback would keep, and with it what it was called with

    def _forget(self, owner: str, call: _Call) -> None:
        """Its caller went, maybe before its turn."""
        with self._lock:
            line = self._lines.get(owner, ())
            if call in line:
                self._lines[owner].remove(call)
                if not line:
                    del self._lines[owner]

    def _run_next(self) -> None:
        """On a thread: as often as there were calls."""
        call = self._next()
        if call is not None:
            call.run()
        del call  # as in ``run``

    def _next(self) -> _Call | None:
        """Whose turn it is, if anybody still waits."""
        with self._lock:
            while self._lines:
                owner, line = next(iter(self._lines.items()))
                call = line.popleft()
                if not line:
                    del self._lines[owner]
                if call.try_begin():
                    if line:
                        self._lines[owner] = self._lines.pop(owner)
                    return call
        return None

    async def close(self) -> None:
        """Drop what waits, wait for what runs."""
        with self._lock:
            for line in self._lines.values():
                for call in line:
                    call.waiter.cancel()
            self._lines.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._pool.shutdown, wait=True)
