"""What both endpoints share on the way out: usage, identity of an answer, the format's interface.

Pure. A format turns pieces of text into payloads: for a stream, ``opening``, ``piece`` ... ``closing`` of
each choice, then ``usage``; or ``whole`` for a plain answer. A choice's finish reason is null until its
``closing`` and comes exactly once; usage is null on every chunk but the last unless ``count`` was called,
and absent when nobody asked for it.
"""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from engine.messages import PromptLogprobs
from gateway.answer import CallPiece, Piece

_LOWEST_LOGPROB = -9999.0
_ENCODER = msgspec.json.Encoder()


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    """``completion_tokens_details`` is there when thoughts are told from what is said."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Identity:
    """Fields that every chunk of an answer repeats. ``service_tier`` is that which was used."""

    id: str
    created: int
    model: str
    fingerprint: str
    service_tier: str | UnsetType = UNSET

    @property
    def fields(self) -> dict[str, Any]:
        """By their names in an answer."""
        return {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "service_tier": self.service_tier,
        }


@dataclass(frozen=True, slots=True)
class WholeChoice:
    """All of one choice."""

    piece: Piece
    finish_reason: str
    prompt_logprobs: PromptLogprobs | None = None


class AnswerFormat(Protocol):
    """Payloads (JSON) of one answer."""

    def count(self, usage: Usage) -> None:
        """Usage for the chunks from now on, which asked for it."""
        ...

    def opening(self, index: int, prompt_logprobs: PromptLogprobs | None) -> bytes | None:
        """First chunk of a choice, if it has one before the first generated text."""
        ...

    def piece(self, index: int, piece: Piece) -> list[bytes]:
        """Chunks with what came of a choice."""
        ...

    def closing(self, index: int, finish_reason: str) -> bytes: ...

    def usage(self, usage: Usage) -> bytes: ...

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes: ...


def around_text(encode: Callable[[str], bytes]) -> tuple[bytes, bytes]:
    """What ``encode`` puts before a text and behind it, whatever the text."""
    blank = f"text {uuid.uuid4().hex}"  # which nothing else in it can be
    before, after = encode(blank).split(_ENCODER.encode(blank))
    return before, after


class TextChunk:
    """An encoded chunk with a place for its text, which is all that changes from one to the next."""

    __slots__ = ("_after", "_before")

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        """``encode`` makes the chunk of a text; what it makes of one goes into all."""
        self._before, self._after = around_text(encode)

    def of(self, text: str) -> bytes:
        return self._before + _ENCODER.encode(text) + self._after


def make_usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int | None = None
) -> Usage:
    return Usage(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        PromptTokensDetails(cached_tokens),
        UNSET if reasoning_tokens is None else CompletionTokensDetails(reasoning_tokens),
    )


def join(pieces: Iterable[Piece]) -> Piece:
    """One piece with everything in it."""
    parts = list(pieces)
    return Piece(
        "".join(part.text for part in parts),
        tuple(entry for part in parts for entry in part.entries),
        "".join(part.thought for part in parts),
        _join_calls(list(_calls_of(parts))),
    )


def _calls_of(parts: Iterable[Piece]) -> Iterator[CallPiece]:
    """All stretches of calls, by where they are in the text of all parts."""
    size = 0
    for part in parts:
        for call in part.calls:
            yield replace(call, text_before=size + call.text_before)
        size += len(part.text)


def _join_calls(stretches: Sequence[CallPiece]) -> tuple[CallPiece, ...]:
    """Whole calls, in order; the stretches of each follow each other."""
    calls: list[CallPiece] = []
    for _, group in itertools.groupby(stretches, key=lambda call: call.index):
        own = list(group)
        arguments = "".join(call.arguments for call in own)
        calls.append(replace(own[0], arguments=arguments))
    return tuple(calls)


def finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999 for what cannot happen."""
    return logprob if math.isfinite(logprob) else _LOWEST_LOGPROB
