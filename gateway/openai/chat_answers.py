"""Answers of /v1/chat/completions: messages, deltas, log probabilities.

Pure. Each delta has one kind of thing in it: a stretch of the thought, of the text, or of one call.
Thoughts go by both names that clients look for, ``reasoning_content`` and ``reasoning``. A choice that
calls tools ends with the reason that its request says, unless it was cut short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from engine.messages import FinishReason, PromptLogprobs
from gateway.answer import CallPiece, Piece
from gateway.detokenizer import TokenTable, printable
from gateway.openai.answers import Identity, TextChunk, Usage, WholeChoice, finite
from gateway.openai.notes import one_of
from gateway.openai.prompts import ShownLogprobs, shown_logprobs
from gateway.openai.validated import GenerationRequest

ChatFinishReason = Annotated[str, one_of(("stop", "length", "tool_calls", "function_call"))]


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class FunctionDelta(msgspec.Struct, kw_only=True):
    """Name and arguments of a call; in a delta more of the arguments, and the name with the first of them."""

    name: str | UnsetType = UNSET
    arguments: str


class CallDelta(msgspec.Struct, kw_only=True):
    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class Delta(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int = 0
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None


class MessageCall(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionDelta


class AssistantMessage(msgspec.Struct, kw_only=True):
    """``content`` is null if nothing was said, where there can be a thought or a call instead."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[MessageCall] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int = 0
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason


class ChatAnswer(msgspec.Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | UnsetType = UNSET
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[ShownLogprobs | None] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """A part of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | UnsetType = UNSET
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


_ENCODER = msgspec.json.Encoder()


class ChatFormat:
    """Answers of /v1/chat/completions. Keeps which choices have called something."""

    __slots__ = (
        "_calling", "_calls", "_chunk_usage", "_identity", "_is_plain", "_num_prompt_top", "_num_top",
        "_prompt", "_table", "_text_chunks",
    )  # fmt: skip

    def __init__(self, request: GenerationRequest, identity: Identity, table: TokenTable) -> None:
        self._identity = identity.fields
        self._table = table
        self._num_top = request.logprobs
        self._prompt = request.prompts[0]
        self._num_prompt_top = request.prompt_logprobs
        self._chunk_usage: Usage | UnsetType | None = None if request.include_usage else UNSET
        self._is_plain = request.reading is None
        self._calls = None if request.reading is None else request.reading.calls
        self._calling: set[int] = set()
        self._text_chunks: dict[int, TextChunk] = {}

    def count(self, usage: Usage) -> None:
        self._chunk_usage = usage

    def opening(self, index: int, prompt_logprobs: PromptLogprobs | None) -> bytes | None:
        delta = Delta(role="assistant", content="" if self._is_plain else None)
        return self._chunk([ChunkChoice(index=index, delta=delta)], self._chunk_usage)

    def piece(self, index: int, piece: Piece) -> list[bytes]:
        counts = isinstance(self._chunk_usage, Usage)  # anew in every chunk
        if self._num_top is None and piece.text and piece.is_plain and not counts:
            return [self._text_chunk(index).of(piece.text)]
        return [self._chunk([choice], self._chunk_usage) for choice in self._stretches(index, piece)]

    def closing(self, index: int, finish_reason: str) -> bytes:
        reason = self._reason(finish_reason, has_calls=index in self._calling)
        choice = ChunkChoice(index=index, delta=Delta(), finish_reason=reason)
        return self._chunk([choice], self._chunk_usage)

    def usage(self, usage: Usage) -> bytes:
        return self._chunk([], usage)

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        shown = [
            ChatChoice(
                index=index,
                message=self._message(choice.piece),
                logprobs=self._logprobs(choice.piece),
                finish_reason=self._reason(choice.finish_reason, has_calls=bool(choice.piece.calls)),
            )
            for index, choice in enumerate(choices)
        ]
        prompt_logprobs = self._prompt_logprobs(choices[0])
        return _ENCODER.encode(
            ChatAnswer(**self._identity, choices=shown, usage=usage, prompt_logprobs=prompt_logprobs)
        )

    def _prompt_logprobs(self, choice: WholeChoice) -> list[ShownLogprobs | None] | UnsetType:
        if self._num_prompt_top is None or choice.prompt_logprobs is None:
            return UNSET
        token_ids = self._prompt.token_ids
        return shown_logprobs(choice.prompt_logprobs, token_ids, self._num_prompt_top, self._table)

    def _stretches(self, index: int, piece: Piece) -> Iterator[ChunkChoice]:
        if piece.thought:
            delta = Delta(reasoning_content=piece.thought, reasoning=piece.thought)
            yield ChunkChoice(index=index, delta=delta)
        if piece.text or piece.entries:
            delta = Delta(content=piece.text)
            yield ChunkChoice(index=index, delta=delta, logprobs=self._logprobs(piece))
        for call in piece.calls:
            self._calling.add(index)
            if call.name:
                yield ChunkChoice(index=index, delta=self._first_of(call))
            if call.arguments:
                yield ChunkChoice(index=index, delta=self._more_of(call))

    def _text_chunk(self, index: int) -> TextChunk:
        if index not in self._text_chunks:
            self._text_chunks[index] = TextChunk(
                lambda text: self._chunk(
                    [ChunkChoice(index=index, delta=Delta(content=text))], self._chunk_usage
                )
            )
        return self._text_chunks[index]

    def _first_of(self, call: CallPiece) -> Delta:
        """Which call it is; its arguments come after that."""
        assert self._calls is not None
        function = FunctionDelta(name=call.name, arguments="")
        if self._calls.is_legacy:
            return Delta(function_call=function)
        delta = CallDelta(index=call.index, id=call.call_id, type="function", function=function)
        return Delta(tool_calls=[delta])

    def _more_of(self, call: CallPiece) -> Delta:
        assert self._calls is not None
        function = FunctionDelta(arguments=call.arguments)
        if self._calls.is_legacy:
            return Delta(function_call=function)
        return Delta(tool_calls=[CallDelta(index=call.index, function=function)])

    def _message(self, piece: Piece) -> AssistantMessage:
        is_silent = not piece.text and not self._is_plain
        message = AssistantMessage(content=None if is_silent else piece.text)
        if piece.thought:
            message.reasoning_content = message.reasoning = piece.thought
        if piece.calls:
            assert self._calls is not None
            calls = [
                MessageCall(id=call.call_id, function=FunctionDelta(name=call.name, arguments=call.arguments))
                for call in piece.calls
            ]
            if self._calls.is_legacy:
                message.function_call = calls[0].function
            else:
                message.tool_calls = calls
        return message

    def _reason(self, finish_reason: str, *, has_calls: bool) -> str:
        if not has_calls or finish_reason != FinishReason.STOP.value:
            return finish_reason
        assert self._calls is not None
        return self._calls.finish_reason

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | UnsetType | None) -> bytes:
        return _ENCODER.encode(ChatChunk(**self._identity, choices=choices, usage=usage))

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        if self._num_top is None:
            return None
        return ChatLogprobs(
            [
                TokenLogprob(
                    printable(entry.raw),
                    finite(entry.logprobs.logprob),
                    list(entry.raw),
                    [self._alternative(*top) for top in entry.logprobs.top[: self._num_top]],
                )
                for entry in piece.entries
            ]
        )

    def _alternative(self, token_id: int, logprob: float) -> TopLogprob:
        label, raw = self._table.label(token_id)
        return TopLogprob(label, finite(logprob), list(raw))
