"""Makes one response: pulls its generation, tells its events, and has it kept.

Runs on the event loop, as the work of a ``ResponseRun``. A response is kept before its last event is told, so
that an id that a client has seen end can always be gone on from.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec

from engine.messages import FinishReason
from gateway.errors import ApiError, ErrorKind
from gateway.generation import Generation, Progress
from gateway.mailbox import FailureKind, StreamFailedError, StreamFailure
from gateway.metrics import RequestRecord
from gateway.openai.responses import building
from gateway.openai.responses.endpoint import ResponseRequest
from gateway.openai.responses.events import ResponseEvents
from gateway.openai.responses.shape import ResponseObject
from gateway.responses.keeping import as_record
from gateway.responses.records import ResponseRecord
from gateway.responses.run import Interruption, ResponseRun
from gateway.state import Gateway
from gateway.submission import generating, told_failure
from gateway.tenant_register import Visitor

log = logging.getLogger("tidegate.gateway")

_ERROR_CODES = {
    ErrorKind.BAD_REQUEST: "invalid_prompt",
    ErrorKind.ENGINE_BUSY: "rate_limit_exceeded",
}
Keep = Callable[[ResponseRecord], Awaitable[None]]
"""Keeps a turn as it has ended. Raises ApiError if that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Whose turn it is, and of which session: as the engine knows it."""

    visitor: Visitor
    session: str


class ResponseMaker:
    """What becomes of ``run`` by ``request``. Implements Outlet."""

    def __init__(
        self, gateway: Gateway, request: ResponseRequest, turn: Turn, run: ResponseRun, keep: Keep
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._turn = turn
        self._run = run
        self._keep = keep
        self._events = ResponseEvents(gateway.model.codec.table, request.num_top_logprobs)
        self._output_token_ids: list[int] = []

    def record(self) -> ResponseRecord:
        """The turn by itself, before anything has come of it."""
        return self._as_record(self._run.response)

    async def make(self, scope: AsyncExitStack) -> None:
        """All of it, to the last event. ``scope`` holds what it takes of the house, and is left then."""
        try:
            async with scope:
                with self._gateway.metrics.request() as record:
                    await self._answer(record)
        except Exception:
            log.exception("response %s failed", self._run.id)
            await self._give_up()

    async def _give_up(self) -> None:
        """For a fault of ours: say so as well as that still goes."""
        failed = self._failed(ApiError(ErrorKind.INTERNAL, "The server failed to go on."), "server_error")
        with contextlib.suppress(ApiError):
            await self._keep(self._as_record(failed))
        if not self._run.log.is_ended:
            self._end(failed)

    async def _answer(self, record: RequestRecord) -> None:
        run = self._run
        run.tell([self._events.about("response.created", run.response)])
        run.response = msgspec.structs.replace(run.response, status="in_progress")
        run.tell([self._events.about("response.in_progress", run.response)])
        ended = await self._generated(record)
        try:
            await self._keep(self._as_record(ended))
        except ApiError as error:
            record.outcome = error.kind.value
            ended = self._failed(error, "server_error")
        self._end(ended)

    def _end(self, ended: ResponseObject) -> None:
        """Say the last word. What is still open of a response that does not count is not closed."""
        self._run.response = ended
        kind = "incomplete" if ended.status == "cancelled" else ended.status
        self._run.tell([self._events.about(f"response.{kind}", ended)])

    async def _generated(self, record: RequestRecord) -> ResponseObject:
        """The response as it ends."""
        request, turn, run = self._request.generation, self._turn, self._run
        async with generating(
            self._gateway, request, run.id, turn.visitor, turn.session, record
        ) as generation:
            with run.interrupting(generation.stream):
                try:
                    return await self._pumped(generation, record)
                except StreamFailedError as error:
                    return self._broken(generation, error.failure, record)

    async def _pumped(self, generation: Generation, record: RequestRecord) -> ResponseObject:
        run, events = self._run, self._events
        while True:
            await run.make_room(generation.stream)
            progress = await generation.next(outlet=self)
            assert progress is not None
            self.show(progress)
            if progress.usage is not None:
                break
        reason = progress.pieces[-1].finish_reason
        assert reason is not None
        record.outcome = reason.value
        usage = building.response_usage(progress.usage)
        if self._request.generates:
            run.tell(events.nothing_said())
        if reason is FinishReason.LENGTH and self._request.generates:
            run.tell(events.close_item("incomplete"))
            return building.incomplete(run.response, events.output, usage, "max_output_tokens")
        run.tell(events.close_item("completed"))
        return building.completed(run.response, events.output, usage, int(time.time()))

    # ---- Outlet: what comes while the generation is waited for ----

    def is_clear(self) -> bool:
        return self._run.interruption is None and not self._run.log.is_full

    def show(self, progress: Progress) -> None:
        for part in progress.pieces:
            self._output_token_ids += part.token_ids
            if events := self._events.piece(part.piece):
                self._run.tell(events)

    def _broken(
        self, generation: Generation, failure: StreamFailure, record: RequestRecord
    ) -> ResponseObject:
        run = self._run
        if failure.kind is not FailureKind.INTERRUPTED:
            error = told_failure(failure, self._request.generation, f"response {run.id}")
            record.outcome = error.kind.value
            return self._failed(error, _ERROR_CODES.get(error.kind, "server_error"))
        usage = building.response_usage(generation.usage())
        if run.interruption is Interruption.STEERED:
            record.outcome = FinishReason.STOP.value
            run.tell(self._events.close_item("incomplete"))
            return building.incomplete(run.response, self._events.output, usage, "steered")
        return building.cancelled(run.response, usage)

    def _failed(self, error: ApiError, code: str) -> ResponseObject:
        self._run.failure = error
        return building.failed(self._run.response, code, error.message)

    def _as_record(self, response: ResponseObject) -> ResponseRecord:
        owner, session = self._turn.visitor.tenant.owner, self._turn.session
        return as_record(response, self._request, owner, session, self._output_token_ids)
