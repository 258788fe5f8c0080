"""Asks a server for responses and times them: over HTTP, or a WebSocket for each session.

Runs on one event loop, which does little else; how late it is, it measures itself. Times are of the monotonic
clock. Whatever goes wrong with an answer is a reply that says so.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import aiohttp

from benchmarks.servers import parse_samples
from benchmarks.session_results import Json, Reply

_PATIENCE_S = 120
_PROBE_S = 0.02
_DELIVERED = frozenset(("response.completed", "response.incomplete"))
_LAST = _DELIVERED | {"response.failed", "error"}
_DELTA = "response.output_text.delta"


class Transport(Protocol):
    """Carries one response; ``lane`` tells sessions apart."""

    def events(self, lane: int, body: Json) -> AsyncIterator[Json]:
        """Its events to the last. Raises OSError, or what aiohttp makes of a server that is gone."""
        ...

    async def close(self) -> None:
        """Give back what it holds open between responses."""
        ...


class HttpEvents:
    """Server-sent events, each response over whatever connection is free. Implements Transport."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = f"{url}/v1/responses"

    async def events(self, lane: int, body: Json) -> AsyncIterator[Json]:
        async with self._http.post(self._url, json={**body, "stream": True}) as answer:
            if answer.status != 200:
                yield {"type": "error", "message": f"{answer.status}: {await answer.text()}"}
                return
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    async def close(self) -> None:
        pass


class _Socket:
    """A WebSocket that is read all the time, as only who reads answers pings."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.events = asyncio.Queue[Json | None]()  # of one response at a time; None: it is closed
        self.reading = asyncio.create_task(self._read(), name="session-socket")

    async def _read(self) -> None:
        try:
            async for message in self.ws:
                self.events.put_nowait(json.loads(message.data))
        finally:
            self.events.put_nowait(None)

    async def close(self) -> None:
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)
        await self.ws.close()


class SocketEvents:
    """A WebSocket for each lane, which stays open. Implements Transport."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = f"{url}/v1/responses"
        self._sockets: dict[int, _Socket] = {}

    async def events(self, lane: int, body: Json) -> AsyncIterator[Json]:
        socket = self._sockets.get(lane)
        if socket is not None and socket.ws.closed:
            await self._sockets.pop(lane).close()
            socket = None
        if socket is None:
            socket = _Socket(await self._http.ws_connect(self._url, max_msg_size=0))
            self._sockets[lane] = socket
        await socket.ws.send_str(json.dumps({"type": "response.create", **body}))
        while (event := await socket.events.get()) is not None:
            yield event
            if event["type"] in _LAST:
                return

    async def close(self) -> None:
        await asyncio.gather(*(socket.close() for socket in self._sockets.values()))


class Client:
    """Of one server."""

    def __init__(self, http: aiohttp.ClientSession, url: str, transport: Transport) -> None:
        self._http = http
        self._url = url
        self._transport = transport

    async def respond(self, lane: int, body: Json, on_first: Callable[[], None] = lambda: None) -> Reply:
        """Ask for a response; ``on_first`` is called at its first word, or its end if it has none."""
        reply = Reply(time.monotonic())
        try:
            async with asyncio.timeout(_PATIENCE_S):
                async for event in self._transport.events(lane, body):
                    if not reply.first_at and (event["type"] == _DELTA or event["type"] in _LAST):
                        reply.first_at = time.monotonic()
                        on_first()
                    reply.last = event
        except (OSError, aiohttp.ClientError) as error:
            reply.error = f"{type(error).__name__}: {error}"
        reply.ended_at = time.monotonic()
        if not reply.first_at:
            on_first()
        if reply.last.get("type") in _DELIVERED:
            reply.take(reply.last["response"])
        else:
            reply.error = reply.error or f"it ended with {json.dumps(reply.last)[:500]}"
        return reply

    async def samples(self) -> dict[str, float]:
        """All that ``/metrics`` has."""
        async with self._http.get(f"{self._url}/metrics") as answer:
            return parse_samples(await answer.text())


@asynccontextmanager
async def client_of(port: int, *, websocket: bool = False, key: str = "none") -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as http:
        url = f"http://127.0.0.1:{port}"
        transport = SocketEvents(http, url) if websocket else HttpEvents(http, url)
        try:
            yield Client(http, url, transport)
        finally:
            await transport.close()


@asynccontextmanager
async def measured_lag() -> AsyncIterator[list[float]]:
    """Seconds by which this event loop is late, many times a second while the scope lasts."""
    found: list[float] = []

    async def probe() -> None:
        while True:
            due = time.monotonic() + _PROBE_S
            await asyncio.sleep(_PROBE_S)
            found.append(time.monotonic() - due)

    task = asyncio.create_task(probe(), name="lag-probe")
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
