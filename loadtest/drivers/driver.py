"""Sends requests by one API over one transport.

Runs on the event loop. Blocks: never. A connection is made when a request finds none free; what that takes
is part of the request's latency, as it is for a user. A request that finds the connection closed, which the
server may do at any time between two, is put on another one; its latency goes on, and its timeline says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loadtest.clock import Clock
from loadtest.drivers.answer import Answer
from loadtest.drivers.apis import Options, api_of, encoded
from loadtest.drivers.base import PastTurn, PreparedCall, ServerUnreachableError
from loadtest.drivers.session import ConnectError, StaleConnectionError
from loadtest.drivers.sse import SseTransport
from loadtest.drivers.target import Target
from loadtest.drivers.ws import WsTransport
from loadtest.plan import PlannedRequest
from loadtest.timeline import Timeline

_OPEN_S = 30.0  # that a server may take to agree to a first connection


class Transport(Protocol):
    """How bodies travel, and the connections in between.

    Each carries one exchange at a time. Slow readers have connections of their own, on which the kernel holds
    next to nothing for them.
    """

    async def open(self) -> None:
        """Make a first connection. Raises ConnectError."""
        ...

    async def carry(self, body: bytes, answer: Answer) -> None:
        """Send a request; returns when its answer is over. If it is cancelled the connection is cut.

        Raises ConnectError, and StaleConnectionError: a new connection cannot be stale.
        """
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Call:
    """Implements PreparedCall. ``body`` is for a conversation that has no history yet."""

    planned: PlannedRequest
    body: bytes = field(repr=False)


class ServerDriver:
    """Implements Driver."""

    def __init__(self, target: Target, options: Options, clock: Clock) -> None:
        self._target = target
        self._options = options
        self._clock = clock
        self._api = api_of(target, options)
        kind = SseTransport if target.transport == "sse" else WsTransport
        self._transport: Transport = kind(target, self._api.path, clock)

    async def open(self) -> None:
        """Make a first connection. Raises ServerUnreachableError."""
        url, patience_s = self._target.address.url, min(_OPEN_S, self._target.timeout_s)
        try:
            async with asyncio.timeout(patience_s):
                await self._transport.open()
        except ConnectError as error:
            raise ServerUnreachableError(f"Nothing can be asked at {url}: {error}.") from None
        except TimeoutError:
            raise ServerUnreachableError(
                f"Nothing can be asked at {url}: no answer after {patience_s:g} s."
            ) from None

    async def close(self) -> None:
        await self._transport.close()

    def prepare(self, planned: PlannedRequest) -> PreparedCall:
        assert planned.n == 1 or self._api.gives_choices
        return _Call(planned, self._encode(planned, ()))

    async def perform(
        self, call: PreparedCall, past: Sequence[PastTurn], timeline: Timeline
    ) -> PastTurn | None:
        assert isinstance(call, _Call)
        body = self._encode(call.planned, past) if past else call.body
        answer = Answer(timeline, self._api, self._options)
        timeline.sent_at = self._clock.now()
        try:
            async with asyncio.timeout(self._target.timeout_s):
                await self._exchange(body, answer, timeline)
        except TimeoutError:
            answer.fail("timeout", self._clock.now())
        except ConnectError as error:
            answer.fail(str(error), self._clock.now())
        return answer.turn()

    async def _exchange(self, body: bytes, answer: Answer, timeline: Timeline) -> None:
        while True:
            try:
                await self._transport.carry(body, answer)
                return
            except StaleConnectionError:
                timeline.resent += 1

    def _encode(self, planned: PlannedRequest, past: Sequence[PastTurn]) -> bytes:
        return encoded(self._api.body(planned, past))
