"""Answers as events on a WebSocket, one response at a time on each; sockets stay open between them.

Runs on the event loop. Blocks: never. Pings are answered whether or not anything is under way.
"""

from __future__ import annotations

import asyncio
import base64
import os

from loadtest.clock import Clock
from loadtest.drivers.connection import ConnectError, Connection, Dialer, Owner
from loadtest.drivers.failures import http_failure
from loadtest.drivers.frames import BadFrameError, FrameReader, Opcode, accept_of, frame
from loadtest.drivers.http_reader import BadHttpError, ResponseReader
from loadtest.drivers.sse import request_head
from loadtest.drivers.target import Target

_CREATE = b'{"type":"response.create",'
_NORMAL = (1000).to_bytes(2)
_GOING = frozenset((1000, 1001, 1005))
"""Codes of a server that ends a connection for reasons of its own, not because of what was asked."""


def _mask() -> bytes:
    return os.urandom(4)


class WsTransport:
    """Implements loadtest.drivers.driver.Transport."""

    def __init__(self, target: Target, path: str, clock: Clock) -> None:
        self._target = target
        self._path = path
        self._clock = clock
        self._dialer = Dialer(target.address)

    def request(self, body: bytes) -> bytes:
        return frame(Opcode.TEXT, _CREATE + body[1:], _mask())

    async def connect(self, owner: Owner, *, is_narrow: bool) -> Connection:
        """Raises ConnectError."""
        key = base64.b64encode(os.urandom(16))
        connection = await self._dialer.dial(
            lambda: _WsConnection(self._clock, owner, accept_of(key), is_narrow=is_narrow),
            is_narrow=is_narrow,
        )
        headers = {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": key.decode(),
        }
        await connection.upgrade(request_head("GET", self._path, self._target, headers))
        return connection


class _WsConnection(Connection):
    """``_handshake`` is there until the server has agreed to it; then all that comes are frames."""

    def __init__(self, clock: Clock, owner: Owner, accept: str, *, is_narrow: bool) -> None:
        super().__init__(clock, owner, is_narrow=is_narrow)
        self._accept = accept
        self._handshake: ResponseReader | None = ResponseReader()
        self._upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refusal = b""
        self._frames = FrameReader()

    async def upgrade(self, request: bytes) -> None:
        """Raises ConnectError."""
        assert self._transport is not None
        self._transport.write(request)
        try:
            await self._upgraded
        except BaseException:
            self.cut()
            raise

    def _begin(self) -> None:
        pass

    def _take(self, data: bytes, at: float) -> None:
        if self._handshake is not None:
            data = self._shake_hands(self._handshake, data)
            if not data:
                return
        try:
            came = self._frames.feed(data)
        except BadFrameError:
            self._fail("not a websocket", at)
            return
        if came.messages or came.close_code not in _GOING:
            self._may_be_stale = False
        for payload in came.pings:
            self._write(Opcode.PONG, payload)
        answer = self._answer
        if answer is not None:
            self._deliver(came.messages, at)
            if answer.is_over:
                self._finish()
                self._release(is_whole=answer.was_ended)
        if came.close_code is not None:
            self._write(Opcode.CLOSE, _NORMAL)
            self._lose(f"websocket closed {came.close_code}", at)

    def _release(self, *, is_whole: bool) -> None:
        """A response that goes on though nobody waits for it would be taken for the next one's."""
        if is_whole and self.is_open:
            self._owner.take_back(self)
        else:
            self.cut()

    def _take_end(self, at: float) -> None:
        self._give_up("connection closed")
        if self._answer is not None:
            self._fail("stream cut", at)

    def _shake_hands(self, handshake: ResponseReader, data: bytes) -> bytes:
        """Gives what came behind the handshake."""
        try:
            self._refusal += handshake.feed(data)
        except BadHttpError:
            self._give_up("not http")
            return b""
        head = handshake.head
        if head is None or (head.status != 101 and not handshake.is_over):
            return b""
        if head.status != 101:
            self._give_up(http_failure(head.status, self._refusal))
            return b""
        if head.headers.get("sec-websocket-accept") != self._accept:
            self._give_up("not a websocket")
            return b""
        self._handshake = None
        if not self._upgraded.done():
            self._upgraded.set_result(None)
        return handshake.take_rest()

    def _give_up(self, reason: str) -> None:
        if not self._upgraded.done():
            self._upgraded.set_exception(ConnectError(reason))

    def _write(self, opcode: Opcode, payload: bytes) -> None:
        if self._transport is not None and self.is_open:
            self._transport.write(frame(opcode, payload, _mask()))

    def connection_lost(self, error: Exception | None) -> None:
        self._give_up("connection reset" if error is not None else "connection closed")
        super().connection_lost(error)
