"""Models that think aloud: which part of an answer is the thought, and which is said.

Pure and incremental; runs on the event loop. A thought stands at the beginning of an answer, between the
marks of the model's family; the prompt may have opened it already. Anywhere else the marks are text like
any other. White space around the thought belongs to neither part. A thought that is not finished is one all
the same.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

AUTO, NONE = "auto", "none"  # for every kind of parser that can be chosen


class ReasoningParserError(ValueError):
    """There is no such parser. The message is one plain sentence for the user."""


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """What a family of models puts around a thought. ``is_implied``: it may leave the first mark out."""

    name: str
    start: str
    end: str
    is_implied: bool = False

    def is_open_at_end_of(self, prompt: str) -> bool:
        """Whether an answer to this prompt begins inside a thought."""
        tail = prompt.rstrip()
        return tail.endswith(self.start) or (self.is_implied and not tail.endswith(self.end))

    def is_left_open_in(self, text: str) -> bool:
        """Whether a text that is to be continued ends inside a thought."""
        return text.rfind(self.start) > text.rfind(self.end)


FAMILIES: Mapping[str, ThoughtMarks] = {
    marks.name: marks
    for marks in (
        ThoughtMarks("seed_oss", "<seed:think>", "</seed:think>"),
        ThoughtMarks("mistral", "[THINK]", "[/THINK]"),
        ThoughtMarks("qwen3", "<think>", "</think>"),
        ThoughtMarks("deepseek_r1", "<think>", "</think>", is_implied=True),
    )
}


def marks_of(spec: str, template: str | None) -> ThoughtMarks | None:
    """What ``--reasoning-parser`` asks for: a family, ``auto`` or ``none``. Raises ReasoningParserError."""
    if spec == NONE:
        return None
    if spec == AUTO:
        return next((marks for marks in FAMILIES.values() if marks.end in (template or "")), None)
    if spec not in FAMILIES:
        known = ", ".join([AUTO, NONE, *FAMILIES])
        raise ReasoningParserError(f"There is no reasoning parser {spec!r}; there are {known}.")
    return FAMILIES[spec]


class _Place(enum.Enum):
    BEFORE = enum.auto()
    OPENED = enum.auto()  # the first mark may come once more
    REOPENED = enum.auto()  # white space at the beginning of the thought
    INSIDE = enum.auto()
    CLOSED = enum.auto()  # white space between the thought and what is said
    BEYOND = enum.auto()


@dataclass(frozen=True, slots=True)
class Split:
    """More of the thought, and more of what is said."""

    thought: str = ""
    said: str = ""


class ThoughtSplitter:
    """Reads one answer."""

    def __init__(self, marks: ThoughtMarks, *, begins_inside: bool) -> None:
        self._marks = marks
        self._place = _Place.OPENED if begins_inside else _Place.BEFORE
        self._held = ""
        self._num_passed = 0
        self.said_from: int | None = None  # where in all the text what is said begins

    @property
    def is_inside(self) -> bool:
        return self._place in (_Place.OPENED, _Place.REOPENED, _Place.INSIDE)

    def push(self, text: str) -> Split:
        """Take more text."""
        if self._is_beyond:
            return Split(said=text)
        self._held += text
        thought = self._advance()
        return Split(thought, self._rest() if self._is_beyond else "")

    @property
    def _is_beyond(self) -> bool:
        return self._place is _Place.BEYOND

    def _advance(self) -> str:
        """Through as many places as the held text allows; what of it is thought."""
        thought = ""
        if self._place is _Place.BEFORE:
            self._look_for_start()
        if self._place is _Place.OPENED:
            self._look_for_start_again()
        if self._place is _Place.REOPENED:
            self._pass_blank(_Place.INSIDE)
        if self._place is _Place.INSIDE:
            thought = self._think()
        if self._place is _Place.CLOSED:
            self._pass_blank(_Place.BEYOND)
        return thought

    def finish(self) -> Split:
        """The text is over."""
        if self._place is _Place.BEFORE:
            return Split(said=self._rest())
        return Split(thought="" if self._held.isspace() else self._rest()) if self.is_inside else Split()

    def _look_for_start(self) -> None:
        self._pass_start(otherwise=_Place.BEYOND)

    def _look_for_start_again(self) -> None:
        """Some models open a thought that the prompt has opened."""
        self._pass_start(otherwise=_Place.REOPENED)

    def _pass_start(self, otherwise: _Place) -> None:
        rest = self._held.lstrip()
        if rest.startswith(self._marks.start):
            self._drop(len(self._held) - len(rest) + len(self._marks.start))
            self._place = _Place.REOPENED
        elif not self._marks.start.startswith(rest):
            self._place = otherwise

    def _pass_blank(self, then: _Place) -> None:
        rest = self._held.lstrip()
        if rest:
            self._drop(len(self._held) - len(rest))
            self._place = then

    def _think(self) -> str:
        """What is certain to be thought; white space may turn out to stand before the mark."""
        at = self._held.find(self._marks.end)
        if at >= 0:
            thought = self._held[:at].rstrip()
            self._drop(at + len(self._marks.end))
            self._place = _Place.CLOSED
            return thought
        size = len(self._held)
        for partial in range(min(size, len(self._marks.end) - 1), 0, -1):
            if self._held.endswith(self._marks.end[:partial]):
                size -= partial
                break
        thought = self._held[:size].rstrip()
        self._drop(len(thought))
        return thought

    def _drop(self, count: int) -> None:
        self._held = self._held[count:]
        self._num_passed += count

    def _rest(self) -> str:
        if self.said_from is None:
            self.said_from = self._num_passed
        rest, self._held = self._held, ""
        return rest
