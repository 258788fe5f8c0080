"""Short names for what servers refuse and break off, the same for all failures of a kind. Pure.

A name is made of the server's code where that is a word, never of its message where there is a code:
messages have numbers and times in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

_WORD = re.compile(r"[A-Za-z_][\w.-]{0,63}")
_MAX_MESSAGE = 60


class ErrorDetail(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None
    message: str | None = None


class _Body(msgspec.Struct):
    """OpenAI's shape, or its fields at the top, or only a text."""

    error: ErrorDetail | str | None = None
    detail: Any = None
    code: str | int | None = None
    type: str | None = None


_BODY = msgspec.json.Decoder(_Body)


def http_failure(status: int, body: bytes) -> str:
    try:
        found = _BODY.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return f"http {status}"
    error = found.error
    if not isinstance(error, ErrorDetail):
        error = ErrorDetail(found.code, found.type)
    return f"http {status} {code_of(error)}".rstrip()


def stream_failure(error: ErrorDetail | str, hide: Callable[[str], str]) -> str:
    """``hide``: takes secrets out of a message. What is not to be printed may change a terminal."""
    if isinstance(error, str):
        error = ErrorDetail(message=error)
    message = hide((error.message or "unnamed").partition("\n")[0])[:_MAX_MESSAGE]
    printable = "".join(letter if letter.isprintable() else "?" for letter in message)
    return f"error in stream: {code_of(error) or printable}"


def code_of(error: ErrorDetail) -> str:
    """Its code, or its type where that is a number, which only repeats the status; empty without either."""
    for name in (error.code, error.type):
        if isinstance(name, str) and _WORD.fullmatch(name):
            return name
    return ""
