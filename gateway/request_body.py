"""Reads the body of a request within its bounds of type, size and time.

Runs on the event loop. The size is checked against Content-Length before anything is read and again
while reading, so a chunked or compressed body cannot grow past it either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.errors import ApiError, ErrorKind, bad_request


class BodyReader:
    """Reads bodies of at most ``max_bytes``, which together hold at most ``max_total_bytes``.

    At that bound a body is refused with 429. A connection that has sent nothing holds nothing.
    """

    def __init__(self, max_bytes: int, max_total_bytes: int, timeout_s: float) -> None:
        self._max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._timeout_s = timeout_s
        self._total_bytes = 0

    @property
    def total_bytes(self) -> int:
        """Held at present, over all bodies."""
        return self._total_bytes

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
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
            await self._fill(body, request)
            yield bytes(body)
        finally:
            self._total_bytes -= len(body)

    async def _fill(self, body: bytearray, request: web.Request) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                async for chunk in request.content.iter_any():
                    body += chunk
                    self._total_bytes += len(chunk)
                    self._check(body)
        except TimeoutError:
            raise ApiError(ErrorKind.BODY_TIMEOUT, "The body did not arrive in time.") from None
        except (HttpProcessingError, ClientPayloadError, web.RequestPayloadError):
            raise bad_request(None, "The body's transfer or content encoding is broken.") from None

    def _check(self, body: bytearray) -> None:
        if len(body) > self._max_bytes:
            raise _too_large(self._max_bytes)
        if self._total_bytes > self._max_total_bytes:
            raise ApiError(ErrorKind.BUSY, "Too many large bodies arrive at once.", retry_after_s=1)


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or content_type.endswith("+json")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(ErrorKind.BODY_TOO_LARGE, f"The body is larger than {max_bytes} bytes.")
