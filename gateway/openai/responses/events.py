"""The typed events of a response, numbered without a gap from 0, from the pieces of its text.

Pure; runs on the event loop. One item is open at a time: a thought, a message or a call; what is of another
kind closes it. Every event is encoded once, whoever reads it how often.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from gateway.answer import CallPiece, Piece, TokenEntry
from gateway.detokenizer import TokenTable, printable
from gateway.openai.answers import around_text, finite
from gateway.openai.notes import one_of
from gateway.openai.responses.items import (
    FunctionCallItem,
    Logprob,
    LogprobTop,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
    new_id,
)
from gateway.openai.responses.shape import ResponseObject

TERMINAL = frozenset(("response.completed", "response.incomplete", "response.failed"))
_ABOUT_RESPONSE = ("response.created", "response.in_progress", *sorted(TERMINAL))


class Event(NamedTuple):
    """``data`` is its JSON, which ends with ``}`` as every object does."""

    sequence_number: int
    type: str
    data: bytes

    @property
    def is_last(self) -> bool:
        return self.type in TERMINAL


class ResponseEvent(msgspec.Struct, kw_only=True):
    """About the whole response."""

    type: Annotated[str, one_of(_ABOUT_RESPONSE)]
    sequence_number: int
    response: ResponseObject


class ItemEvent(msgspec.Struct, kw_only=True):
    type: Annotated[str, one_of(("response.output_item.added", "response.output_item.done"))]
    sequence_number: int
    output_index: int
    item: OutputItem


class OfItem(msgspec.Struct, kw_only=True):
    """What is told of the item that is open."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int


class OfPart(OfItem, kw_only=True):
    """And of the one part that it has."""

    content_index: Literal[0] = 0


class PartEvent(OfPart, kw_only=True):
    type: Annotated[str, one_of(("response.content_part.added", "response.content_part.done"))]
    part: OutputText | ReasoningText


class TextDeltaEvent(OfPart, kw_only=True):
    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    delta: str
    logprobs: list[Logprob] = []


class TextDoneEvent(OfPart, kw_only=True):
    type: Literal["response.output_text.done"] = "response.output_text.done"
    text: str
    logprobs: list[Logprob] = []


class ThoughtDeltaEvent(OfPart, kw_only=True):
    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    delta: str


class ThoughtDoneEvent(OfPart, kw_only=True):
    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    text: str


class ArgumentsDeltaEvent(OfItem, kw_only=True):
    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"
    delta: str


class ArgumentsDoneEvent(OfItem, kw_only=True):
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    name: str
    arguments: str


AnyEvent = (
    ResponseEvent
    | ItemEvent
    | PartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ThoughtDeltaEvent
    | ThoughtDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
)
_ENCODER = msgspec.json.Encoder()


class _TextDeltas:
    """The events with the text of one message, encoded but for what changes: their numbers and the text."""

    __slots__ = ("_after", "_before", "_between")

    def __init__(self, item_id: str, output_index: int) -> None:
        event = TextDeltaEvent(sequence_number=0, item_id=item_id, output_index=output_index, delta="")
        head, self._after = around_text(
            lambda text: _ENCODER.encode(msgspec.structs.replace(event, delta=text))
        )
        name = b'"sequence_number":'
        self._before, self._between = head.split(name + b"0", 1)
        self._before += name

    def event(self, number: int, text: str) -> Event:
        data = b"%b%d%b%b%b" % (self._before, number, self._between, _ENCODER.encode(text), self._after)
        return Event(number, "response.output_text.delta", data)


class ResponseEvents:
    """Makes the events of one response, in order: ``opening``, ``piece`` ..., ``close_item``, ``ending``.

    ``num_top`` alternatives are told beside each token's log probability; None tells of none. ``output`` has
    the items that are whole.
    """

    __slots__ = ("_logprobs", "_next", "_num_top", "_open", "_table", "_text_deltas", "_texts", "output")

    def __init__(self, table: TokenTable, num_top: int | None = None) -> None:
        self._table = table
        self._num_top = num_top
        self._next = 0
        self._open: OutputItem | None = None
        self._texts: list[str] = []
        self._logprobs: list[Logprob] = []
        self._text_deltas: _TextDeltas | None = None
        self.output: list[OutputItem] = []

    def about(self, type: str, response: ResponseObject) -> Event:
        """An event with the whole response in it."""
        return self._event(ResponseEvent, type=type, response=response)

    def piece(self, piece: Piece) -> list[Event]:
        """What came of the answer."""
        if piece.is_plain and piece.text and self._num_top is None and isinstance(self._open, MessageItem):
            return [self._more_text(piece.text)]
        return list(self._stretches(piece))

    def close_item(self, status: Status) -> list[Event]:
        """Nothing more comes of the item that is open, if one is."""
        return list(self._close(status))

    def nothing_said(self) -> list[Event]:
        """An answer without a word is a message all the same; chat templates expect that turns alternate."""
        return [] if self.output or self._open is not None else list(self._opened(MessageItem))

    def _stretches(self, piece: Piece) -> Iterator[Event]:
        if piece.thought:
            yield from self._opened(ReasoningItem)
            yield self._more(ThoughtDeltaEvent, piece.thought)
        said, entries = 0, deque(piece.entries)
        for call in piece.calls:
            yield from self._text(piece.text[said : call.text_before], entries)
            said = max(said, call.text_before)
            yield from self._call(call)
        yield from self._text(piece.text[said:], entries, is_rest=True)

    def _text(self, text: str, entries: deque[TokenEntry], *, is_rest: bool = False) -> Iterator[Event]:
        """A stretch of what is said, with the entries of its tokens."""
        own, size = [], 0
        while entries and (is_rest or size < len(text)):
            own.append(entries.popleft())
            size += len(own[-1].text)
        if text or own:
            yield from self._opened(MessageItem)
            logprobs = self._shown(own)
            self._logprobs += logprobs
            yield self._more(TextDeltaEvent, text, logprobs=logprobs)

    def _call(self, call: CallPiece) -> Iterator[Event]:
        if call.name:
            yield from self._close("completed")
            item = FunctionCallItem(
                id=new_id("fc"), call_id=call.call_id, name=call.name, arguments="", status="in_progress"
            )
            yield self._add(item)
        if call.arguments:
            yield self._more(ArgumentsDeltaEvent, call.arguments)

    def _opened(self, kind: type[MessageItem] | type[ReasoningItem]) -> Iterator[Event]:
        if isinstance(self._open, kind):
            return
        yield from self._close("completed")
        part: OutputText | ReasoningText
        if kind is MessageItem:
            part = OutputText("")
            yield self._add(MessageItem(id=new_id("msg"), role="assistant", content=[], status="in_progress"))
        else:
            part = ReasoningText("")
            yield self._add(ReasoningItem(id=new_id("rs"), status="in_progress"))
        yield self._of_item(PartEvent, type="response.content_part.added", part=part)

    def _add(self, item: OutputItem) -> Event:
        self._open = item
        return self._event(
            ItemEvent, type="response.output_item.added", output_index=len(self.output), item=item
        )

    def _more(self, kind: type[Any], delta: str, **fields: Any) -> Event:
        self._texts.append(delta)
        return self._of_item(kind, delta=delta, **fields)

    def _more_text(self, text: str) -> Event:
        """The same event as of any other text, for a message that is open."""
        if self._text_deltas is None:
            assert self._open is not None
            self._text_deltas = _TextDeltas(self._open.id, len(self.output))
        self._texts.append(text)
        number, self._next = self._next, self._next + 1
        return self._text_deltas.event(number, text)

    def _close(self, status: Status) -> Iterator[Event]:
        item = self._open
        if item is None:
            return
        text = "".join(self._texts)
        if isinstance(item, FunctionCallItem):
            item.arguments = text
            yield self._of_item(ArgumentsDoneEvent, name=item.name, arguments=text)
        elif isinstance(item, ReasoningItem):
            thought = ReasoningText(text)
            item.content = [thought]
            yield self._of_item(ThoughtDoneEvent, text=text)
            yield self._of_item(PartEvent, type="response.content_part.done", part=thought)
        else:
            said = OutputText(text, logprobs=self._logprobs)
            item.content = [said]
            yield self._of_item(TextDoneEvent, text=text, logprobs=self._logprobs)
            yield self._of_item(PartEvent, type="response.content_part.done", part=said)
        item.status = status
        index = len(self.output)
        self.output.append(item)
        self._open, self._texts, self._logprobs, self._text_deltas = None, [], [], None
        yield self._event(ItemEvent, type="response.output_item.done", output_index=index, item=item)

    def _of_item(self, kind: type[Any], **fields: Any) -> Event:
        assert self._open is not None
        return self._event(kind, item_id=self._open.id, output_index=len(self.output), **fields)

    def _event(self, kind: type[Any], **fields: Any) -> Event:
        event = kind(sequence_number=self._next, **fields)
        self._next += 1
        return Event(event.sequence_number, event.type, _ENCODER.encode(event))

    def _shown(self, entries: Iterable[TokenEntry]) -> list[Logprob]:
        if self._num_top is None:
            return []
        return [
            Logprob(
                printable(entry.raw),
                finite(entry.logprobs.logprob),
                list(entry.raw),
                [self._alternative(*top) for top in entry.logprobs.top[: self._num_top]],
            )
            for entry in entries
        ]

    def _alternative(self, token_id: int, logprob: float) -> LogprobTop:
        label, raw = self._table.label(token_id)
        return LogprobTop(label, finite(logprob), list(raw))
