"""One HTTP/1.1 response, read as its bytes come. Pure: owns no socket.

Made for streams of small chunks, where it costs a microsecond or two for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_MAX_HEAD = 64 * 1024
_MAX_LINE = 1024


class BadHttpError(Exception):
    """What came is no HTTP/1.1 response, or is cut off."""


@dataclass(frozen=True, slots=True)
class Head:
    """``headers``: names in lower case; of repeated ones the last."""

    status: int
    headers: Mapping[str, str]
    keeps_alive: bool


class ResponseReader:
    """``head`` is there once it is whole. ``is_over``: the body is whole too, and nothing came behind it."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.is_over = False
        self._buffer = b""
        self._left: int | None = None  # bytes of the body, or of its present chunk; None: until the end
        self._is_chunked = False
        self._in_trailer = False

    def feed(self, data: bytes) -> bytes:
        """Gives what it has of the body. Raises BadHttpError."""
        self._buffer = self._buffer + data if self._buffer else data
        while self.head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _MAX_HEAD:
                    raise BadHttpError
                return b""
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            self._take_head(head)
        return self._chunks() if self._is_chunked else self._plain()

    def feed_end(self) -> None:
        """The server closed its side. Raises BadHttpError unless that is how this body ends."""
        if not self.is_over and (self.head is None or self._is_chunked or self._left is not None):
            raise BadHttpError
        self.is_over = True

    def take_rest(self) -> bytes:
        """What came behind a head after which another protocol is spoken."""
        rest, self._buffer = self._buffer, b""
        return rest

    def _take_head(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        status = rest[:3]
        if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdecimal()):
            raise BadHttpError
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if status[0] == "1" and status != "101":
            return  # an interim response; the next one counts
        connection = headers.get("connection", "").lower()
        keeps_alive = "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)
        self.head = Head(int(status), headers, keeps_alive)
        self._frame(headers)

    def _frame(self, headers: Mapping[str, str]) -> None:
        assert self.head is not None
        if self.head.status in (101, 204, 304):
            self._left, self.is_over = 0, True
        elif headers.get("transfer-encoding", "").lower().endswith("chunked"):
            self._is_chunked, self._left = True, 0
        elif "content-length" in headers:
            length = headers["content-length"]
            if not (length.isascii() and length.isdecimal()):
                raise BadHttpError
            self._left = int(length)

    def _plain(self) -> bytes:
        if self.head is not None and self.head.status == 101:
            return b""
        body, self._buffer = self._buffer, b""
        if self._left is not None:
            body, self._buffer = body[: self._left], body[self._left :]
            self._left -= len(body)
            self.is_over = not self._left and not self._buffer
        return body

    def _chunks(self) -> bytes:
        """What is left of a chunk counts the CRLF behind it, which is cut off again."""
        buffer, at, found = self._buffer, 0, []
        while not self._in_trailer:
            if self._left:
                part = buffer[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                keep = len(part) - max(0, 2 - self._left)
                if keep > 0:
                    found.append(part[:keep])
                if self._left:
                    break
            end = buffer.find(b"\r\n", at)
            if end < 0:
                self._check_line(len(buffer) - at)
                break
            size = _size(buffer[at:end])
            at = end + 2
            self._left = size + 2 if size else 0
            self._in_trailer = not size
        self._buffer = buffer[at:]
        if self._in_trailer:
            self._take_trailer()
        return found[0] if len(found) == 1 else b"".join(found)

    def _take_trailer(self) -> None:
        while (end := self._buffer.find(b"\r\n")) >= 0:
            line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
            if not line:
                self.is_over = not self._buffer
                return
        self._check_line(len(self._buffer))

    def _check_line(self, size: int) -> None:
        if size > _MAX_LINE:
            raise BadHttpError


def _size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        size = int(digits, 16)
    except ValueError:
        raise BadHttpError from None
    if size < 0:
        raise BadHttpError
    return size
