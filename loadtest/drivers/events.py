"""Server-sent events, read as their bytes come. Pure: owns no socket."""

from __future__ import annotations

CONTENT_TYPE = "text/event-stream"
_MAX_EVENT = 64 * 1024 * 1024


class EventTooLongError(Exception):
    """An event without an end."""


class EventReader:
    """Gives the data of events; their types and ids, and comments, are passed over.

    Lines end in LF or CRLF. An event that is not followed by an empty line is none.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []

    def feed(self, body: bytes) -> list[bytes]:
        """The data of each event that is whole now. Raises EventTooLongError."""
        lines = (self._buffer + body if self._buffer else body).split(b"\n")
        self._buffer = lines.pop()
        if len(self._buffer) > _MAX_EVENT:
            raise EventTooLongError
        events = []
        for line in lines:
            if line.endswith(b"\r"):
                line = line[:-1]
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
        return events
