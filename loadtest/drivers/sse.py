"""Answers as server-sent events over HTTP/1.1, on connections that are kept.

Runs on the event loop. Blocks: never. What comes is stamped when the task that reads it has its turn, before
it is looked at for events; aiohttp has taken it out of HTTP's chunks by then.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp

from loadtest.clock import Clock
from loadtest.drivers.answer import Answer
from loadtest.drivers.events import CONTENT_TYPE, EventReader, EventTooLongError
from loadtest.drivers.failures import http_failure
from loadtest.drivers.session import (
    NARROW_BYTES,
    NOT_SENT,
    STALE_S,
    ConnectError,
    Sessions,
    StaleConnectionError,
    reason_of,
    refusal,
)
from loadtest.drivers.target import Target

_HEADERS = {"content-type": "application/json", "accept": CONTENT_TYPE, "accept-encoding": "identity"}
_PLAIN = ("", "identity")
_PATIENCE_S = 0.002  # with the end of a response whose answer is over: mostly it is on its way
_ENDING_S = 1.0  # after which such a response is cut off


@dataclass(slots=True)
class _Sending:
    """Where aiohttp puts a request: on a connection that had another one before, or on a new one."""

    is_reused: bool = False


class SseTransport:
    """Implements loadtest.drivers.driver.Transport.

    ``_endings``: of responses whose answers are over. aiohttp takes a connection back by itself when its
    response has come to its end.
    """

    def __init__(self, target: Target, path: str, clock: Clock) -> None:
        self._target = target
        self._url = target.address.url + path
        self._clock = clock
        self._sessions = Sessions(target, _HEADERS, trace_configs=[_reuse_tracing()])
        self._endings: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Any answer will do. Raises ConnectError."""
        url = f"{self._target.address.url}/v1/models"
        try:
            async with self._sessions.get(is_narrow=False).get(url, allow_redirects=False) as response:
                await refusal(response)
        except NOT_SENT as error:
            raise ConnectError(reason_of(error)) from None

    async def close(self) -> None:
        for ending in self._endings:
            ending.cancel()
        await asyncio.gather(*self._endings, return_exceptions=True)
        await self._sessions.close()

    async def carry(self, body: bytes, answer: Answer) -> None:
        """Raises ConnectError and StaleConnectionError."""
        response = await self._send(body, is_narrow=answer.pause_s > 0)
        try:
            await self._read(response, answer)
        except aiohttp.ClientError:
            answer.fail(_loss(response), self._clock.now())
        except EventTooLongError:
            answer.fail("event not understood", self._clock.now())
        finally:
            if not answer.was_ended:
                response.close()
        if answer.was_ended:
            await self._await_end(response)

    async def _send(self, body: bytes, *, is_narrow: bool) -> aiohttp.ClientResponse:
        sending, begun_at = _Sending(), self._clock.now()
        try:
            return await self._sessions.get(is_narrow=is_narrow).post(
                self._url,
                data=body,
                allow_redirects=False,
                read_bufsize=NARROW_BYTES if is_narrow else None,
                trace_request_ctx=sending,
            )
        except aiohttp.ClientConnectionError as error:
            if sending.is_reused and self._clock.now() <= begun_at + STALE_S:
                raise StaleConnectionError from None
            raise ConnectError(reason_of(error)) from None
        except NOT_SENT as error:
            raise ConnectError(reason_of(error)) from None

    async def _read(self, response: aiohttp.ClientResponse, answer: Answer) -> None:
        headers = response.headers
        if response.status != 200:
            answer.fail(http_failure(response.status, await refusal(response)), self._clock.now())
        elif not headers.get("content-type", "").startswith(CONTENT_TYPE):
            answer.fail("not a stream", self._clock.now())
        elif headers.get("content-encoding", "").lower() not in _PLAIN:
            answer.fail("compressed stream", self._clock.now())
        else:
            await self._read_events(response.content, answer)

    async def _read_events(self, content: aiohttp.StreamReader, answer: Answer) -> None:
        """A slow reader rests after each piece; what comes then waits with the kernel and the server."""
        reader = EventReader()
        while data := await content.readany():
            at = self._clock.now()
            for event in reader.feed(data):
                num_pieces = answer.take(event, at)
                if answer.is_over:
                    return
                if answer.pause_s and num_pieces:
                    await asyncio.sleep(num_pieces * answer.pause_s)
                    at = self._clock.now()
        answer.take_end(self._clock.now())

    async def _await_end(self, response: aiohttp.ClientResponse) -> None:
        """The answer is over, its response may not be: whoever asked goes on, the connection cannot yet."""
        if not response.content.is_eof():
            ending = asyncio.create_task(_end(response), name="end of a response")
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)
            await asyncio.wait((ending,), timeout=_PATIENCE_S)


async def _end(response: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(_ENDING_S):
            await response.content.wait_eof()
    except (TimeoutError, aiohttp.ClientError):
        pass
    finally:
        response.close()


def _loss(response: aiohttp.ClientResponse) -> str:
    """How a body ended too soon. What its reader is told is the same for all ways."""
    connection = response.connection
    protocol = None if connection is None else connection.protocol
    error = None if protocol is None else protocol.exception()
    return reason_of(error) if isinstance(error, aiohttp.ClientOSError) else "stream cut"


def _reuse_tracing() -> aiohttp.TraceConfig:
    async def note(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
        sending = context.trace_request_ctx
        if isinstance(sending, _Sending):
            sending.is_reused = True

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(note)
    return tracing
