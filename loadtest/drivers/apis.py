"""The bodies that three APIs take, and what their events tell. Pure.

Events are read as far as a load test needs it, and what is not known in them is passed over: servers differ.
Tokens are counted by what usage says and by nothing else; an event may bring none, one or many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from loadtest.drivers.base import PastTurn
from loadtest.drivers.failures import ErrorDetail, code_of, stream_failure
from loadtest.drivers.target import Target
from loadtest.plan import PlannedRequest
from loadtest.timeline import Usage

DONE = b"[DONE]"
NOT_UNDERSTOOD = "event not understood"
_ENCODER = msgspec.json.Encoder()
_BAD_FINISHES = frozenset(("error", "abort"))


@dataclass(frozen=True, slots=True)
class Options:
    """What the server takes of what would be good to ask for. ``loadtest.drivers.survey`` finds out."""

    tells_usage: bool = False
    tells_usage_so_far: bool = False  # with each piece
    ignores_eos: bool = False
    keeps_min_tokens: bool = False
    keeps_responses: bool = False  # so that a turn need not bring its history
    length_field: str = "max_tokens"

    @property
    def forces_lengths(self) -> bool:
        return self.ignores_eos or self.keeps_min_tokens


class Piece(NamedTuple):
    """Text of a choice. Of a thought, or a call, nothing is ``said``."""

    choice: int
    said: str


@dataclass(slots=True)
class Told:
    """What one event says. ``failure`` is a reason, and then no other field counts but ``is_last``."""

    pieces: Sequence[Piece] = ()
    finishes: Sequence[tuple[int, str]] = ()  # choice, reason
    usage: Usage | None = None
    response_id: str = ""
    failure: str = ""
    is_last: bool = False


class Api(Protocol):
    """Of one target."""

    path: str
    gives_choices: bool  # n above 1

    def body(self, planned: PlannedRequest, past: Sequence[PastTurn]) -> dict[str, Any]: ...

    def read(self, data: bytes) -> Told: ...


def api_of(target: Target, options: Options) -> Api:
    kinds: dict[str, type[Chat] | type[Completions] | type[Responses]]
    kinds = {"chat": Chat, "completions": Completions, "responses": Responses}
    return kinds[target.api](target, options)


def _is_done(data: bytes) -> bool:
    """The mark behind the last event, whatever space is around it."""
    return data[:1] != b"{" and data.strip() == DONE


def encoded(body: dict[str, Any]) -> bytes:
    return _ENCODER.encode(body)


# ---- chats and completions ---------------------------------------------------------------------


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None

    def told(self) -> Usage:
        details = self.prompt_tokens_details
        cached_tokens = None if details is None else details.cached_tokens
        return Usage(self.prompt_tokens, self.completion_tokens, cached_tokens)


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None


class _ChatChoice(_Choice):
    delta: _Delta | None = None

    def piece(self) -> Piece | None:
        delta = self.delta
        if delta is None:
            return None
        if delta.content:
            return Piece(self.index, delta.content)
        if delta.reasoning_content or delta.reasoning or delta.tool_calls:
            return Piece(self.index, "")
        return None


class _TextChoice(_Choice):
    text: str | None = None

    def piece(self) -> Piece | None:
        return Piece(self.index, self.text) if self.text else None


class _ChatChunk(msgspec.Struct):
    choices: list[_ChatChoice] | None = None
    usage: _Usage | None = None
    error: ErrorDetail | str | None = None


class _TextChunk(msgspec.Struct):
    choices: list[_TextChoice] | None = None
    usage: _Usage | None = None
    error: ErrorDetail | str | None = None


class _Chunks:
    """What chats and completions have in common."""

    gives_choices = True
    _decoder: ClassVar[msgspec.json.Decoder[Any]]

    def __init__(self, target: Target, options: Options) -> None:
        self._target = target
        self._options = options

    def _common(self, planned: PlannedRequest) -> dict[str, Any]:
        options = self._options
        body: dict[str, Any] = {"model": self._target.model, "stream": True}
        body[options.length_field] = planned.output_len
        if options.tells_usage:
            body["stream_options"] = {"include_usage": True}
            if options.tells_usage_so_far:
                body["stream_options"]["continuous_usage_stats"] = True
        if planned.n > 1:
            body["n"] = planned.n
        return {**body, **_forced(planned, options), **self._target.extra}

    def read(self, data: bytes) -> Told:
        if _is_done(data):
            return Told(is_last=True)
        try:
            return _read_chunk(self._decoder.decode(data), self._target)
        except (msgspec.DecodeError, RecursionError):
            return Told(failure=NOT_UNDERSTOOD)


def _read_chunk(chunk: _ChatChunk | _TextChunk, target: Target) -> Told:
    if chunk.error is not None:
        return Told(failure=stream_failure(chunk.error, target.without_secrets), is_last=True)
    pieces: list[Piece] = []
    finishes: list[tuple[int, str]] = []
    for choice in chunk.choices or ():
        if (piece := choice.piece()) is not None:
            pieces.append(piece)
        if choice.finish_reason is not None:
            if choice.finish_reason in _BAD_FINISHES:
                return Told(failure=f"error in stream: finish reason {choice.finish_reason}")
            finishes.append((choice.index, choice.finish_reason))
    return Told(pieces, finishes, None if chunk.usage is None else chunk.usage.told())


def _forced(planned: PlannedRequest, options: Options) -> dict[str, Any]:
    """As little as makes the answer as long as planned: ``min_tokens`` costs some servers time."""
    if options.ignores_eos:
        return {"ignore_eos": True}
    return {"min_tokens": planned.output_len} if options.keeps_min_tokens else {}


class Chat(_Chunks):
    """``/v1/chat/completions``. Implements Api."""

    path = "/v1/chat/completions"
    _decoder = msgspec.json.Decoder(_ChatChunk)

    def body(self, planned: PlannedRequest, past: Sequence[PastTurn]) -> dict[str, Any]:
        return {"messages": _messages(planned, past), **self._common(planned)}


class Completions(_Chunks):
    """``/v1/completions``. A history is one text. Implements Api."""

    path = "/v1/completions"
    _decoder = msgspec.json.Decoder(_TextChunk)

    def body(self, planned: PlannedRequest, past: Sequence[PastTurn]) -> dict[str, Any]:
        history = "".join(f"{turn.asked}{turn.answered} " for turn in past)
        return {"prompt": history + planned.text, **self._common(planned)}


def _messages(planned: PlannedRequest, past: Sequence[PastTurn]) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = []
    for turn in past:
        messages.append({"role": "user", "content": turn.asked})
        messages.append({"role": "assistant", "content": turn.answered})
    return [*messages, {"role": "user", "content": planned.text}]


# ---- responses ---------------------------------------------------------------------------------


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _ResponseUsage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _InputDetails | None = None

    def told(self) -> Usage:
        details = self.input_tokens_details
        cached_tokens = None if details is None else details.cached_tokens
        return Usage(self.input_tokens, self.output_tokens, cached_tokens)


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    id: str = ""
    usage: _ResponseUsage | None = None
    error: ErrorDetail | str | None = None
    incomplete_details: _Incomplete | None = None


class _ResponseEvent(msgspec.Struct):
    type: str
    delta: Any = None
    response: _Response | None = None
    status: int | None = None
    error: ErrorDetail | str | None = None
    code: str | int | None = None
    message: str | None = None


_SAID = "response.output_text.delta"
_UNSAID = frozenset(
    (
        "response.reasoning_text.delta",
        "response.reasoning_summary_text.delta",
        "response.function_call_arguments.delta",
    )
)
_ENDINGS = frozenset(("response.completed", "response.incomplete"))
_FINISHES = {"max_output_tokens": "length", "max_tokens": "length"}


class Responses:
    """``/v1/responses``, over SSE and WebSocket alike. Implements Api."""

    path = "/v1/responses"
    gives_choices = False
    _decoder = msgspec.json.Decoder(_ResponseEvent)

    def __init__(self, target: Target, options: Options) -> None:
        self._target = target
        self._options = options

    def body(self, planned: PlannedRequest, past: Sequence[PastTurn]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._target.model}
        if past and past[-1].response_id and self._options.keeps_responses:
            body |= {"previous_response_id": past[-1].response_id, "input": planned.text}
        else:
            body["input"] = _items(planned, past) if past else planned.text
        if self._target.transport == "sse":
            body["stream"] = True
        body["max_output_tokens"] = planned.output_len
        return {**body, **_forced(planned, self._options), **self._target.extra}

    def read(self, data: bytes) -> Told:
        if _is_done(data):
            return Told()  # some end so too; the response's own end has come before
        try:
            event = self._decoder.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return Told(failure=NOT_UNDERSTOOD)
        if event.type == _SAID:
            return _said(event.delta)
        if event.type in _UNSAID:
            return Told((Piece(0, ""),)) if event.delta else Told()
        if event.type == "error":
            return _refused(event, self._target)
        return Told() if event.response is None else _about(event.type, event.response, self._target)


def _said(delta: object) -> Told:
    if not isinstance(delta, str):
        return Told(failure=NOT_UNDERSTOOD)
    return Told((Piece(0, delta),)) if delta else Told()


def _items(planned: PlannedRequest, past: Sequence[PastTurn]) -> list[dict[str, Any]]:
    """Answers in full, as they were given: some servers know them by no less."""
    items: list[dict[str, Any]] = []
    for turn in past:
        items.append({"role": "user", "content": turn.asked})
        said = {"type": "output_text", "text": turn.answered, "annotations": []}
        items.append({"type": "message", "role": "assistant", "status": "completed", "content": [said]})
    return [*items, {"role": "user", "content": planned.text}]


def _about(kind: str, response: _Response, target: Target) -> Told:
    """An event with the response in it; most say nothing new."""
    if kind == "response.failed":
        failure = stream_failure(response.error or "unnamed", target.without_secrets)
        return Told(failure=failure, is_last=True)
    told = Told(response_id=response.id)
    if kind in _ENDINGS:
        incomplete = response.incomplete_details
        reason = "stop" if incomplete is None else incomplete.reason or "incomplete"
        told.finishes = ((0, _FINISHES.get(reason, reason)),)
        told.usage = None if response.usage is None else response.usage.told()
        told.is_last = True
    return told


def _refused(event: _ResponseEvent, target: Target) -> Told:
    """By the name it has over HTTP, if it has come instead of an answer; over a WebSocket that looks so."""
    error = event.error or ErrorDetail(event.code, message=event.message)
    if event.status is not None and isinstance(error, ErrorDetail):
        return Told(failure=f"http {event.status} {code_of(error)}".rstrip(), is_last=True)
    return Told(failure=stream_failure(error, target.without_secrets), is_last=True)
