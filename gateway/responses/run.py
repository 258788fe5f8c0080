"""One response while it is made: pulls its generation, numbers its events, keeps them for whoever follows.

Runs on the event loop, in a task of its own that a connection may come and go beside. ``RunPolicy`` says how
long it goes on with nobody there. A follower that lags is not waited for until the log is full; then the
generation is pulled no further, and the stream's mailbox does the rest. The response is kept before its last
event is told, so that an id that a client has seen end can always be gone on from.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec

from engine.messages import FinishReason
from gateway.errors import ApiError, ErrorKind, from_failure
from gateway.generation import Generation
from gateway.mailbox import FailureKind, StreamFailedError, StreamFailure
from gateway.metrics import RequestRecord
from gateway.openai.responses import building
from gateway.openai.responses.endpoint import ResponseRequest
from gateway.openai.responses.events import Event, ResponseEvents
from gateway.openai.responses.shape import ResponseObject
from gateway.responses.event_log import EventLog
from gateway.responses.keeping import as_record
from gateway.responses.records import ResponseRecord
from gateway.state import Gateway
from gateway.submission import Booking, engine_requests, service_for
from gateway.tenant_register import Visitor
from gateway.token_stream import TokenStream

log = logging.getLogger("tidegate.gateway")

_FIRST_FOLLOWER_S = 2.0
_INTERRUPTED = StreamFailure(FailureKind.INTERRUPTED, "The response was cancelled.")
_ERROR_CODES = {
    ErrorKind.BAD_REQUEST: "invalid_prompt",
    ErrorKind.ENGINE_BUSY: "rate_limit_exceeded",
}


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """``detached_s``: how long it goes on with no follower; None is to its end, whatever happens.

    ``max_log_bytes`` bounds the events that are kept of it.
    """

    detached_s: float | None
    max_log_bytes: int


class Interruption(enum.Enum):
    """Why a response is ended from outside. What was told of a steered one counts."""

    CANCELLED = "cancelled"
    STEERED = "steered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a response belongs to. ``session``: as the engine knows it."""

    response_id: str
    session: str
    visitor: Visitor


Keep = Callable[[ResponseObject], Awaitable[None]]
"""Keeps a response as it is now. Raises ApiError if that fails."""


@dataclass(slots=True)
class _Follower:
    """Somebody who has taken all events up to ``position``."""

    position: int
    news: asyncio.Event


class ResponseRun:
    """A response in the making. ``response`` is how it stands; ``failure`` why it failed, if it did.

    ``output_token_ids`` are what was generated, exactly.
    """

    def __init__(
        self,
        gateway: Gateway,
        request: ResponseRequest,
        turn: Turn,
        policy: RunPolicy,
        keep: Keep,
        on_end: Callable[[ResponseRun], None],
    ) -> None:
        self.id = turn.response_id
        self.request = request
        self.turn = turn
        self.failure: ApiError | None = None
        tier = service_for(turn.visitor.tenant, request.generation).tier
        self.response = building.draft(
            request, self.id, int(time.time()), request.generation.model, tier.value
        )
        self.log = EventLog(policy.max_log_bytes)
        self.output_token_ids: list[int] = []
        self._gateway = gateway
        self._policy = policy
        self._keep = keep
        self._on_end = on_end
        self._events = ResponseEvents(gateway.model.codec.table, request.num_top_logprobs)
        self._followers: list[_Follower] = []
        self._was_followed = False
        self._room = asyncio.Event()
        self._ended = asyncio.Event()
        self._detach_timer: asyncio.TimerHandle | None = None
        self._interruption: Interruption | None = None
        self._stream: TokenStream | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()

    def record(self, response: ResponseObject | None = None) -> ResponseRecord:
        """The turn by itself, as it stands or as ``response``."""
        owner = self.turn.visitor.tenant.owner
        shown = self.response if response is None else response
        return as_record(shown, self.request, owner, self.turn.session, self.output_token_ids)

    def start(self, scope: AsyncExitStack) -> None:
        """Begin. ``scope`` holds what the run takes of the house, and is left when it ends."""
        self._task = asyncio.create_task(self._run(scope), name=f"tidegate-{self.id}")
        self._attend()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    async def follow(
        self, starting_after: int = -1, keepalive_s: float | None = None
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Its events behind that number, in order, to the last; nothing at all after each ``keepalive_s``.

        Who asks for more has taken what it got before. Raises EventsGoneError if there would be a gap.
        """
        self.log.check(starting_after)
        follower = _Follower(starting_after, asyncio.Event())
        self._followers.append(follower)
        self._was_followed = True
        self._attend()
        try:
            while not (self.log.is_ended and follower.position == self.log.next - 1):
                follower.news.clear()
                batch = self.log.after(follower.position)
                if not batch and not await _set_within(follower.news, keepalive_s):
                    yield ()
                if batch:
                    yield batch
                    follower.position = batch[-1].sequence_number
                    self._room.set()
        finally:
            self._followers.remove(follower)
            self._room.set()  # it may have been the one that lagged
            self._attend()

    def interrupt(self, why: Interruption) -> None:
        """End it where it is. Its last event comes a moment later; one that has ended stays as it is."""
        if self._interruption is None and not self.log.is_ended:
            self._interruption = why
            self._room.set()
            if self._stream is not None:
                self._stream.end(_INTERRUPTED)

    async def cancel(self) -> None:
        """End it, and wait until that is done."""
        self.interrupt(Interruption.CANCELLED)
        await self._ended.wait()

    async def close(self) -> None:
        """Drop it, whatever state it is in: the server leaves."""
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ---- with and without followers ----

    def _attend(self) -> None:
        """Whether anybody is there has changed."""
        self._stop_timer()
        if self._followers or self.is_ended or self._policy.detached_s is None:
            return
        patience_s = self._policy.detached_s
        if not self._was_followed:  # whoever asked for it is about to
            patience_s = max(patience_s, _FIRST_FOLLOWER_S)
        loop = asyncio.get_running_loop()
        self._detach_timer = loop.call_later(patience_s, self.interrupt, Interruption.CANCELLED)

    def _stop_timer(self) -> None:
        if self._detach_timer is not None:
            self._detach_timer.cancel()
            self._detach_timer = None

    def _tell(self, events: Sequence[Event]) -> None:
        self.log.add(events)
        for follower in self._followers:
            follower.news.set()

    async def _make_room(self) -> None:
        """Let go what every follower has; with none there, what nobody may wait for. Waits for the rest.

        Who asked for it, and has not begun to follow it, is waited for as one who lags is.
        """
        while self.log.is_full and self._interruption is None:
            if self._followers:
                self.log.forget_until(min(follower.position for follower in self._followers))
            elif self._policy.detached_s is None:
                self.log.forget_until(self.log.next)
            elif self._was_followed:
                self.interrupt(Interruption.CANCELLED)
            if self.log.is_full and self._interruption is None:
                self._room.clear()
                await self._room.wait()

    # ---- the work ----

    async def _run(self, scope: AsyncExitStack) -> None:
        try:
            async with scope:
                with self._gateway.metrics.request() as record:
                    await self._answer(record)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("response %s failed", self.id)
            await self._give_up()
        finally:
            self._ended.set()
            self._stop_timer()
            self._on_end(self)

    async def _give_up(self) -> None:
        """For a fault of ours: say so as well as that still goes."""
        self.failure = ApiError(ErrorKind.INTERNAL, "The server failed to go on.")
        failed = building.failed(self.response, "server_error", self.failure.message)
        with contextlib.suppress(ApiError):
            await self._keep(failed)
        if not self.log.is_ended:
            self._end(failed)

    async def _answer(self, record: RequestRecord) -> None:
        self._tell([self._events.about("response.created", self.response)])
        self.response = msgspec.structs.replace(self.response, status="in_progress")
        self._tell([self._events.about("response.in_progress", self.response)])
        ended = await self._generated(record)
        try:
            await self._keep(ended)
        except ApiError as error:
            self.failure, record.outcome = error, error.kind.value
            ended = building.failed(self.response, "server_error", error.message)
        self._end(ended)

    def _end(self, ended: ResponseObject) -> None:
        """Say the last word. What is still open of a response that does not count is not closed."""
        self.response = ended
        kind = "incomplete" if ended.status == "cancelled" else ended.status
        self._tell([self._events.about(f"response.{kind}", ended)])

    async def _generated(self, record: RequestRecord) -> ResponseObject:
        """The response as it ends."""
        generation_request, turn = self.request.generation, self.turn
        tenant = turn.visitor.tenant
        kv_quota = self._gateway.kv_quota(tenant)
        requests = engine_requests(generation_request, self.id, tenant, turn.session, kv_quota)
        booking = Booking(generation_request, turn.visitor, record)
        limits = self._gateway.settings.stream_limits
        stream = TokenStream(self._gateway.engine, requests, limits, booking.on_tokens)
        try:
            async with self._gateway.streams.open(stream):
                self._stream = stream
                if self._interruption is not None:
                    stream.end(_INTERRUPTED)
                generation = Generation(generation_request, stream, self._gateway.model.codec.table)
                try:
                    return await self._pumped(generation, record)
                except StreamFailedError as error:
                    return self._broken(generation, error.failure, record)
        finally:
            self._stream = None
            booking.close()

    async def _pumped(self, generation: Generation, record: RequestRecord) -> ResponseObject:
        while True:
            await self._make_room()
            progress = await generation.next()
            assert progress is not None
            for part in progress.pieces:
                self.output_token_ids += part.token_ids
                self._tell(self._events.piece(part.piece))
            if progress.usage is not None:
                break
        reason = progress.pieces[-1].finish_reason
        assert reason is not None
        record.outcome = reason.value
        usage = building.response_usage(progress.usage)
        if self.request.generates:
            self._tell(self._events.nothing_said())
        if reason is FinishReason.LENGTH and self.request.generates:
            self._tell(self._events.close_item("incomplete"))
            return building.incomplete(self.response, self._events.output, usage, "max_output_tokens")
        self._tell(self._events.close_item("completed"))
        return building.completed(self.response, self._events.output, usage, int(time.time()))

    def _broken(
        self, generation: Generation, failure: StreamFailure, record: RequestRecord
    ) -> ResponseObject:
        if failure.kind is not FailureKind.INTERRUPTED:
            self.failure = self._told(failure)
            record.outcome = self.failure.kind.value
            code = _ERROR_CODES.get(self.failure.kind, "server_error")
            return building.failed(self.response, code, self.failure.message)
        usage = building.response_usage(generation.usage())
        if self._interruption is Interruption.STEERED:
            record.outcome = FinishReason.STOP.value
            self._tell(self._events.close_item("incomplete"))
            return building.incomplete(self.response, self._events.output, usage, "steered")
        return building.cancelled(self.response, usage)

    def _told(self, failure: StreamFailure) -> ApiError:
        """The failure as the client gets it; the rest of it is for the log."""
        is_theirs = failure.kind is FailureKind.REQUEST_INVALID
        log.log(
            logging.INFO if is_theirs else logging.ERROR,
            "response %s ended without an answer: %s %s",
            self.id,
            failure.message,
            failure.detail,
        )
        return from_failure(failure, self.request.generation.grammar_param if is_theirs else None)


async def _set_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Whether it was set in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
