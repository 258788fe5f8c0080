"""A driver of the load test, to be asked one thing at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.scripted_openai import ScriptedServer
from loadtest.clock import MonotonicClock
from loadtest.drivers.apis import Options
from loadtest.drivers.base import PastTurn
from loadtest.drivers.driver import ServerDriver
from loadtest.drivers.target import ApiName, Target, TransportName
from loadtest.plan import READ_ALL, PlannedRequest, Reading
from loadtest.timeline import Timeline

WAYS: list[tuple[ApiName, TransportName]] = [
    ("chat", "sse"),
    ("completions", "sse"),
    ("responses", "sse"),
    ("responses", "ws"),
]
USAGE = Options(tells_usage=True)
TEXT = "four words of text"


class Drive:
    """A driver. ``origin``: by which its stamps can be laid beside the server's."""

    def __init__(
        self,
        server: ScriptedServer,
        way: tuple[ApiName, TransportName] = ("chat", "sse"),
        options: Options = USAGE,
        timeout_s: float = 30,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        target = Target(
            server.url, "scripted", api=way[0], transport=way[1], timeout_s=timeout_s, headers=headers
        )
        self.clock = MonotonicClock()
        self.origin = time.perf_counter() - self.clock.now()
        self.driver = ServerDriver(target, options, self.clock)

    async def ask(
        self,
        text: str = TEXT,
        output_len: int = 3,
        past: tuple[PastTurn, ...] = (),
        n: int = 1,
        reading: Reading = READ_ALL,
    ) -> tuple[Timeline, PastTurn | None]:
        planned = PlannedRequest(0, text, 0, output_len, n=n, reading=reading)
        timeline = Timeline(planned, len(past), 0, 0.0)
        turn = await self.driver.perform(self.driver.prepare(planned), past, timeline)
        return timeline, turn
