"""What can go wrong for a client, in one table: cause, HTTP status, OpenAI type and code, close code, label.

Pure. Every answer that is not a success is built here, so that its body is short, always valid
JSON, never an echo of the input and never a stack trace. ``ErrorKind.value`` is the metrics' label of
the cause. ``docs/errors.md`` shows the table, and a test holds the page to it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from gateway.mailbox import FailureKind, StreamFailure

_MAX_MESSAGE = 400


class ErrorKind(enum.Enum):
    """Causes that a client can meet."""

    BAD_REQUEST = "bad_request"
    BAD_HTTP = "bad_http"
    UNSUPPORTED = "unsupported"
    CONTEXT_LENGTH = "context_length"
    UNAUTHORIZED = "unauthorized"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    PREVIOUS_NOT_FOUND = "previous_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONFLICT = "conflict"
    HISTORY_TOO_LARGE = "history_too_large"
    UPGRADE_REQUIRED = "upgrade_required"
    FOREIGN_ORIGIN = "foreign_origin"
    HEAD_TIMEOUT = "head_timeout"
    BODY_TIMEOUT = "body_timeout"
    BODY_TOO_LARGE = "body_too_large"
    URL_TOO_LONG = "url_too_long"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    EXPECTATION_FAILED = "expectation_failed"
    HEADERS_TOO_LARGE = "headers_too_large"
    BUSY = "busy"
    REQUEST_LIMIT = "request_limit"
    TOKEN_LIMIT = "token_limit"
    ABOVE_LIMIT = "above_limit"
    INTERNAL = "internal"
    REQUEST_FAILED = "request_failed"
    ENGINE_DEAD = "engine_dead"
    ENGINE_BUSY = "engine_busy"
    STATE_FAILED = "state_failed"
    STATE_BUSY = "state_busy"
    SHUTDOWN = "shutdown"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    TOO_SLOW = "too_slow"
    INVALID_STREAM_ID = "invalid_stream_id"
    STREAM_LIMIT = "stream_limit"
    TURN_LIMIT = "turn_limit"
    CONNECTION_AGE = "connection_age"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Shape:
    """How a cause is told: as an HTTP answer, and as the end of a WebSocket.

    ``close_code`` is 4000 plus the status where the codes of RFC 6455 have none that says the same.
    """

    status: int
    type: str
    code: str
    registered_close_code: int | None = None

    @property
    def close_code(self) -> int:
        return self.registered_close_code or 4000 + self.status


_GOING_AWAY, _UNSUPPORTED_DATA, _TOO_BIG, _INTERNAL, _TRY_AGAIN = 1001, 1003, 1009, 1011, 1013
_CLIENT, _SERVER = "invalid_request_error", "server_error"
_SHAPES = {
    ErrorKind.BAD_REQUEST: Shape(400, _CLIENT, "invalid_value"),
    ErrorKind.BAD_HTTP: Shape(400, _CLIENT, "invalid_http"),
    ErrorKind.UNSUPPORTED: Shape(400, _CLIENT, "unsupported_parameter"),
    ErrorKind.CONTEXT_LENGTH: Shape(400, _CLIENT, "context_length_exceeded"),
    ErrorKind.UNAUTHORIZED: Shape(401, _CLIENT, "invalid_api_key"),
    ErrorKind.MODEL_NOT_FOUND: Shape(404, _CLIENT, "model_not_found"),
    ErrorKind.NOT_FOUND: Shape(404, _CLIENT, "not_found"),
    ErrorKind.PREVIOUS_NOT_FOUND: Shape(404, _CLIENT, "previous_response_not_found"),
    ErrorKind.METHOD_NOT_ALLOWED: Shape(405, _CLIENT, "method_not_allowed"),
    ErrorKind.UPGRADE_REQUIRED: Shape(426, _CLIENT, "upgrade_required"),
    ErrorKind.FOREIGN_ORIGIN: Shape(403, _CLIENT, "origin_not_allowed"),
    ErrorKind.HEAD_TIMEOUT: Shape(408, _CLIENT, "request_timeout"),
    ErrorKind.BODY_TIMEOUT: Shape(408, _CLIENT, "request_timeout"),
    ErrorKind.CONFLICT: Shape(409, _CLIENT, "response_in_progress"),
    ErrorKind.HISTORY_TOO_LARGE: Shape(413, _CLIENT, "history_too_large"),
    ErrorKind.BODY_TOO_LARGE: Shape(413, _CLIENT, "request_too_large", _TOO_BIG),
    ErrorKind.URL_TOO_LONG: Shape(414, _CLIENT, "url_too_long"),
    ErrorKind.UNSUPPORTED_MEDIA_TYPE: Shape(415, _CLIENT, "unsupported_media_type", _UNSUPPORTED_DATA),
    ErrorKind.EXPECTATION_FAILED: Shape(417, _CLIENT, "expectation_failed"),
    ErrorKind.HEADERS_TOO_LARGE: Shape(431, _CLIENT, "headers_too_large"),
    ErrorKind.BUSY: Shape(429, "rate_limit_error", "server_busy", _TRY_AGAIN),
    ErrorKind.REQUEST_LIMIT: Shape(429, "requests", "rate_limit_exceeded"),
    ErrorKind.TOKEN_LIMIT: Shape(429, "tokens", "rate_limit_exceeded"),
    ErrorKind.ABOVE_LIMIT: Shape(400, _CLIENT, "above_rate_limit"),  # a 429 would be tried again
    ErrorKind.INTERNAL: Shape(500, _SERVER, "internal_error", _INTERNAL),
    ErrorKind.REQUEST_FAILED: Shape(500, _SERVER, "request_failed", _INTERNAL),
    ErrorKind.ENGINE_DEAD: Shape(503, _SERVER, "engine_dead", _INTERNAL),
    ErrorKind.ENGINE_BUSY: Shape(503, _SERVER, "engine_busy", _TRY_AGAIN),
    ErrorKind.STATE_FAILED: Shape(500, _SERVER, "state_failed", _INTERNAL),
    ErrorKind.STATE_BUSY: Shape(503, _SERVER, "state_busy", _TRY_AGAIN),
    ErrorKind.SHUTDOWN: Shape(503, _SERVER, "shutting_down", _GOING_AWAY),
    ErrorKind.TOO_MANY_CONNECTIONS: Shape(503, _SERVER, "too_many_connections", _TRY_AGAIN),
    ErrorKind.TOO_SLOW: Shape(408, _SERVER, "client_too_slow"),
    ErrorKind.INVALID_STREAM_ID: Shape(400, _CLIENT, "invalid_stream_id"),
    ErrorKind.STREAM_LIMIT: Shape(400, _CLIENT, "websocket_stream_limit_reached"),
    ErrorKind.TURN_LIMIT: Shape(429, "rate_limit_error", "websocket_turn_limit_reached"),
    ErrorKind.CONNECTION_AGE: Shape(400, _CLIENT, "websocket_connection_limit_reached", _GOING_AWAY),
    ErrorKind.IDLE: Shape(408, _CLIENT, "idle_timeout"),
}
TABLE: Mapping[ErrorKind, Shape] = MappingProxyType(_SHAPES)
_FAILURES = {
    FailureKind.ENGINE_DEAD: ErrorKind.ENGINE_DEAD,
    FailureKind.ENGINE_BUSY: ErrorKind.ENGINE_BUSY,
    FailureKind.REQUEST_FAILED: ErrorKind.REQUEST_FAILED,
    FailureKind.REQUEST_INVALID: ErrorKind.BAD_REQUEST,
    FailureKind.TOO_SLOW: ErrorKind.TOO_SLOW,
    FailureKind.SHUTDOWN: ErrorKind.SHUTDOWN,
    FailureKind.INTERRUPTED: ErrorKind.REQUEST_FAILED,
}


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: ErrorBody


class ApiError(Exception):
    """An error for the client. ``param`` names the field at fault; ``retry_after_s`` is a hint."""

    def __init__(
        self, kind: ErrorKind, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        return _SHAPES[self.kind].status

    def body(self) -> bytes:
        """The OpenAI error object as JSON, safe for any text in the message."""
        shape = _SHAPES[self.kind]
        message = clip(self.message)
        return msgspec.json.encode(
            Error(ErrorBody(message, shape.type, self.param and clip(self.param, 100), shape.code))
        )


def clip(text: str, limit: int = _MAX_MESSAGE) -> str:
    """A short text that is valid UTF-8, whatever the input was."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return short.encode("utf-8", errors="replace").decode()


def bad_request(param: str | None, message: str) -> ApiError:
    """400 for a field whose value cannot be used."""
    return ApiError(ErrorKind.BAD_REQUEST, message, param=param)


def unsupported(param: str, message: str) -> ApiError:
    """400 for a parameter that tidegate does not support."""
    return ApiError(ErrorKind.UNSUPPORTED, message, param=param)


def shutting_down() -> ApiError:
    """503 for what comes while the server drains."""
    return ApiError(ErrorKind.SHUTDOWN, "The server is shutting down.", retry_after_s=10)


def no_engine(restart_in_s: float | None) -> ApiError:
    """503 for what comes after the engine died; ``restart_in_s`` is None if no other takes its place."""
    message = "The engine stopped working" + ("." if restart_in_s is None else "; another is being started.")
    return ApiError(ErrorKind.ENGINE_DEAD, message, retry_after_s=restart_in_s)


def from_failure(failure: StreamFailure, param: str | None = None) -> ApiError:
    """The same failure as an HTTP status or as an in-band error; ``param`` is the field at fault, if any."""
    return ApiError(
        _FAILURES[failure.kind], failure.message, param=param, retry_after_s=failure.retry_after_s
    )
