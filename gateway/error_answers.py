"""Errors as HTTP answers: from handlers, from aiohttp's own refusals, and where there is no request yet.

Runs on the event loop; owns nothing. Every answer here has the JSON body of ``gateway/errors.py`` and is
counted by its cause.
"""

from __future__ import annotations

import math
from http import HTTPStatus

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from gateway.errors import ApiError, ErrorKind
from gateway.metrics import Metrics
from gateway.request_keys import REQUEST_ID_HEADER, new_request_id

SERVER_NAME = "tidegate"
_FROM_STATUS = {
    404: (ErrorKind.NOT_FOUND, "There is nothing at this path."),
    405: (ErrorKind.METHOD_NOT_ALLOWED, "This path does not take that method."),
    413: (ErrorKind.BODY_TOO_LARGE, "The body is too large."),
    417: (ErrorKind.EXPECTATION_FAILED, "Of expectations, only '100-continue' can be met."),
}
_CLOSING = (ErrorKind.SHUTDOWN, ErrorKind.BODY_TOO_LARGE, ErrorKind.BODY_TIMEOUT)
BAD_HTTP = ApiError(ErrorKind.BAD_HTTP, "This is not a valid HTTP/1.1 request.")
HEADERS_TOO_LARGE = ApiError(ErrorKind.HEADERS_TOO_LARGE, "The request's headers are too many or too large.")
TOO_MANY_CONNECTIONS = ApiError(
    ErrorKind.TOO_MANY_CONNECTIONS, "Too many connections are open.", retry_after_s=5
)
HEAD_TIMEOUT = ApiError(ErrorKind.HEAD_TIMEOUT, "The request's headers did not arrive in time.")
INTERNAL = ApiError(ErrorKind.INTERNAL, "The server failed to handle this request.")


def error_response(
    metrics: Metrics, error: ApiError, original: web.HTTPException | None = None
) -> web.Response:
    """``original`` is the refusal of aiohttp that the error was made from."""
    metrics.error_answers.labels(error.kind.value).inc()
    response = web.Response(body=error.body(), status=error.status, content_type="application/json")
    response.headers.update(_retry_headers(error))
    if error.kind is ErrorKind.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.kind is ErrorKind.UPGRADE_REQUIRED:
        response.headers["Upgrade"] = "websocket"
    if original is not None and "Allow" in original.headers:
        response.headers["Allow"] = original.headers["Allow"]
    if error.kind in _CLOSING:
        response.force_close()
    return response


def detached_response(metrics: Metrics, error: ApiError) -> web.Response:
    """For a request that the application never sees, which would add these headers; closes the connection."""
    response = error_response(metrics, error)
    response.headers["Server"] = SERVER_NAME
    response.headers[REQUEST_ID_HEADER] = new_request_id()
    response.force_close()
    return response


def bare_response(metrics: Metrics, error: ApiError) -> bytes:
    """The whole answer as bytes, for a connection that is closed behind it without having had a request."""
    metrics.error_answers.labels(error.kind.value).inc()
    body = error.body()
    lines = [
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"Server: {SERVER_NAME}",
        f"{REQUEST_ID_HEADER}: {new_request_id()}",
        "Connection: close",
    ]
    lines += [f"{name}: {value}" for name, value in _retry_headers(error).items()]
    return "\r\n".join((*lines, "", "")).encode() + body


def _retry_headers(error: ApiError) -> dict[str, str]:
    if error.retry_after_s is None:
        return {}
    return {
        "Retry-After": str(math.ceil(error.retry_after_s)),
        "retry-after-ms": str(math.ceil(error.retry_after_s * 1000)),
    }


def from_refusal(refusal: web.HTTPException) -> ApiError:
    """For what aiohttp refuses by itself."""
    unforeseen = (ErrorKind.BAD_REQUEST, "This request cannot be served.")
    kind, message = _FROM_STATUS.get(refusal.status, unforeseen)
    return ApiError(kind, message)


def from_parser(error: BadHttpMessage, max_url_bytes: int) -> ApiError:
    """For what aiohttp's parser cannot read. Its own message quotes the input."""
    if isinstance(error, LineTooLong) and error.args[1] == max_url_bytes:
        return ApiError(ErrorKind.URL_TOO_LONG, f"The URL is longer than {max_url_bytes} bytes.")
    if isinstance(error, LineTooLong) or error.message == "Too many headers received":
        return HEADERS_TOO_LARGE
    return BAD_HTTP
