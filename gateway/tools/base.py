"""Tool-call parsers: an answer's text, in pieces, to content and calls.

Pure and incremental; runs on the event loop. What comes out depends on the text alone, never on how it is
split. Text that may become a mark, and white space that may turn out to stand before a call, is held back.
A call is one once its head is right (JSON so far, the name of a tool that was offered): from there on its
arguments are passed on as they come. What turns out not to be a call before that is content, every character
of it. White space around calls is neither.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

SHORT_ID_CHARS = 9
"""Length of a call's id in those families whose templates take no other; letters and digits."""


@dataclass(frozen=True, slots=True)
class Content:
    """Text to show as it is; it begins ``start`` characters into all that was read."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of the tool ``name`` begins."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the present call's arguments, as JSON text."""

    text: str


Event = Content | CallStart | CallArguments


class ToolCallParser(Protocol):
    """What reads one answer. Made with the names of the tools that were offered.

    ``marks`` are strings around calls that the tokenizer may have as special tokens, which are no text
    otherwise.
    """

    marks: ClassVar[tuple[str, ...]]

    def push(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """The text is over."""
        ...


class Outcome(enum.Enum):
    """How far a reader of calls came with some text."""

    MORE = "more"  # it needs more text, unless it used some and some is left
    NEXT = "next"  # a call ended; the reader goes on with what follows
    DONE = "done"  # nothing that follows is the reader's
    FAILED = "failed"  # what it read since the last call is none


@dataclass(frozen=True, slots=True)
class Fed:
    """``used`` characters were read; those after them have to come again. A failed call has no events."""

    used: int
    outcome: Outcome
    events: list[Event] = field(default_factory=list)


class CallReader(Protocol):
    """Reads one call, or several."""

    def feed(self, text: str) -> Fed: ...


MakeReader = Callable[[], CallReader]


class MarkedCalls:
    """A parser that looks for marks in content and hands what follows one to the mark's reader.

    ``at_start`` reads the beginning of the answer, which may be a call without a mark.
    """

    marks: ClassVar[tuple[str, ...]] = ()

    def __init__(self, starts: Mapping[str, MakeReader], at_start: MakeReader | None = None) -> None:
        self._starts = starts
        self._reader = at_start() if at_start is not None else None
        self._held = ""
        self._position = 0  # of what is held, in all the text
        self._doubtful: list[str] = []  # what will be content if it is no call
        self._doubtful_at = 0
        self._is_in_call = False
        self._has_calls = False
        self._is_after_call = False  # nothing but white space came since

    def push(self, text: str) -> list[Event]:
        """Take more text."""
        events: list[Event] = []
        self._held += text
        while self._read_content(events) if self._reader is None else self._read_call(self._reader, events):
            pass
        return events

    def finish(self) -> list[Event]:
        """The text is over: what was held back, unless it is the broken-off end of a call."""
        events: list[Event] = []
        if self._reader is None:
            if not (self._is_after_call and self._held.isspace()):
                self._show(len(self._held), events)
        elif not self._is_in_call and not (self._has_calls and not any(self._doubtful)):
            self._doubtful.append(self._take(len(self._held)))
            self._give_up(events)
        return events

    def _read_content(self, events: list[Event]) -> bool:
        """One step over held content; False if nothing is left to do before more text comes."""
        found = [(at, mark) for mark in self._starts if (at := self._held.find(mark)) >= 0]
        if not found:
            self._show(len(self._held) - _num_uncertain(self._held, self._starts), events)
            return False
        at, mark = min(found)
        self._show(len(self._held[:at].rstrip()), events)
        self._begin_doubt(self._take(self._held.index(mark) + len(mark)))
        self._reader = self._starts[mark]()
        return True

    def _read_call(self, reader: CallReader, events: list[Event]) -> bool:
        fed = reader.feed(self._held)
        text = self._take(fed.used)
        if fed.events:
            self._is_in_call = self._has_calls = True
            events += fed.events
        if not self._is_in_call:
            self._doubtful.append(text)
        if fed.outcome is Outcome.FAILED:
            self._give_up(events)
        elif fed.outcome in (Outcome.NEXT, Outcome.DONE):
            self._is_in_call = False
            self._is_after_call = True
            self._begin_doubt()
        if fed.outcome in (Outcome.DONE, Outcome.FAILED):
            self._reader = None
        return fed.outcome is not Outcome.MORE or bool(fed.used and self._held)

    def _take(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        self._position += count
        return text

    def _show(self, count: int, events: list[Event]) -> None:
        if count:
            start = self._position
            events.append(Content(self._take(count), start))
            self._is_after_call = False

    def _begin_doubt(self, text: str = "") -> None:
        """What has just been taken, and what follows, is a call or else content."""
        self._doubtful = [text]
        self._doubtful_at = self._position - len(text)

    def _give_up(self, events: list[Event]) -> None:
        text = "".join(self._doubtful)
        self._doubtful = []
        if text:
            events.append(Content(text, self._doubtful_at))
            self._is_after_call = False


def _num_uncertain(text: str, marks: Mapping[str, MakeReader]) -> int:
    """Characters at the end that may belong to a mark to come, or be white space before it."""
    partial = max((_overlap(text, mark) for mark in marks), default=0)
    settled = text[: len(text) - partial]
    return len(text) - len(settled.rstrip())


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of the text that the mark, but not all of it, begins with."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0
