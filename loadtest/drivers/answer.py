"""One answer as it comes in: what its events tell becomes a timeline. Pure; times are passed in.

However it ends, it ends once; whatever comes after that changes nothing.
"""

from __future__ import annotations

from loadtest.drivers.apis import NOT_UNDERSTOOD, Api, Options, Piece
from loadtest.drivers.base import PastTurn
from loadtest.timeline import Outcome, Timeline, Usage


class Answer:
    """Fills in a timeline from its first piece to its outcome."""

    def __init__(self, timeline: Timeline, api: Api, options: Options) -> None:
        planned = timeline.planned
        self._timeline = timeline
        self._api = api
        self._needs_usage = options.tells_usage
        self._leave_after = planned.reading.leave_after
        self._tokens_told = 0  # of those before the next piece
        self._tokens_of_first = 0
        self._said: list[str] = []
        self._response_id = ""
        self._finishes: list[str | None] = [None] * planned.n
        self.is_over = False
        self.was_ended = False  # by the server: nothing of it is on its way any more
        timeline.piece_times = [[] for _ in range(planned.n)]
        if options.tells_usage_so_far and planned.n == 1:  # of several, servers count in different ways
            timeline.piece_tokens = [[]]

    @property
    def pause_s(self) -> float:
        """How long its reader rests after each piece."""
        return self._timeline.planned.reading.pause_s

    def take(self, event: bytes, at: float) -> int:
        """Read an event that came at ``at``; gives the number of pieces in it."""
        if self.is_over:
            return 0
        told = self._api.read(event)
        self.was_ended = told.is_last
        if told.failure:
            self.fail(told.failure, at)
            return 0
        if told.usage is not None:
            self._timeline.usage = told.usage
        for piece in told.pieces:
            self._note(piece, told.usage, at)
        for choice, reason in told.finishes:
            if self._is_known(choice, at):
                self._finishes[choice] = reason
        self._response_id = told.response_id or self._response_id
        if told.is_last and not self.is_over:
            self._end(at, "no finish reason")
        return len(told.pieces)

    def take_end(self, at: float) -> None:
        """No more comes. Some servers mark their last event; of others all choices must have finished."""
        if not self.is_over:
            self._end(at, "stream cut")

    def fail(self, reason: str, at: float) -> None:
        if not self.is_over:
            self._timeline.reason = reason
            self._close(Outcome.FAILED, at)

    def turn(self) -> PastTurn | None:
        """What a next turn builds on, if it can."""
        if self._timeline.outcome is not Outcome.COMPLETED:
            return None
        return PastTurn(self._timeline.planned.text, "".join(self._said), self._response_id)

    def _note(self, piece: Piece, usage: Usage | None, at: float) -> None:
        if not self._is_known(piece.choice, at):
            return
        self._timeline.piece_times[piece.choice].append(at)
        tokens = 1  # at least, where nobody tells
        if self._timeline.piece_tokens is not None:
            counted = self._tokens_told if usage is None else usage.completion_tokens
            tokens = counted - self._tokens_told
            self._tokens_told = counted
            self._timeline.piece_tokens[0].append(tokens)
        if piece.choice == 0:
            self._said.append(piece.said)
            self._tokens_of_first += tokens
            if self._tokens_of_first >= self._leave_after:
                self._close(Outcome.LEFT, at)

    def _is_known(self, choice: int, at: float) -> bool:
        if 0 <= choice < len(self._finishes):
            return not self.is_over
        self.fail(NOT_UNDERSTOOD, at)
        return False

    def _end(self, at: float, reason_if_unfinished: str) -> None:
        if None in self._finishes:
            self.fail(reason_if_unfinished, at)
        elif self._timeline.first_at is None:
            self.fail("no text", at)  # it has no first token either, and would meet any limit for it
        elif self._needs_usage and self._timeline.usage is None:
            self.fail("no usage", at)
        else:
            self._close(Outcome.COMPLETED, at)

    def _close(self, outcome: Outcome, at: float) -> None:
        self._timeline.finish_reasons = [reason for reason in self._finishes if reason is not None]
        self._timeline.outcome = outcome
        self._timeline.ended_at = at
        self.is_over = True
