"""Sends requests by one API over one transport, and keeps the connections in between.

Runs on the event loop. Blocks: never. A connection is made when a request finds none free; what that takes
is part of the request's latency, as it is for a user. A request that finds the connection closed, which the
server may do at any time between two, is put on another one; its latency goes on, and its timeline says so.
Slow readers have connections of their own, on which the kernel holds next to nothing for them.
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
from loadtest.drivers.connection import ConnectError, Connection, Owner, StaleConnectionError
from loadtest.drivers.sse import SseTransport
from loadtest.drivers.target import Target
from loadtest.drivers.ws import WsTransport
from loadtest.plan import PlannedRequest
from loadtest.timeline import Timeline

_OPEN_S = 30.0  # that a server may take to agree to a first connection


class Transport(Protocol):
    """How bodies travel."""

    def request(self, body: bytes) -> bytes:
        """What to write on a connection."""
        ...

    async def connect(self, owner: Owner, *, is_narrow: bool) -> Connection:
        """Raises ConnectError."""
        ...


@dataclass(frozen=True, slots=True)
class _Call:
    """Implements PreparedCall. ``request`` is for a conversation that has no history yet."""

    planned: PlannedRequest
    request: bytes = field(repr=False)


class ServerDriver:
    """Implements Driver, and Owner of its connections."""

    def __init__(self, target: Target, options: Options, clock: Clock) -> None:
        self._target = target
        self._options = options
        self._clock = clock
        self._api = api_of(target, options)
        kind = SseTransport if target.transport == "sse" else WsTransport
        self._transport: Transport = kind(target, self._api.path, clock)
        self._free: dict[bool, list[Connection]] = {False: [], True: []}  # by whether they are narrow
        self._all: set[Connection] = set()
        self._all_closed = asyncio.Event()

    async def open(self) -> None:
        """Make a first connection. Raises ServerUnreachableError."""
        url, patience_s = self._target.address.url, min(_OPEN_S, self._target.timeout_s)
        try:
            async with asyncio.timeout(patience_s):
                self.take_back(await self._connect(is_narrow=False))
        except ConnectError as error:
            raise ServerUnreachableError(f"Nothing can be asked at {url}: {error}.") from None
        except TimeoutError:
            raise ServerUnreachableError(
                f"Nothing can be asked at {url}: no connection after {patience_s:g} s."
            ) from None

    async def close(self) -> None:
        for connection in self._all:
            connection.cut()
        if self._all:
            self._all_closed.clear()
            await self._all_closed.wait()

    def prepare(self, planned: PlannedRequest) -> PreparedCall:
        assert planned.n == 1 or self._api.gives_choices
        return _Call(planned, self._encode(planned, ()))

    async def perform(
        self, call: PreparedCall, past: Sequence[PastTurn], timeline: Timeline
    ) -> PastTurn | None:
        assert isinstance(call, _Call)
        request = self._encode(call.planned, past) if past else call.request
        answer = Answer(timeline, self._api, self._options)
        timeline.sent_at = self._clock.now()
        try:
            async with asyncio.timeout(self._target.timeout_s):
                await self._exchange(request, answer, timeline)
        except TimeoutError:
            answer.fail("timeout", self._clock.now())
        except ConnectError as error:
            answer.fail(str(error), self._clock.now())
        return answer.turn()

    async def _exchange(self, request: bytes, answer: Answer, timeline: Timeline) -> None:
        """On a free connection; if that turns out to be stale, on another. A new one cannot be."""
        is_narrow = timeline.planned.reading.pause_s > 0
        while True:
            connection = self._taken(is_narrow) or await self._connect(is_narrow=is_narrow)
            try:
                await connection.carry(request, answer)
                return
            except StaleConnectionError:
                timeline.resent += 1

    def _taken(self, is_narrow: bool) -> Connection | None:
        free = self._free[is_narrow]
        while free:
            if (connection := free.pop()).is_open:
                return connection
        return None

    async def _connect(self, *, is_narrow: bool) -> Connection:
        connection = await self._transport.connect(self, is_narrow=is_narrow)
        if not connection.is_open:
            raise ConnectError("connection closed")
        self._all.add(connection)
        return connection

    def _encode(self, planned: PlannedRequest, past: Sequence[PastTurn]) -> bytes:
        return self._transport.request(encoded(self._api.body(planned, past)))

    # ---- Owner ----------------------------------------------------------------------------------

    def take_back(self, connection: Connection) -> None:
        self._free[connection.is_narrow].append(connection)

    def forget(self, connection: Connection) -> None:
        self._all.discard(connection)
        if not self._all:
            self._all_closed.set()
