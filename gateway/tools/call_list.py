"""A reader of calls one after the other, with what stands around them. Pure and incremental."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from gateway.tools.base import CallReader, Fed, MakeReader, Outcome


class _Stage(enum.Enum):
    BEFORE = enum.auto()
    ITEM = enum.auto()
    AFTER = enum.auto()
    CLOSED = enum.auto()
    OVER = enum.auto()


_OUTCOMES = {_Stage.CLOSED: Outcome.NEXT, _Stage.OVER: Outcome.DONE}


class CallList:
    """``opening`` call ``separator`` call ... ``closing`` ``end``; any of them may be nothing.

    What is missing after a call ends the list there, and is no fault.
    """

    def __init__(
        self,
        make_item: MakeReader,
        *,
        opening: str = "",
        separator: str = "",
        closing: str = "",
        end: str = "",
    ) -> None:
        self._make_item = make_item
        self._opening = opening
        self._separator = separator
        self._closing = closing
        self._end = end
        self._item: CallReader = make_item()
        self._stage = _Stage.BEFORE if opening else _Stage.ITEM

    def feed(self, text: str) -> Fed:
        return self._feed_item(text) if self._stage is _Stage.ITEM else self._feed_token(text)

    def _feed_item(self, text: str) -> Fed:
        fed = self._item.feed(text)
        if fed.outcome is not Outcome.DONE:
            return fed
        self._item = self._make_item()
        self._stage = _Stage.AFTER
        return Fed(fed.used, Outcome.NEXT, fed.events)

    def _feed_token(self, text: str) -> Fed:
        """Nothing is used before it is clear what it is; a separator is one if something follows."""
        rest = text.lstrip()
        num_blank = len(text) - len(rest)
        for token, stage in self._tokens():
            if rest.startswith(token):
                if token == self._separator and not rest[len(token) :].strip():
                    return Fed(0, Outcome.MORE)
                self._stage = stage
                return Fed(num_blank + len(token), _OUTCOMES.get(stage, Outcome.MORE))
            if token.startswith(rest):
                return Fed(0, Outcome.MORE)
        return Fed(0, Outcome.FAILED if self._stage is _Stage.BEFORE else Outcome.DONE)

    def _tokens(self) -> Iterator[tuple[str, _Stage]]:
        """What may come now, and what it leads to."""
        if self._stage is _Stage.BEFORE:
            yield self._opening, _Stage.ITEM
        if self._stage is _Stage.AFTER:
            if self._separator:
                yield self._separator, _Stage.ITEM
            if self._closing:
                yield self._closing, _Stage.CLOSED if self._end else _Stage.OVER
        if self._end and self._stage is not _Stage.BEFORE:
            yield self._end, _Stage.OVER
