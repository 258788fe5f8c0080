"""Something that one task waits for, and that need not wake it each time.

Runs on the event loop. Who brings news may be able to hand them over in place, by a function that the one who
waits has left; then ``note_taken`` is called instead of ``set``. To wake a task for each token of each stream
costs more than all else that is done with a token.
"""

from __future__ import annotations

import asyncio


class News:
    """Set from the first that the task has to look at, until it has."""

    __slots__ = ("_event", "_loop", "_quiet_since_s")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._quiet_since_s = 0.0

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def note_taken(self) -> None:
        """Something came, and was taken in place."""
        self._quiet_since_s = self._loop.time()

    async def come_within(self, timeout_s: float | None) -> bool:
        """Whether they are set before nothing has come, in place or otherwise, for so long."""
        self._quiet_since_s = self._loop.time()
        while not self._event.is_set():
            until_s = None if timeout_s is None else self._quiet_since_s + timeout_s
            try:
                async with asyncio.timeout_at(until_s):
                    await self._event.wait()
            except TimeoutError:
                if timeout_s is not None and self._loop.time() >= self._quiet_since_s + timeout_s:
                    return False
        return True
