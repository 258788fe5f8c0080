"""The clock of a run. Tests put in one whose time is imagined."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def start(self) -> None:
        """A run begins now, when all is prepared: time counts from here, from 0."""
        ...

    def now(self) -> float:
        """Seconds from the start of the run."""
        ...

    async def sleep_until(self, at_s: float) -> None:
        """Return at ``at_s`` or as soon as possible after it, never before; at once if it has passed."""
        ...


class MonotonicClock:
    """Finer than the event loop's own clock, which uvloop rounds to a millisecond.

    Made, it has started: there is always a now.
    """

    def __init__(self) -> None:
        self._started_at = 0.0
        self.start()

    def start(self) -> None:
        self._started_at = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._started_at

    async def sleep_until(self, at_s: float) -> None:
        while (left_s := at_s - self.now()) > 0:  # noqa: ASYNC110 - time is no event
            await asyncio.sleep(left_s)
