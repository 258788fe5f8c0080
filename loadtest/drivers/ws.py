"""Answers as events on a WebSocket, one response at a time on each; sockets stay open between them.

Runs on the event loop. Blocks: never. Each socket has a task that reads it for as long as it is open, so that
pings are answered and a server's goodbye is heard whether or not anything is under way. What comes is stamped
when that task has its turn, before it is parsed; aiohttp has made a message of it by then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast

import aiohttp
from aiohttp import WSMsgType

from loadtest.clock import Clock
from loadtest.drivers.answer import Answer
from loadtest.drivers.failures import http_failure
from loadtest.drivers.session import (
    NOT_SENT,
    STALE_S,
    ConnectError,
    Sessions,
    StaleConnectionError,
    reason_of,
    refusal,
)
from loadtest.drivers.target import Target

_CREATE = b'{"type":"response.create",'
_MESSAGES = (WSMsgType.TEXT, WSMsgType.BINARY)
_MAX_MESSAGE = 64 * 1024 * 1024
_NO_CODE = 1005
_GOING = frozenset((1000, 1001, _NO_CODE))
"""Codes of a server that ends a connection for reasons of its own, not because of what was asked."""
_AT_ONCE = aiohttp.ClientWSTimeout(ws_close=0.0)  # a server's goodbye is not waited for


class WsTransport:
    """Implements loadtest.drivers.driver.Transport."""

    def __init__(self, target: Target, path: str, clock: Clock) -> None:
        self._url = target.address.url + path
        self._clock = clock
        self._sessions = Sessions(target, {}, ws_response_class=_Socket, middlewares=(_tell_refusal,))
        self._free: dict[bool, list[_Line]] = {False: [], True: []}  # by whether they are narrow
        self._all: set[_Line] = set()

    async def open(self) -> None:
        """Raises ConnectError."""
        self._free[False].append(await self._connect(is_narrow=False))

    async def close(self) -> None:
        await asyncio.gather(*(line.close() for line in self._all))
        await self._sessions.close()

    async def carry(self, body: bytes, answer: Answer) -> None:
        """Raises ConnectError and StaleConnectionError."""
        is_narrow = answer.pause_s > 0
        line = self._taken(is_narrow) or await self._connect(is_narrow=is_narrow)
        await line.carry(_CREATE + body[1:], answer)
        if answer.was_ended:  # one that goes on though nobody waits for it would be taken for the next one's
            self._free[is_narrow].append(line)

    def _taken(self, is_narrow: bool) -> _Line | None:
        free = self._free[is_narrow]
        while free:
            if (line := free.pop()).is_open:
                return line
        return None

    async def _connect(self, *, is_narrow: bool) -> _Line:
        session = self._sessions.get(is_narrow=is_narrow)
        try:
            socket = await session.ws_connect(
                self._url, timeout=_AT_ONCE, max_msg_size=_MAX_MESSAGE, decode_text=False
            )
        except NOT_SENT as error:
            raise ConnectError(reason_of(error)) from None
        line = _Line(cast(_Socket, socket), self._clock, self._all.discard)
        self._all.add(line)
        return line


async def _tell_refusal(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Who will not speak WebSocket says why in a body, which aiohttp leaves unread."""
    response = await handler(request)
    if response.status == 101:
        return response
    async with response:
        raise ConnectError(http_failure(response.status, await refusal(response)))


class _Socket(aiohttp.ClientWebSocketResponse):
    """aiohttp's, which reads ahead by half a megabyte, and tells nobody how a connection was lost."""

    def __init__(
        self,
        reader: Any,
        writer: Any,
        protocol: Any,
        response: aiohttp.ClientResponse,
        *others: Any,
        **more: Any,
    ) -> None:
        super().__init__(reader, writer, protocol, response, *others, **more)
        connection = response.connection
        assert connection is not None and connection.protocol is not None
        self._carrier = connection.transport
        self._lost = connection.protocol.closed
        if self._lost is not None:
            self._lost.add_done_callback(asyncio.Future.exception)  # looked at, so that nobody warns of it

    async def rest(self, for_s: float) -> None:
        """Read nothing for a while: what comes waits with the kernel and the server."""
        carrier = self._carrier
        if carrier is None or carrier.is_closing():
            return
        carrier.pause_reading()
        await asyncio.sleep(for_s)
        if not carrier.is_closing():
            carrier.resume_reading()

    def loss(self) -> BaseException | None:
        """What the network did to it, once it is closed; None if the server closed it as it should."""
        error = self._lost.exception() if self._lost is not None and self._lost.done() else None
        return None if error is None else error.__cause__


class _Line:
    """A socket and the task that reads it; ``on_end`` is called when it is closed.

    ``_answer`` and ``_is_stale`` are those of the exchange under way, and None while there is none.
    ``_may_be_stale``: that exchange is not the first one here, and nothing of its answer has come.
    """

    def __init__(self, socket: _Socket, clock: Clock, on_end: Callable[[_Line], None]) -> None:
        self._socket = socket
        self._clock = clock
        self._answer: Answer | None = None
        self._is_stale: asyncio.Future[bool] | None = None  # known when the answer is over
        self._was_used = self._may_be_stale = False
        self._written_at = 0.0
        self._reading = asyncio.create_task(self._read(), name="websocket")
        self._reading.add_done_callback(lambda _: on_end(self))

    @property
    def is_open(self) -> bool:
        return not self._reading.done()

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait((self._reading,))

    async def carry(self, message: bytes, answer: Answer) -> None:
        """Send a message; returns when its answer is over. The socket is closed unless the server ended that.

        Raises StaleConnectionError.
        """
        assert self._answer is None and self.is_open
        is_stale: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._may_be_stale, self._was_used = self._was_used, True
        self._answer, self._is_stale = answer, is_stale
        self._written_at = self._clock.now()
        try:
            with contextlib.suppress(ConnectionResetError):  # then whoever reads is told
                await self._socket.send_frame(message, WSMsgType.TEXT)
            if await is_stale:
                raise StaleConnectionError
        finally:
            self._answer = self._is_stale = None
            if not answer.was_ended:
                self._reading.cancel()

    async def _read(self) -> None:
        try:
            while (message := await self._socket.receive()).type in _MESSAGES:
                await self._take(message.data, self._clock.now())
            self._lose(message, self._clock.now())
        finally:
            self._finish(is_stale=False)
            await self._socket.close()

    async def _take(self, event: bytes, at: float) -> None:
        self._may_be_stale = False
        answer = self._answer
        if answer is None:
            return
        num_pieces = answer.take(event, at)
        if answer.is_over:
            self._finish(is_stale=False)
        elif num_pieces and answer.pause_s:
            await self._socket.rest(num_pieces * answer.pause_s)

    def _lose(self, last: aiohttp.WSMessage, at: float) -> None:
        """The socket is closed: that ends the exchange too, unless it had not begun there."""
        if self._answer is None:
            return
        reason, is_going = self._end_of(last)
        if self._may_be_stale and is_going and at <= self._written_at + STALE_S:
            self._finish(is_stale=True)
        else:
            self._answer.fail(reason, at)

    def _end_of(self, last: aiohttp.WSMessage) -> tuple[str, bool]:
        """Why there is no more, and whether that can be for reasons of the server's own."""
        if last.type is WSMsgType.CLOSE:
            code = last.data or _NO_CODE
            return f"websocket closed {code}", code in _GOING
        if last.type is WSMsgType.ERROR:
            return "not a websocket", False
        if (loss := self._socket.loss()) is not None:
            return reason_of(loss), True
        return ("connection closed" if self._may_be_stale else "stream cut"), True

    def _finish(self, *, is_stale: bool) -> None:
        if self._is_stale is not None and not self._is_stale.done():
            self._is_stale.set_result(is_stale)
