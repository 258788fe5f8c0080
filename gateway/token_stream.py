"""One request's way from the engine to its handler: a bounded, coalescing mailbox.

Runs on the event loop; the engine delivers, one handler takes. ``Mailbox`` is the pure part. Bound:
``high_units`` (a unit is a token or one alternative in its log probabilities); there the engine is
asked to pause the request, and to resume it once the handler has taken all that was there. What is
under way arrives still, up to ``hard_units``; past it, or after ``pause_timeout_s`` of pause, the
request is aborted. Exactly one terminal event comes out: a batch with a finish reason, or a failure.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.client import Engine, EngineDeadError
from engine.messages import AddRequest, FinishReason, TokenDelta, TokenLogprobs


class FailureKind(enum.Enum):
    """Why a stream ended without a finish reason."""

    ENGINE_DEAD = "engine_dead"
    REQUEST_FAILED = "request_failed"
    TOO_SLOW = "too_slow"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class StreamFailure:
    """``message`` is for the client, ``detail`` for the log only."""

    kind: FailureKind
    message: str
    detail: str = ""


class StreamFailedError(Exception):
    """Raised where the next batch would be when the stream has failed."""

    def __init__(self, failure: StreamFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


TOO_SLOW = StreamFailure(
    FailureKind.TOO_SLOW, "The client read too slowly; the answer was given up after waiting for it."
)
SHUTDOWN = StreamFailure(FailureKind.SHUTDOWN, "server shutting down")
ENGINE_DEAD_MESSAGE = "The engine stopped working; everything it was generating is lost."
REQUEST_FAILED_MESSAGE = "The engine could not finish this request."


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bounds of one mailbox."""

    high_units: int = 512
    hard_units: int = 8192
    pause_timeout_s: float = 60.0


@dataclass(slots=True)
class Batch:
    """Everything that came since the last one, in order. ``finish_reason`` is set on the last."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0


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
    batch: Batch
    signal: Signal


class Mailbox:
    """The decisions, without clock, engine or event."""

    def __init__(self, limits: StreamLimits) -> None:
        assert 0 < limits.high_units < limits.hard_units
        self._limits = limits
        self._batch = Batch()
        self.failure: StreamFailure | None = None
        self._units = 0
        self.state = MailboxState.FLOWING

    @property
    def is_open(self) -> bool:
        return self.state in (MailboxState.FLOWING, MailboxState.PAUSED)

    def put(self, delta: TokenDelta) -> Signal:
        """Merge a delta. Ignored once the stream has ended."""
        if not self.is_open:
            return Signal.NONE
        self._merge(delta)
        if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            self.fail(_request_failed(delta))
        elif delta.finish_reason is not None:
            self.state = MailboxState.ENDED
        elif self._units >= self._limits.hard_units:
            return Signal.OVERFLOW
        elif self.state is MailboxState.FLOWING and self._units >= self._limits.high_units:
            self.state = MailboxState.PAUSED
            return Signal.PAUSE
        return Signal.NONE

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
        if self.state is MailboxState.ENDED and not (self.failure and batch.token_ids):
            self.state = MailboxState.TAKEN
            if self.failure is not None:
                raise StreamFailedError(self.failure)
        return Taken(batch, Signal.NONE)

    def _merge(self, delta: TokenDelta) -> None:
        batch = self._batch
        batch.token_ids.extend(delta.token_ids)
        self._units += len(delta.token_ids)
        if delta.logprobs is not None:
            batch.logprobs.extend(delta.logprobs)
            self._units += sum(len(entry.top) for entry in delta.logprobs)
        if delta.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            batch.finish_reason = delta.finish_reason
            batch.stop_token_id = delta.stop_token_id
        batch.num_cached_tokens = max(batch.num_cached_tokens, delta.num_cached_tokens)


def _request_failed(delta: TokenDelta) -> StreamFailure:
    detail = delta.error or f"the engine ended it with {delta.finish_reason}"
    return StreamFailure(FailureKind.REQUEST_FAILED, REQUEST_FAILED_MESSAGE, detail)


class TokenStream:
    """The stream of one request, entered through ``OpenStreams.open``, which releases it on exit.

    Implements DeltaSink. ``on_tokens`` is told of every delivery (metrics). Release aborts unless the
    engine itself has ended the request, so cancelling the handler is all it takes to free capacity.
    """

    def __init__(
        self,
        engine: Engine,
        request: AddRequest,
        limits: StreamLimits,
        on_tokens: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.request_id = request.request_id
        self._engine = engine
        self._request = request
        self._limits = limits
        self._on_tokens = on_tokens
        self._mailbox = Mailbox(limits)
        self._news = asyncio.Event()
        self._in_engine = False
        self._pause_timer: asyncio.TimerHandle | None = None
        self._blocked_on: asyncio.Timeout | None = None

    def submit(self) -> None:
        """Start. If the engine is gone, that shows as the stream's failure."""
        self._in_engine = True
        try:
            self._engine.submit(self._request, self)
        except EngineDeadError as error:
            self.fail(error)

    def release(self) -> None:
        """Take nothing more from the engine. Idempotent."""
        self._stop_pause_timer()
        if self._in_engine:
            self._in_engine = False
            self._engine.abort(self.request_id)

    # ---- the engine's side (DeltaSink) ----

    def deliver(self, delta: TokenDelta) -> None:
        if delta.token_ids:
            self._on_tokens(len(delta.token_ids))
        signal = self._mailbox.put(delta)
        if delta.finish_reason is not None:
            self._in_engine = False
            self._stop_pause_timer()
        if signal is Signal.PAUSE:
            self._engine.pause(self.request_id)
            loop = asyncio.get_running_loop()
            self._pause_timer = loop.call_later(self._limits.pause_timeout_s, self.end, TOO_SLOW)
        elif signal is Signal.OVERFLOW:
            self.end(TOO_SLOW)
        self._news.set()

    def fail(self, error: EngineDeadError) -> None:
        self._in_engine = False
        self.end(StreamFailure(FailureKind.ENGINE_DEAD, ENGINE_DEAD_MESSAGE, str(error)))

    # ---- the gateway's side ----

    def end(self, failure: StreamFailure) -> None:
        """Give the request up; its handler learns of it even while it waits for a slow client."""
        self.release()
        if self._mailbox.fail(failure):
            self._news.set()
            if self._blocked_on is not None and not self._blocked_on.expired():
                self._blocked_on.reschedule(asyncio.get_running_loop().time())

    async def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """What came since the last call; None if nothing did within ``timeout_s``.

        Raises StreamFailedError when the stream ended without a finish reason.
        """
        if not self._news.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return None
        taken = self._mailbox.take()
        if self._mailbox.state is not MailboxState.ENDED:
            self._news.clear()
        if taken.signal is Signal.RESUME:
            self._stop_pause_timer()
            self._engine.resume(self.request_id)
        return taken.batch

    async def wait_unless_ended(self, write: asyncio.Task[None]) -> None:
        """Wait for a write to the client, without cancelling it in any case.

        Raises StreamFailedError when the stream is ended meanwhile, or when the client has taken
        nothing for as long as a pause may last.
        """
        try:
            async with asyncio.timeout(self._limits.pause_timeout_s) as self._blocked_on:
                await asyncio.shield(write)
        except TimeoutError:
            self.end(TOO_SLOW)
            raise StreamFailedError(self._mailbox.failure or TOO_SLOW) from None
        finally:
            self._blocked_on = None

    def _stop_pause_timer(self) -> None:
        if self._pause_timer is not None:
            self._pause_timer.cancel()
            self._pause_timer = None
