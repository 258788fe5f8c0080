"""One request from the engine's tokens to shown text, its finish reason and its usage.

Runs on the event loop. Sits between the stream (tokens, bounded) and the handler (HTTP): it stops
the engine at the first stop string and counts what was generated up to the token that completed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import FinishReason
from gateway.answer import AnswerText, Piece
from gateway.detokenizer import TokenTable
from gateway.mailbox import Batch
from gateway.openai.answers import Usage, make_usage
from gateway.openai.validated import GenerationRequest
from gateway.token_stream import TokenStream


@dataclass(frozen=True, slots=True)
class Finish:
    reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Progress:
    """A piece of text, possibly empty; ``finish`` is set on the last."""

    piece: Piece
    finish: Finish | None = None


class Generation:
    """Pulls from a stream that its owner has entered."""

    def __init__(self, request: GenerationRequest, stream: TokenStream, table: TokenTable) -> None:
        self._request = request
        self._stream = stream
        self._text = AnswerText(table, request.stops, request.sampling.min_tokens)
        self._num_tokens = 0
        self._num_cached = 0

    async def next(self, timeout_s: float | None = None) -> Progress | None:
        """What came since the last call; None if nothing did in time. Raises StreamFailedError."""
        batch = await self._stream.next_batch(timeout_s)
        if batch is None:
            return None
        self._num_cached = max(self._num_cached, batch.num_cached_tokens)
        self._push(batch)
        if self._text.stopped:
            self._stream.release()
            return Progress(self._text.finish(), self._finish(FinishReason.STOP))
        if batch.finish_reason is not None:
            return Progress(self._text.finish(), self._finish(batch.finish_reason))
        return Progress(self._text.take())

    def _push(self, batch: Batch) -> None:
        logprobs = batch.logprobs
        num_text = len(batch.token_ids) - (batch.stop_token_id is not None)
        for i, token_id in enumerate(batch.token_ids):
            self._num_tokens += 1
            if i < num_text:  # the token that ended the sequence is counted, but is no text
                self._text.push(token_id, logprobs[i] if logprobs else None)
            if self._text.stopped:
                return

    def _finish(self, reason: FinishReason) -> Finish:
        prompt_tokens = len(self._request.prompt_token_ids)
        return Finish(reason, make_usage(prompt_tokens, self._num_tokens, self._num_cached))
