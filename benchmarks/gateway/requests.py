"""The bytes that a sink sends to begin a stream, and those by which it knows the events that come. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

Kind = Literal["sse", "ws"]
_HANDSHAKE = (
    b"GET %b HTTP/1.1\r\nHost: sink\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Opening:
    """``first`` begins a stream; where ``then`` is not empty it follows once an answer to that has come.

    Each event ends with ``mark``, or has it at its front: it stands nowhere else in what comes.
    """

    first: bytes
    then: bytes
    mark: bytes


def chat(max_tokens: int) -> Opening:
    """A chat of the usual kind over SSE."""
    body = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "stream": True, "max_tokens": max_tokens, "ignore_eos": True,
    }  # fmt: skip
    return Opening(_post("/v1/chat/completions", body), b"", b"\n\n")


def stamped(max_tokens: int) -> Opening:
    """A completion of a prompt whose tokens sum up to 0, so that its words tell the time as they are."""
    body = {"prompt": [0], "stream": True, "max_tokens": max_tokens, "ignore_eos": True}
    return Opening(_post("/v1/completions", body), b"", b"\n\n")


def response(max_tokens: int) -> Opening:
    """A turn of a WebSocket of /v1/responses."""
    create = {
        "type": "response.create", "input": "Tell me a story.", "max_output_tokens": max_tokens,
        "store": False,
    }  # fmt: skip
    return Opening(_HANDSHAKE % b"/v1/responses", _frame(json.dumps(create).encode()), b"\x81")


def bare(kind: Kind, num_events: int, event_bytes: int) -> Opening:
    """The same of the floor, which writes so many events of that size."""
    path = f"/{kind}?events={num_events}&bytes={event_bytes}".encode()
    if kind == "ws":
        return Opening(_HANDSHAKE % path, b"", b"\x81")
    return Opening(b"GET %b HTTP/1.1\r\nHost: sink\r\n\r\n" % path, b"", b"\n\n")


def _post(path: str, body: object) -> bytes:
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: sink\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload


def _frame(text: bytes) -> bytes:
    """A message of 126 bytes or more, and less than 64 KiB, under a mask of zeros."""
    assert 126 <= len(text) < 2**16 or len(text) < 126
    size = bytes((0x80 | len(text),)) if len(text) < 126 else b"\xfe" + len(text).to_bytes(2)
    return b"\x81" + size + bytes(4) + text
