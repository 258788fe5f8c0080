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
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Part:
    """What came for one sequence since the last batch, in order; its last has a ``finish_reason``."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(slots=True)
class Batch:
    """Everything that came since the last one, by the index of the sequence."""

    parts: dict[int, Part] = field(default_factory=dict)


class MailboxState(enum.Enum):
    """``ENDED``: the terminal batch or failure waits to be taken; ``TAKEN``: nothing comes any more."""

    FLOWING = "flowing"
    PAUSED = "paused"
    ENDED = "ended"
    TAKEN = "taken"


class Signal(enum.Enum):
    """What the mailbox asks of its owner after a call."""

    NONE = "none"
    PAUSE = "pause"
    RESUME = "resume"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class Taken:
    """What was there, and what the owner should do now."""

    batch: Batch
    signal: Signal


class Mailbox:
    """The decisions, without clock, engine or event."""

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

    def put(self, delta: TokenDelta) -> Signal:
        """Merge a delta. Ignored once the stream, or that sequence, has ended."""
        if not self.is_open:
            return Signal.NONE
        if delta.finish_reason is FinishReason.ERROR:
            self.fail(_request_failed(delta))
            return Signal.NONE
        if delta.index not in self._unfinished:
            return Signal.NONE
        self._merge(delta)
        if delta.finish_reason is not None:
            self._unfinished.discard(delta.index)
        if not self._unfinished:
            self.state = MailboxState.ENDED
        elif delta.ends_request:
            self.fail(_request_failed(delta))
        elif delta.finish_reason is not None:
            return Signal.NONE  # no more comes of this one, however long a part it was
        elif self._units >= self._hard_units:
            return Signal.OVERFLOW
        elif self.state is MailboxState.FLOWING and self._units >= self._high_units:
            self.state = MailboxState.PAUSED
            return Signal.PAUSE
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
        part = self._batch.parts.setdefault(delta.index, Part())
        part.token_ids.extend(delta.token_ids)
        self._units += len(delta.token_ids)
        if delta.logprobs is not None:
            part.logprobs.extend(delta.logprobs)
            self._units += sum(len(entry.top) for entry in delta.logprobs)
        if delta.prompt_logprobs is not None:
            part.prompt_logprobs = delta.prompt_logprobs
        part.finish_reason = delta.finish_reason
        part.stop_token_id = delta.stop_token_id
        part.num_cached_tokens = max(part.num_cached_tokens, delta.num_cached_tokens)


def _request_failed(delta: TokenDelta) -> StreamFailure:
    if delta.is_invalid and delta.error is not None:
        return StreamFailure(FailureKind.REQUEST_INVALID, delta.error)
    detail = delta.error or f"the engine ended it with {delta.finish_reason}"
    return StreamFailure(FailureKind.REQUEST_FAILED, REQUEST_FAILED_MESSAGE, detail)
