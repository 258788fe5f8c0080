"""How late the tool's own event loop is, all through a run.

A meter is due at every point of a fixed grid. One that is late is late for each point that it slept through,
not only for the first: a loop that stands still for a second would count as one sample among hundreds
otherwise, and no percentile would show it. Runs on: the event loop. Blocks: never.
"""

from __future__ import annotations

import time
from itertools import count

from loadtest.clock import Clock
from loadtest.measured import GRID_S


class LagMeter:
    """``samples_s``: for each point of the grid, by how much the loop was late for it."""

    def __init__(self, clock: Clock) -> None:
        self.samples_s: list[float] = []
        self._clock = clock

    async def watch(self) -> None:
        """Measure until cancelled."""
        for point in count(1):
            due_at = point * GRID_S
            await self._clock.sleep_until(due_at)
            self.samples_s.append(self._clock.now() - due_at)


class ProcessorMeter:
    """What share of one processor this process takes: near 1, one loop can do no more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._used_s = time.process_time()
        self._began_at = clock.now()

    def share(self) -> float:
        passed_s = self._clock.now() - self._began_at
        return (time.process_time() - self._used_s) / passed_s if passed_s > 0 else 0.0
