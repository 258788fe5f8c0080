"""Writes one event stream to one client.

Runs on the event loop. Headers go out with the first bytes, so that until then a failure can still
become a proper HTTP status. Awaiting each write is the back-pressure; what is sent at once is sent only
while the socket is clear. A write that may block runs in
a task that is waited for but never cancelled while the connection lives: aiohttp keeps one future
for all writers that wait for the socket, and cancelling it would break every later write. ``close``
cancels and awaits what is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, cast

from aiohttp import web
from aiohttp.http_writer import StreamWriter

from gateway.connection_limits import NEVER_BLOCKS_BYTES
from gateway.errors import ApiError
from gateway.mailbox import TOO_SLOW, StreamFailedError
from gateway.protocol import sse


class WriteGuard(Protocol):
    """Says how long a write may take."""

    async def wait_unless_ended(self, write: asyncio.Task[None]) -> None:
        """Wait for a write, without cancelling it in any case. Raises StreamFailedError."""
        ...


class Patience:
    """A client that takes nothing for so long is given up. Implements WriteGuard."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def wait_unless_ended(self, write: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.shield(write)
        except TimeoutError:
            raise StreamFailedError(TOO_SLOW) from None


class SseWriter:
    """``started`` tells whether the status has gone out."""

    __slots__ = ("_guard", "_is_chunked", "_request", "_tasks", "_transport", "response")

    def __init__(self, request: web.Request, guard: WriteGuard, headers: Mapping[str, str]) -> None:
        self._request = request
        self._guard = guard
        self._tasks: list[asyncio.Task[None]] = []
        self._transport: asyncio.Transport | None = None  # once it has started
        self._is_chunked = False
        self.response = web.StreamResponse(headers={**headers, "Content-Type": sse.CONTENT_TYPE})

    @property
    def started(self) -> bool:
        return self.response.prepared

    async def send(self, data: bytes) -> None:
        """Raises StreamFailedError if the stream ends meanwhile, ConnectionResetError if the client went."""
        if not self.started:
            await self.response.prepare(self._request)
            self._transport = self._request.transport
            self._is_chunked = cast(StreamWriter, self._request.writer).chunked
        await self._guarded(self.response.write(data), len(data))

    def is_clear(self) -> bool:
        """Whether it has started, and so little waits to be read that more can be left to the transport."""
        transport = self._transport
        return transport is not None and transport.get_write_buffer_size() <= NEVER_BLOCKS_BYTES

    def send_now(self, data: bytes) -> None:
        """The same as ``send``, for a stream that has started and is clear. Raises ConnectionResetError."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client went")
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    async def finish(self) -> None:
        await self._guarded(self.response.write_eof(), 0)

    async def fail(self, error: ApiError, linger_s: float) -> None:
        """End in band and in whole HTTP framing, so that the connection can be used again.

        A client that does not take it within ``linger_s`` is cut off.
        """
        assert self.started
        farewell = self._start(self._say(sse.event(error.body()) + sse.DONE))
        try:
            async with asyncio.timeout(linger_s):
                await asyncio.shield(farewell)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()

    async def close(self) -> None:
        """Cancel and await writes that still wait. The connection is over or about to be."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guarded(self, write: Coroutine[Any, Any, None], size: int) -> None:
        transport = self._request.transport
        if transport is None or transport.get_write_buffer_size() + size <= NEVER_BLOCKS_BYTES:
            await write
            return
        task = self._start(write)
        await self._guard.wait_unless_ended(task)
        self._tasks.remove(task)

    def _start(self, write: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(write, name="tidegate-slow-write")
        self._tasks.append(task)
        return task

    async def _say(self, data: bytes) -> None:
        await self.response.write(data)
        await self.response.write_eof()
