"""Server-sent events, read as their bytes come. Pure: owns no socket."""

from __future__ import annotations

CONTENT_TYPE = "text/event-stream"
_MARK = b"\xef\xbb\xbf"  # that a text in UTF-8 may begin with
_MAX_EVENT = 64 * 1024 * 1024


class EventTooLongError(Exception):
    """An event without an end."""


class EventReader:
    """Gives the data of events; their types and ids, and comments, are passed over.

    Lines end in LF or CRLF; before the first there may be a byte order mark. An event that is not followed by
    an empty line is none.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []
        self._has_begun = False

    def feed(self, body: bytes) -> list[bytes]:
        """The data of each event that is whole now. Raises EventTooLongError."""
        lines = (self._buffer + body if self._buffer else body).split(b"\n")
        self._buffer = lines.pop()
        if len(self._buffer) > _MAX_EVENT:
            raise EventTooLongError
        if lines and not self._has_begun:
            self._has_begun = True
            lines[0] = lines[0].removeprefix(_MARK)
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
