"""Something that one task waits for, and that need not wake it each time.

Runs on the event loop. Who brings news may be able to hand them over in place, to a function that the one who
waits has left: ``offer`` instead of ``set``. To wake a task for each token of each stream costs more than all
else that is done with a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class News:
    """Set from the first that the task has to look at, until it has."""

    __slots__ = ("_event", "_fault", "_loop", "_quiet_since_s")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._quiet_since_s = 0.0
        self._fault: Exception | None = None  # of what was called in place

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def offer(self, take: Callable[[T], bool], what: T) -> bool:
        """Whether it is taken in place. If not, or if that fails, the task is woken."""
        try:
            is_taken = take(what)
        except Exception as error:
            self.fail(error)
            return False
        if is_taken:
            self._quiet_since_s = self._loop.time()
        else:
            self._event.set()
        return is_taken

    def fail(self, error: Exception) -> None:
        """It is raised where the task waits, not at whoever brings news: others need that one too."""
        self._fault = error
        self._event.set()

    async def come_within(self, timeout_s: float | None) -> bool:
        """Whether they are set before nothing has come, in place or otherwise, for so long.

        Raises what was raised in place.
        """
        self._quiet_since_s = self._loop.time()
        while not self._event.is_set():
            until_s = None if timeout_s is None else self._quiet_since_s + timeout_s
            try:
                async with asyncio.timeout_at(until_s):
                    await self._event.wait()
            except TimeoutError:
                if timeout_s is not None and self._loop.time() >= self._quiet_since_s + timeout_s:
                    return False
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        return True
