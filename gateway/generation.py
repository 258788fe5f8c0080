"""One request from the engine's tokens to shown text, finish reasons and usage, for each of its choices.

Runs on the event loop. Sits between the stream (tokens, bounded) and the handler (HTTP): it stops the
engine's work for a choice at its first stop string, and counts what was generated up to the token that
completed it. What is thought and what is called is told apart here too, if the request asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from engine.messages import FinishReason, PromptLogprobs
from gateway.answer import AnswerText, Piece
from gateway.detokenizer import TokenTable
from gateway.mailbox import Batch, Part, StreamFailedError
from gateway.openai.answers import Usage, join, make_usage
from gateway.openai.validated import GenerationRequest, Prompt
from gateway.reading import AnswerReader
from gateway.token_stream import TokenStream


class ChoicePiece(msgspec.Struct, frozen=True):
    """A stretch of one choice, possibly empty; ``finish_reason`` is set on its last.

    ``token_ids`` were generated since the one before, those behind the end of its text included.
    """

    index: int
    piece: Piece
    finish_reason: FinishReason | None = None
    token_ids: Sequence[int] = ()


class Progress(msgspec.Struct, frozen=True):
    """What came of the choices; ``usage`` is set once all of them are finished."""

    pieces: tuple[ChoicePiece, ...]
    usage: Usage | None = None


class _Choice:
    """The text of one sequence, and what it took to generate it."""

    __slots__ = (
        "_keeps_stop", "_read", "_reader", "_text", "finish_reason", "logprob_sum", "num_cached_tokens",
        "num_thought_tokens", "num_tokens", "stopped",
    )  # fmt: skip

    def __init__(self, request: GenerationRequest, prompt: Prompt, table: TokenTable) -> None:
        reading = request.reading
        self._text = AnswerText(
            table if reading is None else reading.table,
            request.stops,
            prompt.sampling.min_tokens,
            keeps_stop=request.keeps_stop,
            names_special=request.names_special,
            tells_all=prompt.echo is not None,
        )
        self._reader = None if reading is None else AnswerReader(reading)
        self._read: list[Piece] = []  # by the reader, and not taken yet
        self._keeps_stop = request.keeps_stop
        self.num_tokens = 0
        self.num_thought_tokens = 0
        self.num_cached_tokens = 0
        self.logprob_sum = 0.0
        self.finish_reason: FinishReason | None = None
        self.stopped = False  # it ended by what its text says

    def push(self, part: Part) -> None:
        text, reader = self._text, self._reader
        self.num_cached_tokens = max(self.num_cached_tokens, part.num_cached_tokens)
        num_text = len(part.token_ids)
        if part.stop_token_id is not None and not self._keeps_stop:
            num_text -= 1
        for i, token_id in enumerate(part.token_ids):
            logprobs = part.logprobs[i] if part.logprobs else None
            self.num_tokens += 1
            self.logprob_sum += 0.0 if logprobs is None else logprobs.logprob
            if i < num_text:  # the token that ended the sequence is counted, but is no text
                text.push(token_id, logprobs)
                if reader is not None:
                    self._read_token(reader)
            else:
                text.end(token_id, logprobs)
            self.stopped = text.stopped or (reader is not None and reader.is_done)
            if self.stopped:
                break
        self.finish_reason = FinishReason.STOP if self.stopped else part.finish_reason

    def take(self) -> Piece:
        """What can be shown now; all that is left once the choice is over."""
        if self._reader is None:
            return self._text.take() if self.finish_reason is None else self._text.finish()
        if self.finish_reason is not None:
            self._read += [self._reader.read(self._text.finish()), self._reader.finish()]
        piece = join(self._read)
        self._read.clear()
        return piece

    def _read_token(self, reader: AnswerReader) -> None:
        """One by one, to count those of the thought."""
        was_thinking = reader.is_thinking
        if not self._text.stopped:
            self._read.append(reader.read(self._text.take()))
        self.num_thought_tokens += was_thinking or reader.is_thinking


class Outlet(Protocol):
    """Where what comes of a generation can go at once, without waking who waits for it."""

    def is_clear(self) -> bool:
        """Whether ``show`` has not to wait. Until then, what comes stays where it is, and gathers."""
        ...

    def show(self, progress: Progress) -> None: ...


class _InPlace:
    """Implements InPlace, for a generation and its outlet."""

    __slots__ = ("_generation", "_outlet", "is_clear")

    def __init__(self, generation: Generation, outlet: Outlet) -> None:
        self._generation = generation
        self._outlet = outlet
        self.is_clear = outlet.is_clear

    def take(self, batch: Batch) -> bool:
        return self._generation.show(batch, self._outlet)


class Generation:
    """Pulls from ``stream``, which its owner has entered."""

    __slots__ = ("_choices", "_last", "_num_unfinished", "_prompt_logprobs", "_request", "stream")

    def __init__(self, request: GenerationRequest, stream: TokenStream, table: TokenTable) -> None:
        self._request = request
        self.stream = stream
        self._prompt_logprobs: list[PromptLogprobs | None] = [None] * len(request.prompts)
        self._choices = [
            _Choice(request, prompt, table) for prompt in request.prompts for _ in range(prompt.sampling.n)
        ]
        self._num_unfinished = len(self._choices)
        self._last: Progress | None = None  # found where it could not be told

    @property
    def num_choices(self) -> int:
        """All that are generated."""
        return len(self._choices)

    async def next(self, timeout_s: float | None = None, outlet: Outlet | None = None) -> Progress | None:
        """What came since the last call; None if nothing did in time. Raises StreamFailedError.

        While it waits, what comes is shown to the ``outlet`` as long as that is clear, all but the last.
        """
        in_place = None if outlet is None else _InPlace(self, outlet)
        try:
            batch = await self.stream.next_batch(timeout_s, in_place)
        except StreamFailedError:
            if self._last is None:  # else the answer was complete before
                raise
        if self._last is not None:
            return self._last
        return None if batch is None else self._progress(batch)

    def show(self, batch: Batch, outlet: Outlet) -> bool:
        """What came is told at once; False if it is the last, which ``next`` tells."""
        progress = self._progress(batch)
        if progress.usage is not None:
            self._last = progress
            return False
        outlet.show(progress)
        return True

    def _progress(self, batch: Batch) -> Progress:
        pieces = tuple([self._advance(index, part) for index, part in sorted(batch.parts.items())])
        if not self._num_unfinished:
            self.stream.release()
            return Progress(pieces, self.usage())
        for piece in pieces:
            if piece.finish_reason is not None and self._choices[piece.index].stopped:
                self.stream.release_sequence(piece.index)
        return Progress(pieces)

    def prompt_logprobs(self, index: int) -> PromptLogprobs | None:
        """Of the prompt of that choice, once its first piece is there, if they were asked for."""
        return self._prompt_logprobs[index // self._request.sampling.n]

    def shown(self) -> list[int]:
        """Indices of the choices to show, prompt by prompt.

        Of more than are asked for, those whose tokens are on average the likeliest, best first.
        """
        wanted, generated = self._request.num_choices, self._request.sampling.n
        found: list[int] = []
        for first in range(0, len(self._choices), generated):
            indices = range(first, first + generated)
            found += indices if wanted == generated else sorted(indices, key=self._badness)[:wanted]
        return found

    def _badness(self, index: int) -> float:
        choice = self._choices[index]
        return -choice.logprob_sum / max(choice.num_tokens, 1)

    def _advance(self, index: int, part: Part) -> ChoicePiece:
        choice = self._choices[index]
        if part.prompt_logprobs is not None:
            self._prompt_logprobs[index // self._request.sampling.n] = part.prompt_logprobs
        choice.push(part)
        self._num_unfinished -= choice.finish_reason is not None
        return ChoicePiece(index, choice.take(), choice.finish_reason, part.token_ids)

    def usage(self) -> Usage:
        """Of all choices, so far."""
        num_tokens = sum(choice.num_tokens for choice in self._choices)
        firsts = self._choices[:: self._request.sampling.n]  # what a prompt found, all its choices tell
        num_cached = sum(choice.num_cached_tokens for choice in firsts)
        num_thought = None
        if self._request.reading is not None and self._request.reading.thoughts is not None:
            num_thought = sum(choice.num_thought_tokens for choice in self._choices)
        return make_usage(self._request.num_prompt_tokens, num_tokens, num_cached, num_thought)
