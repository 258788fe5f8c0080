"""Answers as server-sent events over HTTP/1.1, on connections that are kept.

Runs on the event loop. Blocks: never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from loadtest.clock import Clock
from loadtest.drivers.answer import Answer
from loadtest.drivers.connection import Connection, Dialer, Owner
from loadtest.drivers.events import CONTENT_TYPE, EventReader, EventTooLongError
from loadtest.drivers.failures import http_failure
from loadtest.drivers.http_reader import BadHttpError, Head, ResponseReader
from loadtest.drivers.target import Target

_MAX_REFUSAL = 64 * 1024
_PLAIN = ("", "identity")
_PATIENCE_S = 0.002  # with the end of a response whose answer is over: mostly it is on its way
_ENDING_S = 1.0  # after which such a response is cut off


def request_head(
    method: str, path: str, target: Target, headers: Mapping[str, str], *, length: int | None = None
) -> bytes:
    """The user's own headers go before ours."""
    address = target.address
    wanted = {"host": address.authority, "user-agent": "tideload", **headers}
    wanted |= {name.lower(): value for name, value in target.headers.items()}
    if length is not None:
        wanted["content-length"] = str(length)
    lines = "".join(f"{name}: {value}\r\n" for name, value in wanted.items())
    return f"{method} {address.prefix}{path} HTTP/1.1\r\n{lines}\r\n".encode()


class SseTransport:
    """Implements loadtest.drivers.driver.Transport."""

    def __init__(self, target: Target, path: str, clock: Clock) -> None:
        self._target = target
        self._path = path
        self._clock = clock
        self._dialer = Dialer(target.address)

    def request(self, body: bytes) -> bytes:
        headers = {"content-type": "application/json", "accept": CONTENT_TYPE, "accept-encoding": "identity"}
        return request_head("POST", self._path, self._target, headers, length=len(body)) + body

    async def connect(self, owner: Owner, *, is_narrow: bool) -> Connection:
        """Raises ConnectError."""
        return await self._dialer.dial(
            lambda: _SseConnection(self._clock, owner, is_narrow=is_narrow), is_narrow=is_narrow
        )


class _SseConnection(Connection):
    """Between exchanges ``_response`` is None. One that outlasts its exchange is read to its end."""

    _response: ResponseReader | None = None
    _head: Head | None = None
    _ending: asyncio.TimerHandle | None = None  # what is done if the end of the response does not come

    def _begin(self) -> None:
        self._response, self._head = ResponseReader(), None
        self._events = EventReader()
        self._ending = None
        self._refusal = b""

    def _take(self, data: bytes, at: float) -> None:
        response = self._response
        if response is None:
            self.cut()  # nobody asked for it
            return
        self._may_be_stale = False
        try:
            body = response.feed(data)
            if self._head is None and response.head is not None:
                self._take_head(response.head, at)
            if body:
                self._take_body(body, at)
        except BadHttpError:
            self._fail("not http", at)
            return
        except EventTooLongError:
            self._fail("event not understood", at)
            return
        if response.is_over:
            self._take_last(at)
        elif self._answer is not None and self._answer.is_over:
            self._await_end(self._answer)

    def _await_end(self, answer: Answer) -> None:
        """The answer is over, its response is not: its last bytes come apart, or somebody left."""
        if not answer.was_ended:
            self._finish()
            self.cut()
        elif self._ending is None:
            self._ending = asyncio.get_running_loop().call_later(_PATIENCE_S, self._go_on_without)

    def _go_on_without(self) -> None:
        """Whoever asked goes on; the connection cannot before it has come to its end."""
        self._ending = asyncio.get_running_loop().call_later(_ENDING_S, self.cut)
        self._finish()

    def _take_head(self, head: Head, at: float) -> None:
        self._head = head
        if head.status != 200:
            return
        if not head.headers.get("content-type", "").startswith(CONTENT_TYPE):
            self._fail("not a stream", at)
        elif head.headers.get("content-encoding", "").lower() not in _PLAIN:
            self._fail("compressed stream", at)

    def _take_body(self, body: bytes, at: float) -> None:
        assert self._head is not None
        if self._head.status == 200:
            self._deliver(self._events.feed(body), at)
        elif len(self._refusal) < _MAX_REFUSAL:
            self._refusal += body

    def _take_last(self, at: float) -> None:
        """The response is whole. The connection is free again if the server keeps it."""
        assert self._head is not None
        self._end_answer(at)
        self._response = None
        if self._ending is not None:
            self._ending.cancel()
        if self._head.keeps_alive and self.is_open:
            self._owner.take_back(self)
        else:
            self.cut()

    def _end_answer(self, at: float) -> None:
        if self._answer is None:
            return
        if self._head is not None and self._head.status != 200:
            self._answer.fail(http_failure(self._head.status, self._refusal), at)
        self._answer.take_end(at)
        self._finish()

    def _take_end(self, at: float) -> None:
        if self._response is None:
            return
        try:
            self._response.feed_end()
        except BadHttpError:
            if self._head is None:
                self._fail("connection closed", at)
            elif self._head.status != 200:
                self._end_answer(at)
            else:
                self._fail("stream cut", at)
        else:
            self._end_answer(at)
