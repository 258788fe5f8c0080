"""At most so many requests at a time, first come first served; says what that cost each of them.

Runs on: the event loop. Blocks: never. A place that is given back goes to the one who has waited longest, and
the moment when it did is kept: what passes from then on is not the cap's doing but the tool's own lag.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque

from loadtest.clock import Clock


class Cap:
    """``places`` None: no limit."""

    def __init__(self, places: int | None, clock: Clock) -> None:
        self._free = math.inf if places is None else places
        self._clock = clock
        self._waiting: deque[asyncio.Future[float]] = deque()

    async def enter(self) -> float:
        """Take a place, now or when there is one; the seconds until it was given."""
        if self._free > 0:
            self._free -= 1
            return 0.0
        began_at = self._clock.now()
        given: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append(given)
        try:
            return await given - began_at
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():  # it was given, but to somebody who had gone
                self.leave()
            raise

    def leave(self) -> None:
        while self._waiting:
            given = self._waiting.popleft()
            if not given.done():
                given.set_result(self._clock.now())
                return
        self._free += 1
