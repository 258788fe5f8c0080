"""A thread that does what it is given, one thing after the other.

Bound: ``max_pending`` calls wait or run; one more is refused. When nothing has come for ``idle_s`` seconds it
calls ``when_idle``. A call whose caller has gone before its turn is left out.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadBusyError(RuntimeError):
    """Too many calls wait already."""


class StateThread:
    """``submit_call`` is for one thread only, the event loop's."""

    def __init__(self, name: str, max_pending: int, when_idle: Callable[[], None], idle_s: float) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._max_pending = max_pending
        self._when_idle = when_idle
        self._idle_s = idle_s
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=name)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def pending(self) -> int:
        """Calls that wait; one that runs is not among them."""
        return self._calls.qsize()

    def submit_call(self, call: Callable[[], T]) -> Future[T]:
        """Raises ThreadBusyError."""
        assert not self._is_closed
        if self.pending >= self._max_pending:
            raise ThreadBusyError("too many calls wait for the thread")
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Take nothing more, and wait until all that was given is done. May be called again."""
        if not self._is_closed:
            self._is_closed = True
            self._calls.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            try:
                given = self._calls.get(timeout=self._idle_s)
            except queue.Empty:
                self._when_idle()
                continue
            if given is None:
                return
            future, call = given
            if future.set_running_or_notify_cancel():
                _carry_out(future, call)


def _carry_out(future: Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
