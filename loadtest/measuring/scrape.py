"""Reads a server's own measures beside a run: the page at ``/metrics``, again and again.

Runs on: the event loop. Blocks: never; while the clock runs, lines are picked out and kept as they are, and
parsed after it. A server without such a page has no measures, which is no error: ``problem`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from loadtest.clock import Clock
from loadtest.drivers.target import Address
from loadtest.results import Series
from loadtest.server_measures import MEASURES, Page, series, wanted_lines

EVERY_S = 0.5
_TIMEOUT_S = 5.0
_LAST_TIMEOUT_S = 1.0  # somebody waits for the end


def metrics_url(address: Address) -> str:
    """Where servers have the page."""
    return f"{address.url}/metrics"


class Scraper:
    """Of one run; ``kind`` is the server's, as its survey found. ``problem`` is empty if all pages came."""

    def __init__(self, url: str, headers: Mapping[str, str], clock: Clock, kind: str) -> None:
        self.problem = ""
        self._url = url
        self._headers = dict(headers)
        self._clock = clock
        self._kind = kind
        self._pages: list[Page] = []

    async def watch(self) -> None:
        """Read the page at once, then every half second until cancelled, and once more then."""
        if self._kind not in MEASURES:
            return
        async with aiohttp.ClientSession(headers=self._headers) as session:
            try:
                due_at = 0.0
                while True:
                    await self._clock.sleep_until(due_at)
                    await self._read(session, _TIMEOUT_S)
                    due_at = max(due_at + EVERY_S, self._clock.now())
            finally:
                await self._read(session, _LAST_TIMEOUT_S)

    def series(self) -> list[Series]:
        """All that was read. After the run: this takes its time."""
        return series(self._kind, self._pages)

    async def _read(self, session: aiohttp.ClientSession, timeout_s: float) -> None:
        try:
            async with session.get(self._url, timeout=aiohttp.ClientTimeout(timeout_s)) as response:
                page = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.problem = f"{self._url} could not be read: {str(error) or type(error).__name__}."
            return
        if response.status != 200:
            self.problem = f"{self._url} could not be read: HTTP {response.status}."
            return
        self._pages.append(Page(self._clock.now(), wanted_lines(self._kind, page)))
