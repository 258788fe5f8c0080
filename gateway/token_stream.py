"""One answer's way from the engine to its handler.

Runs on the event loop; the engine delivers into a mailbox, one handler takes out of it. The mailbox
bounds what waits (``gateway.mailbox``); this is its clock: a request that stays paused, or a write that
stays blocked, for ``pause_timeout_s`` is given up. Who waits need not be woken for each delivery: it may
leave a function that takes what has come, while the loop is behind the engine once a round
(``gateway.rounds``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Protocol

import msgspec

from engine.client import Engine, EngineBusyError, EngineDeadError
from engine.messages import AddRequest, TokenDelta
from gateway.mailbox import (
    ENGINE_BUSY,
    ENGINE_DEAD_MESSAGE,
    TOO_SLOW,
    Batch,
    FailureKind,
    Mailbox,
    MailboxState,
    Signal,
    StreamFailedError,
    StreamFailure,
    StreamLimits,
    Taken,
)
from gateway.news import News
from gateway.rounds import Rounds


class InPlace(Protocol):
    """Takes what comes in the place of a task that waits for it."""

    def is_clear(self) -> bool:
        """Whether it can take anything now."""
        ...

    def take(self, batch: Batch) -> bool:
        """False if the task is to go on."""
        ...


class _PromptSink:
    """One of the engine's requests in a stream: its sequences have the indices from ``offset`` on.

    Implements DeltaSink.
    """

    __slots__ = ("_stream", "in_engine", "offset", "request", "unfinished")

    def __init__(self, stream: TokenStream, request: AddRequest, offset: int) -> None:
        self.request = request
        self.offset = offset
        self.unfinished = set(range(request.sampling.n))
        self.in_engine = False
        self._stream = stream

    def deliver(self, delta: TokenDelta) -> None:
        if delta.finish_reason is not None:
            self.unfinished.discard(delta.index)
        if delta.ends_request:
            self.in_engine = False
        elif not self.offset:
            self._stream.take(delta)
            return
        is_early = delta.ends_request and bool(self.unfinished)  # which nobody but an error explains
        self._stream.take(
            msgspec.structs.replace(delta, index=self.offset + delta.index, ends_request=is_early)
        )

    def fail(self, error: EngineDeadError) -> None:
        self.in_engine = False
        self._stream.lose(error)


class TokenStream:
    """The stream of one answer, entered through ``OpenStreams.open``, which releases it on exit.

    It takes the engine one request for each prompt; ``request_id`` is that of the first. ``on_tokens`` is
    told of every delivery, with the index of its sequence (metrics). Release aborts what the engine itself
    has not ended, so cancelling the handler is all it takes to free capacity.
    """

    __slots__ = (
        "_blocked_on", "_engine", "_in_place", "_is_due", "_limits", "_loop", "_mailbox", "_news",
        "_on_tokens", "_parts", "_pause_timer", "_rounds", "request_id",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[AddRequest],
        limits: StreamLimits,
        on_tokens: Callable[[int, int], None] = lambda index, count: None,
        rounds: Rounds | None = None,
    ) -> None:
        self.request_id = requests[0].request_id
        self._engine = engine
        self._limits = limits
        self._on_tokens = on_tokens
        offsets = accumulate((request.sampling.n for request in requests), initial=0)
        self._parts = [
            _PromptSink(self, request, offset) for request, offset in zip(requests, offsets, strict=False)
        ]
        self._mailbox = Mailbox(limits, sum(request.sampling.n for request in requests))
        self._news = News()
        self._loop = asyncio.get_running_loop()
        self._rounds = Rounds() if rounds is None else rounds
        self._in_place: InPlace | None = None
        self._is_due = False
        self._pause_timer: asyncio.TimerHandle | None = None
        self._blocked_on: asyncio.Timeout | None = None

    @property
    def failure(self) -> StreamFailure | None:
        """Why it ended, if it did without a finish reason; what came before can still be taken."""
        return self._mailbox.failure

    def submit(self) -> None:
        """Start. If the engine cannot take it, that shows as the stream's failure."""
        for part in self._parts:
            part.in_engine = True
            try:
                self._engine.submit(part.request, part)
            except EngineDeadError as error:
                part.fail(error)
                return
            except EngineBusyError:
                part.in_engine = False
                self.end(ENGINE_BUSY)
                return

    def release(self) -> None:
        """Take nothing more from the engine. Idempotent."""
        self._stop_pause_timer()
        for part in self._parts:
            self._abort(part)

    def release_sequence(self, index: int) -> None:
        """Take nothing more of one sequence, which is not the last unfinished one."""
        self._mailbox.close(index)
        part = max((part for part in self._parts if part.offset <= index), key=lambda part: part.offset)
        part.unfinished.discard(index - part.offset)
        if not part.unfinished:
            self._abort(part)
        elif part.in_engine:
            self._engine.abort(part.request.request_id, index - part.offset)

    def _abort(self, part: _PromptSink) -> None:
        if part.in_engine:
            part.in_engine = False
            self._engine.abort(part.request.request_id)

    # ---- the engine's side ----

    def take(self, delta: TokenDelta) -> None:
        """What came for one of the sequences."""
        if delta.token_ids:
            self._on_tokens(delta.index, len(delta.token_ids))
        in_place = self._in_place
        if in_place is not None and not self._engine.is_behind and self._is_clear(in_place):
            batch = None if self._news.is_set else self._mailbox.try_pass(delta)
            if batch is not None:
                self._news.offer(in_place.take, batch)
                return
        if self._is_due and not self._mailbox.has_room(delta):
            self._hand_over()  # it was kept waiting here, not by the client
        signal = self._mailbox.put(delta)
        if signal is not Signal.NONE:
            self._heed(signal)
        if self._in_place is None or signal is Signal.ENDED:
            self._news.set()
        elif not self._engine.is_behind:
            self._hand_over()
        elif not self._is_due:
            self._is_due = True
            self._rounds.add(self._on_round)

    def _heed(self, signal: Signal) -> None:
        if signal is Signal.ENDED:  # the engine may still be at sequences that nobody wants any more
            self.release()
        elif signal is Signal.PAUSE:
            for part in self._parts:
                if part.in_engine:
                    self._engine.pause(part.request.request_id)
            self._pause_timer = self._loop.call_later(self._limits.pause_timeout_s, self.end, TOO_SLOW)
        elif signal is Signal.OVERFLOW:
            self.end(TOO_SLOW)

    def _on_round(self) -> None:
        self._is_due = False
        self._hand_over()

    def _hand_over(self) -> None:
        """What has come is taken in place, or the task that waits is woken."""
        if self._news.is_set or self._mailbox.is_empty:
            return  # the task is about to take it, or it has been taken
        if self._in_place is None or not self._is_clear(self._in_place):
            self._news.set()
        else:
            self._news.offer(self._in_place.take, self._begun(self._mailbox.take()))

    def _is_clear(self, in_place: InPlace) -> bool:
        try:
            return in_place.is_clear()
        except Exception as error:
            self._news.fail(error)
            return False

    def lose(self, error: EngineDeadError) -> None:
        """The engine died, and what it was generating with it."""
        retry_after_s = self._engine.restart_in_s
        self.end(StreamFailure(FailureKind.ENGINE_DEAD, ENGINE_DEAD_MESSAGE, str(error), retry_after_s))

    # ---- the gateway's side ----

    def end(self, failure: StreamFailure) -> None:
        """Give the request up; its handler learns of it even while it waits for a slow client."""
        self.release()
        if self._mailbox.fail(failure):
            self._news.set()
            if self._blocked_on is not None and not self._blocked_on.expired():
                self._blocked_on.reschedule(self._loop.time())

    async def next_batch(
        self, timeout_s: float | None = None, in_place: InPlace | None = None
    ) -> Batch | None:
        """What came since the last call; None if nothing did within ``timeout_s``.

        While it waits, what comes goes to ``in_place``, as long as that takes it; the end of the stream does
        not. What that raises is raised here. Raises StreamFailedError when the stream ended without a finish
        reason.
        """
        self._in_place = in_place
        try:
            if not await self._news.come_within(timeout_s):
                return None
        finally:
            self._in_place = None
        taken = self._mailbox.take()
        if self._mailbox.state is not MailboxState.ENDED:
            self._news.clear()
        return self._begun(taken)

    def _begun(self, taken: Taken) -> Batch:
        """What was taken; the engine goes on with what was paused for it."""
        if taken.signal is Signal.RESUME:
            self._stop_pause_timer()
            for part in self._parts:
                if part.in_engine:
                    self._engine.resume(part.request.request_id)
        return taken.batch

    async def wait_unless_ended(self, write: asyncio.Task[None]) -> None:
        """Wait for a write to the client, without cancelling it in any case.

        Raises StreamFailedError when the stream is ended meanwhile, or when the client has taken
        nothing for as long as a pause may last.
        """
        async with self.blocked():
            await asyncio.shield(write)

    @asynccontextmanager
    async def blocked(self) -> AsyncIterator[None]:
        """Scope of a wait for the client; not to be entered once the stream has failed.

        Raises StreamFailedError when the stream is ended meanwhile, or the wait is as long as a pause may be.
        """
        try:
            async with asyncio.timeout(self._limits.pause_timeout_s) as self._blocked_on:
                yield
        except TimeoutError:
            self.end(TOO_SLOW)
            raise StreamFailedError(self._mailbox.failure or TOO_SLOW) from None
        finally:
            self._blocked_on = None

    def _stop_pause_timer(self) -> None:
        if self._pause_timer is not None:
            self._pause_timer.cancel()
            self._pause_timer = None
