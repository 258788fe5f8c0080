"""Reads the body of a request within its bounds of type, size and time.

Runs on the event loop. The size is checked against Content-Length before anything is read and again
while reading, so a chunked or compressed body cannot grow past it either. A compressed one is inflated
here, in pieces that hold the loop up for a millisecond at most, and no further than the bound. A client
that waits to be asked for its body (``Expect: 100-continue``) is asked when somebody wants to read it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from aiohttp import ClientPayloadError, HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.errors import ApiError, ErrorKind, bad_request
from gateway.shared_room import Holder, SharedRoom

_PIECE_BYTES = 256 * 2**10
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class BodyReader:
    """Reads bodies of at most ``max_bytes``, which together hold at most ``max_total_bytes``.

    At that bound, of which no tenant can take all, a body is refused with 429. A connection that has sent
    nothing holds nothing. What WebSockets hold is in the same ``room``.
    """

    def __init__(self, max_bytes: int, max_total_bytes: int, timeout_s: float) -> None:
        self._max_bytes = max_bytes
        self.room = SharedRoom(max_total_bytes)
        self._timeout_s = timeout_s

    @property
    def total_bytes(self) -> int:
        """Held at present, over all bodies."""
        return self.room.used

    @asynccontextmanager
    async def read(self, request: web.Request, holder: Holder) -> AsyncIterator[bytes]:
        """Scope in which a body is held. Raises ApiError: 415, 413, 408, 429, or 400 if it is broken."""
        if "Content-Type" in request.headers and not _is_json(request.content_type):
            raise ApiError(ErrorKind.UNSUPPORTED_MEDIA_TYPE, "The body must be of type application/json.")
        encoding = request.headers.get("Content-Encoding", "identity").lower()
        if encoding not in ("identity", "gzip", "deflate"):
            raise ApiError(ErrorKind.UNSUPPORTED_MEDIA_TYPE, "The body's content encoding is not supported.")
        if request.content_length is not None and request.content_length > self._max_bytes:
            raise _too_large(self._max_bytes)
        body = bytearray()
        try:
            await self._fill(body, request, holder, None if encoding == "identity" else _Inflation())
            yield bytes(body)
        finally:
            self.room.give_back(holder, len(body))

    async def _fill(
        self, body: bytearray, request: web.Request, holder: Holder, inflation: _Inflation | None
    ) -> None:
        num_received = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                await _ask_for_body(request)
                async for chunk in request.content.iter_any():
                    num_received += len(chunk)
                    for piece in (chunk,) if inflation is None else inflation.pieces(chunk):
                        self._check(holder, len(piece), max(len(body) + len(piece), num_received))
                        body += piece
                        self.room.take(holder, len(piece))
                        if inflation is not None:
                            await asyncio.sleep(0)
            if inflation is not None:
                inflation.check_end()
        except TimeoutError:
            raise ApiError(ErrorKind.BODY_TIMEOUT, "The body did not arrive in time.") from None
        except (HttpProcessingError, ClientPayloadError, web.RequestPayloadError, zlib.error):
            raise bad_request(None, "The body's transfer or content encoding is broken.") from None

    def _check(self, holder: Holder, num_more: int, size: int) -> None:
        if size > self._max_bytes:
            raise _too_large(self._max_bytes)
        if self.room.lacking(holder, num_more):
            raise ApiError(ErrorKind.BUSY, "Too many large bodies arrive at once.", retry_after_s=1)


class _Inflation:
    """One gzip or zlib stream, inflated piece by piece. Raises zlib.error if it is none, or not whole."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What ``data`` adds, at least one piece; none is inflated before it is asked for."""
        while True:
            piece = self._stream.decompress(data, _PIECE_BYTES)
            data = self._stream.unconsumed_tail
            yield piece
            if not data and len(piece) < _PIECE_BYTES:
                break
        if self._stream.unused_data:
            raise zlib.error("something follows the end")

    def check_end(self) -> None:
        if not self._stream.eof:
            raise zlib.error("it ends too early")


async def check_expectation(request: web.Request) -> None:
    """In place of aiohttp's, which asks for a body before anybody has looked at the request."""
    if request.version == HttpVersion11 and not _waits_to_be_asked(request):
        raise web.HTTPExpectationFailed


def is_owed_a_body(request: web.Request) -> bool:
    """Whether nobody knows if the body still comes, so that the connection cannot be used again."""
    return _waits_to_be_asked(request) and not request.content.is_eof()


async def _ask_for_body(request: web.Request) -> None:
    if request.version == HttpVersion11 and _waits_to_be_asked(request) and not request.content.is_eof():
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer has not begun


def _waits_to_be_asked(request: web.Request) -> bool:
    return request.headers.get("Expect", "").lower() == "100-continue"


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or content_type.endswith("+json")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(ErrorKind.BODY_TOO_LARGE, f"The body is larger than {max_bytes} bytes.")
