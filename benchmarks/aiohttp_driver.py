"""A driver on aiohttp's client, for ``benchmarks.load_tool`` to lay beside the load test's own.

It has the same events, bodies and answers; only how bytes come is aiohttp's. Stamps are as honest as they can
be there: the time when the task that reads has its turn, before anything is done with what it has read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from loadtest.clock import Clock
from loadtest.drivers.answer import Answer
from loadtest.drivers.apis import Options, api_of, encoded
from loadtest.drivers.base import PastTurn, PreparedCall
from loadtest.drivers.events import EventReader
from loadtest.drivers.target import Target
from loadtest.plan import PlannedRequest
from loadtest.timeline import Timeline


@dataclass(frozen=True, slots=True)
class _Call:
    planned: PlannedRequest
    body: bytes


class AiohttpDriver:
    """Implements Driver, over SSE, for a server that does not fail."""

    def __init__(self, target: Target, options: Options, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._api = api_of(target, options)
        self._url = target.address.url + self._api.path

    async def open(self) -> None:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(),
            headers={"content-type": "application/json"},
        )

    async def close(self) -> None:
        await self._http.close()

    def prepare(self, planned: PlannedRequest) -> PreparedCall:
        return _Call(planned, encoded(self._api.body(planned, ())))

    async def perform(
        self, call: PreparedCall, past: Sequence[PastTurn], timeline: Timeline
    ) -> PastTurn | None:
        assert isinstance(call, _Call) and not past
        answer, events = Answer(timeline, self._api, self._options), EventReader()
        timeline.sent_at = self._clock.now()
        async with self._http.post(self._url, data=call.body) as response:
            async for data in response.content.iter_any():
                at = self._clock.now()
                for event in events.feed(data):
                    answer.take(event, at)
        answer.take_end(self._clock.now())
        return answer.turn()
