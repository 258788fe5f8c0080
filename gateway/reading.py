"""How an answer is read: what in it is thought, what is a tool call, and what is said.

Pure; runs on the event loop. ``Reading`` is what a request asks for; ``AnswerReader`` reads one answer,
piece by piece, and keeps log probabilities with the text that is said. What it makes of an answer does not
depend on how that is cut into pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.answer import CallPiece, Piece, TokenEntry
from gateway.detokenizer import TokenTable
from gateway.entry_queue import EntryQueue
from gateway.thoughts import Split, ThoughtMarks, ThoughtSplitter
from gateway.tools.base import CallArguments, CallStart, Content, Event, ToolCallParser


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Thoughts are told apart; ``begins_inside`` if the prompt has opened one."""

    marks: ThoughtMarks
    begins_inside: bool
    are_shown: bool = True


@dataclass(frozen=True, slots=True)
class Calls:
    """Tool calls are told apart, by a parser for each answer; ``at_most_one`` ends an answer at the second.

    An answer with calls ends for ``finish_reason``. ``is_legacy``: a call is shown as ``function_call``.
    """

    new_parser: Callable[[], ToolCallParser]
    new_id: Callable[[], str]
    finish_reason: str = "tool_calls"
    at_most_one: bool = False
    is_legacy: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What to tell apart in the answers to a request. ``table`` has the marks as text."""

    table: TokenTable
    thoughts: Thoughts | None = None
    calls: Calls | None = None


class AnswerReader:
    """Reads one answer. ``is_done``: whatever comes now is not wanted."""

    def __init__(self, reading: Reading) -> None:
        thoughts, calls = reading.thoughts, reading.calls
        self._splitter = (
            None
            if thoughts is None
            else ThoughtSplitter(thoughts.marks, begins_inside=thoughts.begins_inside)
        )
        self._shows_thoughts = thoughts is not None and thoughts.are_shown
        self._calls = calls
        self._parser = None if calls is None else calls.new_parser()
        self._entries = EntryQueue()
        self._num_said = 0
        self._num_calls = 0
        self.is_done = False

    @property
    def is_thinking(self) -> bool:
        return self._splitter is not None and self._splitter.is_inside

    def read(self, piece: Piece) -> Piece:
        """Take more of the answer, and give what is certain of it."""
        self._entries.push(piece.entries)
        split = Split(said=piece.text) if self._splitter is None else self._splitter.push(piece.text)
        return self._piece(split.thought, self._parse(split.said))

    def finish(self) -> Piece:
        """The answer is over."""
        split = Split() if self._splitter is None else self._splitter.finish()
        events = self._parse(split.said)
        if self._parser is not None:
            events += self._parser.finish()
        return self._piece(split.thought, events)

    def _parse(self, said: str) -> list[Event]:
        if not said:
            return []
        if self._parser is not None:
            return self._parser.push(said)
        start = self._num_said
        self._num_said += len(said)
        return [Content(said, start)]

    def _piece(self, thought: str, events: Iterable[Event]) -> Piece:
        texts: list[str] = []
        entries: list[TokenEntry] = []
        calls: list[CallPiece] = []
        num_chars = 0
        for event in events:
            if isinstance(event, CallStart):
                self._begin_call(event.name, calls, num_chars)
            elif self.is_done:
                break
            elif isinstance(event, CallArguments):
                calls.append(CallPiece(self._num_calls - 1, event.text, text_before=num_chars))
            else:
                texts.append(event.text)
                num_chars += len(event.text)
                entries += self._entries.take(self._said_from + event.start, len(event.text))
        return Piece("".join(texts), tuple(entries), thought if self._shows_thoughts else "", tuple(calls))

    @property
    def _said_from(self) -> int:
        """Where in the answer what is said begins."""
        return 0 if self._splitter is None else self._splitter.said_from or 0

    def _begin_call(self, name: str, calls: list[CallPiece], text_before: int) -> None:
        assert self._calls is not None
        if self._num_calls and self._calls.at_most_one:
            self.is_done = True
            return
        call_id = self._calls.new_id()
        calls.append(CallPiece(self._num_calls, name=name, call_id=call_id, text_before=text_before))
        self._num_calls += 1
