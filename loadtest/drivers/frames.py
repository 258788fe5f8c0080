"""A client's side of the WebSocket protocol (RFC 6455), without extensions. Pure: owns no socket."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from enum import IntEnum

_ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FIN, _MASKED = 0x80, 0x80
_MAX_MESSAGE = 64 * 1024 * 1024


class BadFrameError(Exception):
    """What came breaks the protocol, or is longer than any event."""


class Opcode(IntEnum):
    MORE = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


def accept_of(key: bytes) -> str:
    """What a server answers to the key of a handshake, to show that it knows the protocol."""
    return base64.b64encode(hashlib.sha1(key + _ACCEPT_GUID).digest()).decode()


def frame(opcode: Opcode, payload: bytes, mask: bytes) -> bytes:
    """A whole message. ``mask``: four bytes that nobody can foresee."""
    size = len(payload)
    if size < 126:
        head = bytes((_FIN | opcode, _MASKED | size))
    elif size < 1 << 16:
        head = bytes((_FIN | opcode, _MASKED | 126)) + size.to_bytes(2)
    else:
        head = bytes((_FIN | opcode, _MASKED | 127)) + size.to_bytes(8)
    return head + mask + _masked(payload, mask)


def _masked(payload: bytes, mask: bytes) -> bytes:
    """By one operation on numbers of any length, which is as fast as memory."""
    size = len(payload)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(size)


@dataclass(slots=True)
class Came:
    """``messages``: text and binary alike. ``pings`` are to be answered with the same payloads."""

    messages: list[bytes] = field(default_factory=list)
    pings: list[bytes] = field(default_factory=list)
    close_code: int | None = None  # 1005 if the server gave none


class FrameReader:
    def __init__(self) -> None:
        self._buffer = b""
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Came:
        """What is whole now. Raises BadFrameError."""
        buffer = self._buffer + data if self._buffer else data
        came, at = Came(), 0
        while (bounds := _bounds(buffer, at)) is not None:
            start, end = bounds
            self._take(buffer[at], buffer[start:end], came)
            at = end
        self._buffer = buffer[at:]
        return came

    def _take(self, first: int, payload: bytes, came: Came) -> None:
        opcode, is_last = first & 0x0F, bool(first & _FIN)
        if first & 0x70:
            raise BadFrameError
        if opcode == Opcode.PING:
            came.pings.append(payload)
        elif opcode == Opcode.CLOSE:
            came.close_code = int.from_bytes(payload[:2]) if len(payload) >= 2 else 1005
        elif opcode in (Opcode.MORE, Opcode.TEXT, Opcode.BINARY):
            self._size += len(payload)
            if (opcode == Opcode.MORE) != bool(self._parts) or self._size > _MAX_MESSAGE:
                raise BadFrameError
            self._parts.append(payload)
            if is_last:
                came.messages.append(b"".join(self._parts))
                self._parts, self._size = [], 0
        elif opcode != Opcode.PONG:
            raise BadFrameError


def _bounds(buffer: bytes, at: int) -> tuple[int, int] | None:
    """Where the payload of the frame at ``at`` starts and ends, if all of it is there."""
    if len(buffer) < at + 2:
        return None
    size, start = buffer[at + 1], at + 2
    if size & _MASKED:
        raise BadFrameError  # a server masks nothing
    if size >= 126:
        width = 2 if size == 126 else 8
        start += width
        if len(buffer) < start:
            return None
        size = int.from_bytes(buffer[start - width : start])
        if size > _MAX_MESSAGE:
            raise BadFrameError
    return (start, start + size) if len(buffer) >= start + size else None
