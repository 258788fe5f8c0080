"""One request's way from the engine to its handler.

Runs on the event loop; the engine delivers into a mailbox, one handler takes out of it. The mailbox
bounds what waits (``gateway.mailbox``); this is its clock: a request that stays paused, or a write that
stays blocked, for ``pause_timeout_s`` is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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
)


class TokenStream:
    """The stream of one request, entered through ``OpenStreams.open``, which releases it on exit.

    Implements DeltaSink. ``on_tokens`` is told of every delivery, with the index of its sequence (metrics).
    Release aborts unless the engine itself has ended the request, so cancelling the handler is all it takes
    to free capacity.
    """

    def __init__(
        self,
        engine: Engine,
        request: AddRequest,
        limits: StreamLimits,
        on_tokens: Callable[[int, int], None] = lambda index, count: None,
    ) -> None:
        self.request_id = request.request_id
        self._engine = engine
        self._request = request
        self._limits = limits
        self._on_tokens = on_tokens
        self._mailbox = Mailbox(limits, request.sampling.n)
        self._news = asyncio.Event()
        self._in_engine = False
        self._pause_timer: asyncio.TimerHandle | None = None
        self._blocked_on: asyncio.Timeout | None = None

    def submit(self) -> None:
        """Start. If the engine cannot take it, that shows as the stream's failure."""
        self._in_engine = True
        try:
            self._engine.submit(self._request, self)
        except EngineDeadError as error:
            self.fail(error)
        except EngineBusyError:
            self._in_engine = False
            self.end(ENGINE_BUSY)

    def release(self) -> None:
        """Take nothing more from the engine. Idempotent."""
        self._stop_pause_timer()
        if self._in_engine:
            self._in_engine = False
            self._engine.abort(self.request_id)

    def release_sequence(self, index: int) -> None:
        """Take nothing more of one sequence, which is not the last unfinished one."""
        self._mailbox.close(index)
        if self._in_engine:
            self._engine.abort(self.request_id, index)

    # ---- the engine's side (DeltaSink) ----

    def deliver(self, delta: TokenDelta) -> None:
        if delta.token_ids:
            self._on_tokens(delta.index, len(delta.token_ids))
        signal = self._mailbox.put(delta)
        if delta.ends_request:
            self._in_engine = False
            self._stop_pause_timer()
        elif not self._mailbox.is_open:  # the engine waits for sequences that nobody wants any more
            self.release()
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
