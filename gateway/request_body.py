"""Reads the body of a request within its bounds of type, size and time.

Runs on the event loop. The size is checked against Content-Length before anything is read and again
while reading, so a chunked or compressed body cannot grow past it either.
"""

from __future__ import annotations

import asyncio

from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.errors import ApiError, ErrorKind, bad_request


async def read_body(request: web.Request, max_bytes: int, timeout_s: float) -> bytes:
    """The body's bytes. Raises ApiError: 415, 413, 408, or 400 for a broken encoding."""
    if "Content-Type" in request.headers and not _is_json(request.content_type):
        raise ApiError(ErrorKind.UNSUPPORTED_MEDIA_TYPE, "The body must be of type application/json.")
    if request.content_length is not None and request.content_length > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
    except TimeoutError:
        raise ApiError(ErrorKind.BODY_TIMEOUT, "The body did not arrive in time.") from None
    except (HttpProcessingError, ClientPayloadError, web.RequestPayloadError):
        raise bad_request(None, "The body's transfer or content encoding is broken.") from None
    return bytes(body)


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or content_type.endswith("+json")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(ErrorKind.BODY_TOO_LARGE, f"The body is larger than {max_bytes} bytes.")
