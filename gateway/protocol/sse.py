"""Server-sent events as bytes. Pure: owns no socket and no clock.

An event is one ``data:`` line and an empty line. The payload is JSON without line breaks, which is
what msgspec writes, so it never has to be split over several lines. Comments (lines that start with
a colon) keep proxies from cutting an idle stream; every SSE reader skips them.
"""

from __future__ import annotations

CONTENT_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def typed_event(type: str, payload: bytes) -> bytes:
    """The same with its type on a line of its own, as clients of /v1/responses expect it."""
    return b"event: " + type.encode() + b"\n" + event(payload)


def event(payload: bytes) -> bytes:
    """One event that carries ``payload``, a JSON text without line breaks."""
    assert b"\n" not in payload and b"\r" not in payload
    return b"data: " + payload + b"\n\n"
