"""Readers of calls written as JSON: one object, or the arguments of a call whose name is known.

Pure and incremental. The text of arguments is passed on as it is: what is inside their brackets is not
judged, only where they end, so that they can be streamed.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec

from gateway.tools.base import CallArguments, CallStart, Event, Fed, Outcome
from gateway.tools.extent import Extent

_ARGUMENT_KEYS = ("arguments", "parameters")


class _Expects(enum.Enum):
    """What comes next inside the braces of a call."""

    OPENING = "{"
    KEY = '"}'
    COLON = ":"
    VALUE = ""  # anything
    MORE = ",}"


_AFTER = {"{": _Expects.KEY, ":": _Expects.VALUE, ",": _Expects.KEY}


class CallObject:
    """One call: ``{"name": ..., "arguments": {...}}``; the arguments may be called ``parameters``.

    Keys come in any order, others are skipped. Arguments may also be a string with JSON in it; a call that
    has none, or null, gets an empty object.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._expects = _Expects.OPENING
        self._extent: Extent | None = None  # of the key or value under way
        self._is_streamed = False
        self._kept: list[str] = []
        self._key = ""
        self._name: str | None = None
        self._early: str | None = None  # arguments that came before the name
        self._is_call = False

    def feed(self, text: str) -> Fed:
        events: list[Event] = []
        pos = 0
        while pos < len(text):
            char = text[pos]
            if self._extent is not None:
                end = self._extent.feed(text, pos)
                stop = len(text) if end is None else end
                self._take(text[pos:stop], events)
                pos = stop
                if end is not None and not self._close_value(events):
                    return Fed(pos, Outcome.FAILED)
            elif char.isspace():
                pos += 1
            elif char not in self._expects.value and self._expects is not _Expects.VALUE:
                return Fed(pos, Outcome.DONE if self._is_call else Outcome.FAILED, events)
            elif self._expects is _Expects.VALUE or char == '"':
                self._open_value(char, events)
            elif char == "}":
                return self._end(pos + 1, events)
            else:
                self._expects = _AFTER[char]
                pos += 1
        return Fed(pos, Outcome.MORE, events)

    def _open_value(self, char: str, events: list[Event]) -> None:
        """A key or a value begins. Arguments are passed on from here if the name is known."""
        self._extent = Extent(char)
        self._kept = []
        is_object = self._expects is _Expects.VALUE and char == "{"
        self._is_streamed = is_object and self._key in _ARGUMENT_KEYS and self._can_begin
        if self._is_streamed:
            self._begin(None, events)

    @property
    def _can_begin(self) -> bool:
        return self._name is not None and not self._is_call

    def _begin(self, arguments: str | None, events: list[Event]) -> None:
        assert self._name is not None
        self._is_call = True
        events.append(CallStart(self._name))
        if arguments is not None:
            events.append(CallArguments(arguments))

    def _take(self, text: str, events: list[Event]) -> None:
        if self._is_streamed:
            events.append(CallArguments(text))
        elif not self._is_call:
            self._kept.append(text)

    def _close_value(self, events: list[Event]) -> bool:
        """A key or a value is complete; False if this can be no call."""
        self._extent = None
        is_key = self._expects is _Expects.KEY
        self._expects = _Expects.COLON if is_key else _Expects.MORE
        if self._is_call:
            self._key = ""
            return True
        value = _decoded("".join(self._kept))
        if is_key:
            self._key = value if isinstance(value, str) else ""
            return isinstance(value, str)
        if self._key == "name":
            return self._take_name(value, events)
        if self._key in _ARGUMENT_KEYS:
            return self._take_arguments(value, events)
        return True

    def _take_name(self, name: object, events: list[Event]) -> bool:
        if not isinstance(name, str) or name not in self._names:
            return False
        self._name = name
        if self._early is not None:
            self._begin(self._early, events)
        return True

    def _take_arguments(self, value: object, events: list[Event]) -> bool:
        """Arguments that were not streamed: before the name, or in a form of their own."""
        raw = "".join(self._kept) if isinstance(value, dict) else value
        arguments = "{}" if raw is None else raw
        if not isinstance(arguments, str) or not isinstance(_decoded(arguments), dict):
            return False
        self._early = arguments
        if self._can_begin:
            self._begin(arguments, events)
        return True

    def _end(self, pos: int, events: list[Event]) -> Fed:
        if self._can_begin:
            self._begin("{}", events)
        return Fed(pos, Outcome.DONE if self._is_call else Outcome.FAILED, events)


class BareArguments:
    """A call of which only the arguments come, because its name is known: one JSON object."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._extent: Extent | None = None

    def feed(self, text: str) -> Fed:
        events: list[Event] = []
        pos = 0
        if self._extent is None:
            pos = len(text) - len(text.lstrip())
            if pos == len(text):
                return Fed(pos, Outcome.MORE)
            if text[pos] != "{":
                return Fed(pos, Outcome.FAILED)
            self._extent = Extent("{")
            events.append(CallStart(self._name))
        end = self._extent.feed(text, pos)
        stop = len(text) if end is None else end
        events.append(CallArguments(text[pos:stop]))
        return Fed(stop, Outcome.MORE if end is None else Outcome.DONE, events)


def _decoded(raw: str) -> object:
    """The value of some JSON; the Ellipsis if it is none."""
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return ...
    return value
