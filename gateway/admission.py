"""How many requests may be inside at once. Refuses early instead of queueing without end.

Pure counting on the event loop. Bound: ``max_in_flight`` permits, which the caller sets to the
engine's batch plus the queue it allows before it; the next request is refused with 429 and a retry
hint. A request for several sequences takes as many permits. A permit is released by leaving its scope,
whatever the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import ApiError, ErrorKind

RETRY_AFTER_S = 1


class Admission:
    """Permits of one gateway."""

    def __init__(self, max_in_flight: int) -> None:
        assert max_in_flight > 0
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @contextmanager
    def permit(self, count: int = 1) -> Iterator[None]:
        """Hold so many places. Raises ApiError (429) at once when there are not as many."""
        if self._in_flight + count > self._max_in_flight:
            raise ApiError(
                ErrorKind.BUSY,
                f"The server is busy with {self._in_flight} sequences; try again shortly.",
                retry_after_s=RETRY_AFTER_S,
            )
        self._in_flight += count
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= count
            if self._in_flight == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Return when no permit is held."""
        await self._idle.wait()
