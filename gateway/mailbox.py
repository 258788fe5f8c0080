"""What waits between the engine and one client: a bounded, coalescing mailbox.

One for a request, be it ever so many sequences. Pure; time and the engine are its owner's (``TokenStream``).
Bound: ``high_units`` a sequence (a unit is a token or one alternative in its log probabilities); there the
owner is told to pause the request, and to resume it once all that was there has been taken. What is under way
arrives still, up to ``hard_units``. Log probabilities of a prompt are not counted: they come once, and no
more than validation allowed. Exactly one terminal event comes out: the batch with the last finish reason, or
a failure.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from engine.messages import FinishReason, PromptLogprobs, TokenDelta, TokenLogprobs


class FailureKind(enum.Enum):
    """Why a stream ended without a finish reason. ``REQUEST_INVALID`` is the client's fault.

    ``INTERRUPTED``: whoever owns the stream ended it, and tells its own reason.
    """

    ENGINE_DEAD = "engine_dead"
    ENGINE_BUSY = "engine_busy"
    REQUEST_FAILED = "request_failed"
    REQUEST_INVALID = "request_invalid"
    TOO_SLOW = "too_slow"
    SHUTDOWN = "shutdown"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class StreamFailure:
    """``message`` is for the client, with when to come back if that helps; ``detail`` for the log only."""

    kind: FailureKind
    message: str
    detail: str = ""
    retry_after_s: float | None = None


class StreamFailedError(Exception):
    """Raised where the next batch would be when the stream has failed."""

    def __init__(self, failure: StreamFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


TOO_SLOW = StreamFailure(
    FailureKind.TOO_SLOW, "The client read too slowly; the answer was given up after waiting for it."
)
SHUTDOWN = StreamFailure(FailureKind.SHUTDOWN, "server shutting down", retry_after_s=10)
ENGINE_BUSY = StreamFailure(
    FailureKind.ENGINE_BUSY, "The engine is far behind; try again later.", retry_after_s=10
)
ENGINE_DEAD_MESSAGE = "The engine stopped working; everything it was generating is lost."
REQUEST_FAILED_MESSAGE = "The engine could not finish this request."


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bounds of one mailbox, for each of its sequences."""

    high_units: int = 512
    hard_units: int = 8192
    pause_timeout_s: float = 60.0


class Part(msgspec.Struct):
    """What came for one sequence since the last batch, in order; its last has a ``finish_reason``."""

    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: PromptLogprobs | None = None


class Batch(msgspec.Struct):
    """Everything that came since the last one, by the index of the sequence."""

    parts: dict[int, Part] = {}


class MailboxState(enum.Enum):
    """``ENDED``: the terminal batch or failure waits to be taken; ``TAKEN``: nothing comes any more."""

    FLOWING = "flowing"
    PAUSED = "paused"
    ENDED = "ended"
    TAKEN = "taken"


class Signal(enum.Enum):
    """What the mailbox asks of its owner after a call. ``ENDED``: nothing more of the engine is wanted."""

    NONE = "none"
    PAUSE = "pause"
    RESUME = "resume"
    OVERFLOW = "overflow"
    ENDED = "ended"


class Taken(msgspec.Struct, frozen=True):
    """What was there, and what the owner should do now."""

    batch: Batch
    signal: Signal


class Mailbox:
    """The decisions, without clock, engine or event."""

    __slots__ = ("_batch", "_hard_units", "_high_units", "_unfinished", "_units", "failure", "state")

    def __init__(self, limits: StreamLimits, num_seqs: int = 1) -> None:
        assert 0 < limits.high_units < limits.hard_units
        self._high_units = limits.high_units * num_seqs
        self._hard_units = limits.hard_units * num_seqs
        self._unfinished = set(range(num_seqs))
        self._batch = Batch()
        self.failure: StreamFailure | None = None
        self._units = 0
        self.state = MailboxState.FLOWING

    @property
    def is_open(self) -> bool:
        return self.state in (MailboxState.FLOWING, MailboxState.PAUSED)

    @property
    def is_empty(self) -> bool:
        """There is nothing to take, and neither is there an end."""
        return self.is_open and not self._batch.parts

    def try_pass(self, delta: TokenDelta) -> Batch | None:
        """As if it were put and taken, where nothing else is there and it ends nothing; else None, and it was
        not.
        """
        is_more = delta.finish_reason is None and not delta.ends_request and delta.index in self._unfinished
        if not is_more or self.state is not MailboxState.FLOWING or self._batch.parts or delta.logprobs:
            return None
        part = Part([*delta.token_ids], [], None, delta.stop_token_id, delta.num_cached_tokens)
        part.prompt_logprobs = delta.prompt_logprobs
        return Batch({delta.index: part})

    def has_room(self, delta: TokenDelta) -> bool:
        """Whether it can be put without a signal to pause."""
        return self._units + _units_of(delta) < self._high_units

    def put(self, delta: TokenDelta) -> Signal:
        """Merge a delta. Ignored once the stream, or that sequence, has ended."""
        if not self.is_open:
            return Signal.ENDED
        if delta.finish_reason is FinishReason.ERROR:
            self.fail(_request_failed(delta))
            return Signal.ENDED
        if delta.index not in self._unfinished:
            return Signal.NONE
        self._merge(delta)
        if delta.finish_reason is not None or delta.ends_request:
            return self._end_sequence(delta)
        if self._units < self._high_units:
            return Signal.NONE
        if self._units >= self._hard_units:
            return Signal.OVERFLOW
        if self.state is MailboxState.FLOWING:
            self.state = MailboxState.PAUSED
            return Signal.PAUSE
        return Signal.NONE

    def _end_sequence(self, delta: TokenDelta) -> Signal:
        """No more comes of this one, however long a part it was."""
        if delta.finish_reason is not None:
            self._unfinished.discard(delta.index)
        if not self._unfinished:
            self.state = MailboxState.ENDED
            return Signal.ENDED
        if delta.ends_request:
            self.fail(_request_failed(delta))
            return Signal.ENDED
        return Signal.NONE

    def close(self, index: int) -> None:
        """Nothing more is wanted of one sequence, which is not the last unfinished one."""
        self._unfinished.discard(index)
        assert self._unfinished or not self.is_open

    def fail(self, failure: StreamFailure) -> bool:
        """End without a finish reason, after what is already there. False if it has ended before."""
        if not self.is_open:
            return False
        self.state = MailboxState.ENDED
        self.failure = failure
        return True

    def take(self) -> Taken:
        """All that is there; raises StreamFailedError, once, when only a failure is left."""
        assert self.state is not MailboxState.TAKEN, "a stream has one terminal batch"
        batch, self._batch, self._units = self._batch, Batch(), 0
        if self.state is MailboxState.PAUSED:
            self.state = MailboxState.FLOWING
            return Taken(batch, Signal.RESUME)
        if self.state is MailboxState.ENDED and not (self.failure and batch.parts):
            self.state = MailboxState.TAKEN
            if self.failure is not None:
                raise StreamFailedError(self.failure)
        return Taken(batch, Signal.NONE)

    def _merge(self, delta: TokenDelta) -> None:
        part = self._batch.parts.get(delta.index)
        if part is None:
            part = self._batch.parts[delta.index] = Part()
        part.token_ids.extend(delta.token_ids)
        self._units += _units_of(delta)
        if delta.logprobs is not None:
            part.logprobs.extend(delta.logprobs)
        if delta.prompt_logprobs is not None:
            part.prompt_logprobs = delta.prompt_logprobs
        part.finish_reason = delta.finish_reason
        part.stop_token_id = delta.stop_token_id
        if delta.num_cached_tokens > part.num_cached_tokens:
            part.num_cached_tokens = delta.num_cached_tokens


def _units_of(delta: TokenDelta) -> int:
    if delta.logprobs is None:
        return len(delta.token_ids)
    return len(delta.token_ids) + sum(len(entry.top) for entry in delta.logprobs)


def _request_failed(delta: TokenDelta) -> StreamFailure:
    if delta.is_invalid and delta.error is not None:
        return StreamFailure(FailureKind.REQUEST_INVALID, delta.error)
    detail = delta.error or f"the engine ended it with {delta.finish_reason}"
    return StreamFailure(FailureKind.REQUEST_FAILED, REQUEST_FAILED_MESSAGE, detail)
