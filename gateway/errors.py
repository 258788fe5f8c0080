"""What can go wrong for a client, in one table: cause, HTTP status, OpenAI type and code.

Pure. Every answer that is not a success is built here, so that its body is short, always valid
JSON, never an echo of the input and never a stack trace. ``ErrorKind.value`` is the label of the
``outcome`` metric.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from gateway.mailbox import FailureKind, StreamFailure

_MAX_MESSAGE = 400


class ErrorKind(enum.Enum):
    """Causes that a client can meet."""

    BAD_REQUEST = "bad_request"
    UNSUPPORTED = "unsupported"
    CONTEXT_LENGTH = "context_length"
    UNAUTHORIZED = "unauthorized"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TIMEOUT = "body_timeout"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    BUSY = "busy"
    REQUEST_LIMIT = "request_limit"
    TOKEN_LIMIT = "token_limit"
    ABOVE_LIMIT = "above_limit"
    INTERNAL = "internal"
    REQUEST_FAILED = "request_failed"
    ENGINE_DEAD = "engine_dead"
    ENGINE_BUSY = "engine_busy"
    SHUTDOWN = "shutdown"
    TOO_SLOW = "too_slow"


@dataclass(frozen=True, slots=True)
class _Shape:
    status: int
    type: str
    code: str | None


_CLIENT, _SERVER = "invalid_request_error", "server_error"
_SHAPES = {
    ErrorKind.BAD_REQUEST: _Shape(400, _CLIENT, "invalid_value"),
    ErrorKind.UNSUPPORTED: _Shape(400, _CLIENT, "unsupported_parameter"),
    ErrorKind.CONTEXT_LENGTH: _Shape(400, _CLIENT, "context_length_exceeded"),
    ErrorKind.UNAUTHORIZED: _Shape(401, _CLIENT, "invalid_api_key"),
    ErrorKind.MODEL_NOT_FOUND: _Shape(404, _CLIENT, "model_not_found"),
    ErrorKind.NOT_FOUND: _Shape(404, _CLIENT, "not_found"),
    ErrorKind.METHOD_NOT_ALLOWED: _Shape(405, _CLIENT, "method_not_allowed"),
    ErrorKind.BODY_TIMEOUT: _Shape(408, _CLIENT, "request_timeout"),
    ErrorKind.BODY_TOO_LARGE: _Shape(413, _CLIENT, "request_too_large"),
    ErrorKind.UNSUPPORTED_MEDIA_TYPE: _Shape(415, _CLIENT, "unsupported_media_type"),
    ErrorKind.BUSY: _Shape(429, "rate_limit_error", "server_busy"),
    ErrorKind.REQUEST_LIMIT: _Shape(429, "requests", "rate_limit_exceeded"),
    ErrorKind.TOKEN_LIMIT: _Shape(429, "tokens", "rate_limit_exceeded"),
    ErrorKind.ABOVE_LIMIT: _Shape(400, _CLIENT, "above_rate_limit"),  # a 429 would be tried again
    ErrorKind.INTERNAL: _Shape(500, _SERVER, "internal_error"),
    ErrorKind.REQUEST_FAILED: _Shape(500, _SERVER, "request_failed"),
    ErrorKind.ENGINE_DEAD: _Shape(503, _SERVER, "engine_dead"),
    ErrorKind.ENGINE_BUSY: _Shape(503, _SERVER, "engine_busy"),
    ErrorKind.SHUTDOWN: _Shape(503, _SERVER, "shutting_down"),
    ErrorKind.TOO_SLOW: _Shape(408, _SERVER, "client_too_slow"),
}
_FAILURES = {
    FailureKind.ENGINE_DEAD: ErrorKind.ENGINE_DEAD,
    FailureKind.ENGINE_BUSY: ErrorKind.ENGINE_BUSY,
    FailureKind.REQUEST_FAILED: ErrorKind.REQUEST_FAILED,
    FailureKind.TOO_SLOW: ErrorKind.TOO_SLOW,
    FailureKind.SHUTDOWN: ErrorKind.SHUTDOWN,
}


class _ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class _ErrorEnvelope(msgspec.Struct):
    error: _ErrorBody


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
            _ErrorEnvelope(_ErrorBody(message, shape.type, self.param and clip(self.param, 100), shape.code))
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


def from_failure(failure: StreamFailure) -> ApiError:
    """The same failure as an HTTP status or as an in-band error."""
    may_retry = failure.kind in (FailureKind.SHUTDOWN, FailureKind.ENGINE_BUSY)
    return ApiError(_FAILURES[failure.kind], failure.message, retry_after_s=10 if may_retry else None)
