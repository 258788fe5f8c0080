"""The events of one response, kept so that a stream that broke can go on where it broke.

Pure. Bound: ``max_bytes``, past which ``is_full`` asks the owner to let the oldest go, or to add no more.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice

from gateway.errors import bad_request
from gateway.openai.responses.events import Event

_EVENT_OVERHEAD_BYTES = 150  # of Python's objects around an event's bytes
MAX_BATCH_BYTES = 64 * 2**10
MAX_EVENT_NUMBER = 999_999_999  # that a client may name
_NUMBER = re.compile("-1|[0-9]{1,9}")


class EventsGoneError(LookupError):
    """Events that are asked for are not kept any more, or there never were so many."""


class EventLog:
    """Events by number. ``first`` is the number of the oldest one kept."""

    __slots__ = ("_events", "_max_bytes", "first", "is_ended", "num_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._events: deque[Event] = deque()
        self.first = 0
        self.num_bytes = 0
        self.is_ended = False

    @property
    def next(self) -> int:
        """The number that the next event will have."""
        return self.first + len(self._events)

    @property
    def is_full(self) -> bool:
        return self.num_bytes >= self._max_bytes

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            assert event.sequence_number == self.next
            assert not self.is_ended
            self._events.append(event)
            self.num_bytes += _size(event)
            self.is_ended = event.is_last

    def check(self, starting_after: int) -> None:
        """Raises EventsGoneError if what follows that number cannot be told without a gap."""
        if not self.first - 1 <= starting_after < self.next:
            raise EventsGoneError

    def after(self, number: int) -> list[Event]:
        """What follows that number and is there, a batch of it at a time. Raises EventsGoneError."""
        self.check(number)
        batch: list[Event] = []
        num_bytes = 0
        for event in islice(self._events, number + 1 - self.first, None):
            batch.append(event)
            num_bytes += len(event.data)
            if num_bytes >= MAX_BATCH_BYTES:
                break
        return batch

    def forget_until(self, number: int) -> None:
        """Let the oldest events go, up to and with this one, as long as the log is over half full."""
        while self._events and self.first <= number and self.num_bytes > self._max_bytes // 2:
            self.num_bytes -= _size(self._events.popleft())
            self.first += 1


def number_asked_for(query: Mapping[str, str]) -> int:
    """Of a URL: behind which event to go on; -1 is from the first, as if none were named. Raises ApiError."""
    given = query.get("starting_after", "-1")
    if not _NUMBER.fullmatch(given):
        raise bad_request("starting_after", "'starting_after' must be the number of an event.")
    return int(given)


def _size(event: Event) -> int:
    return len(event.data) + _EVENT_OVERHEAD_BYTES
