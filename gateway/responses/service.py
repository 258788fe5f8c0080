"""Responses from their creation to their deletion, for HTTP and WebSocket alike.

Runs on the event loop. Owns the runs: those under way, and for a while those that have ended, so that a
client whose stream broke at the last moment can still have the rest. Bounds: one run for each admission
permit; ended ones by age and by the bytes of their events together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.client import EngineDeadError
from gateway.errors import ApiError, ErrorKind, no_engine
from gateway.openai.responses import building
from gateway.openai.responses.endpoint import ResponseRequest, ResponsesEndpoint, conversation_of
from gateway.openai.responses.items import new_id
from gateway.openai.responses.shape import DELIVERED, ShownConversation, encode_response
from gateway.openai.responses.wire import ResponseWire
from gateway.responses.keeping import decoded, keeping, purge_of
from gateway.responses.maker import Keep, ResponseMaker, Turn
from gateway.responses.records import ItemRecord, ResponseRecord
from gateway.responses.run import ResponseRun, RunPolicy, events_gone
from gateway.responses.store import StateStore
from gateway.responses.turns import BusyConversations, Past, RecentTurns, conflict, past_of, with_unkept
from gateway.state import Gateway
from gateway.submission import service_for, session_name, session_of_key
from gateway.tenant_register import Visitor
from gateway.tenants import Tenant


@dataclass(frozen=True, slots=True)
class Origin:
    """How a response was asked for. ``recent``: what its connection remembers.

    ``may_wait``: the turn waits for the one it follows, where HTTP has a 409.
    """

    recent: RecentTurns | None = None
    may_wait: bool = False


HTTP = Origin()


class ResponseService:
    """Made by the gateway, closed with it before the store is."""

    def __init__(self, gateway: Gateway, store: StateStore) -> None:
        self._gateway = gateway
        self._store = store
        self._endpoint = ResponsesEndpoint(gateway.model, gateway.chat)
        self._busy = BusyConversations()
        self._runs: dict[tuple[str, str], ResponseRun] = {}
        self._ended: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._ended_bytes = 0
        self._launches: set[asyncio.Task[None]] = set()

    async def create(self, visitor: Visitor, body: bytes, origin: Origin = HTTP) -> ResponseRun:
        """Check a request and begin its response. Raises ApiError, and then nothing has begun."""
        self._gateway.check_open()
        async with AsyncExitStack() as scope:
            scope.enter_context(self._gateway.admission.permit(visitor.holder))
            scope.enter_context(visitor.entered())
            wire = await self._gateway.try_offload(visitor.holder, self._endpoint.decode, body)
            return await self._begin(visitor, wire, origin, scope)

    def running(self, visitor: Visitor, response_id: str) -> ResponseRun | None:
        """A response whose events can be had: it is being made, or was a moment ago."""
        return self._runs.get((visitor.tenant.owner, response_id))

    async def events_of(self, visitor: Visitor, response_id: str) -> ResponseRun:
        """A stored response whose events can be had.

        Raises ApiError: 404 if there is no such response, 400 if its events are gone.
        """
        run = self.running(visitor, response_id)
        if run is None or not run.response.store:
            await self._found(visitor, response_id)
            raise events_gone()
        return run

    async def retrieve(self, visitor: Visitor, response_id: str) -> bytes:
        """The Response object as it stands, as JSON. Raises ApiError (404)."""
        run = self.running(visitor, response_id)
        if run is not None and run.response.store:
            return encode_response(run.response)
        return (await self._found(visitor, response_id)).body

    async def cancel(self, visitor: Visitor, response_id: str) -> bytes:
        """End a response that is being made; one that has ended is as it was. Raises ApiError (404)."""
        run = self.running(visitor, response_id)
        if run is None:
            return await self.retrieve(visitor, response_id)
        await run.cancel()
        return encode_response(run.response)

    async def delete(self, visitor: Visitor, response_id: str) -> None:
        """Forget a response, and the KV of what it said. Raises ApiError (404)."""
        owner = visitor.tenant.owner
        run = self._runs.get((owner, response_id))
        if run is not None:
            await run.cancel()
            self._drop(owner, run)
        record = await self._found(visitor, response_id)
        history = await self._store.history(owner, response_id)
        await self._purge(visitor, record, history or ())  # first: what is deleted cannot be named again
        if await self._store.delete_response(owner, response_id) is None:
            raise _not_found()
        self._gateway.tide.forget(visitor.tenant, response_id)

    async def forget_conversation(self, visitor: Visitor, conversation_id: str) -> None:
        """Forget the KV of all that was said in a conversation, while it still has what is to be deleted.

        A turn of it that runs is ended, since it would leave more behind.
        """
        owner = visitor.tenant.owner
        for run in self._runs_of(owner, conversation_id):
            await run.cancel()
        record = await self._store.last_turn(owner, conversation_id)
        history = None if record is None else await self._store.history(owner, record.id)
        if record is not None and history is not None:
            await self._purge(visitor, record, history, from_token=0)

    async def input_items(self, visitor: Visitor, response_id: str) -> Sequence[ItemRecord]:
        """All that the model was given for a response, oldest first. Raises ApiError (404)."""
        history = await self._store.history(visitor.tenant.owner, response_id)
        record = await self._found(visitor, response_id)  # it may have ended meanwhile
        if history is None:
            return record.inputs
        outputs = {item.id for item in record.outputs}
        return [item for item in history if item.id not in outputs]

    async def close(self) -> None:
        """End every run at once."""
        await asyncio.gather(*self._launches, return_exceptions=True)
        await asyncio.gather(*(run.close() for run in tuple(self._runs.values())))
        for timer in self._ended.values():
            timer.cancel()

    # ---- beginning ----

    async def _begin(
        self, visitor: Visitor, wire: ResponseWire, origin: Origin, scope: AsyncExitStack
    ) -> ResponseRun:
        tenant = visitor.tenant
        await self._wait_for_previous(visitor, wire, origin)
        scope.enter_context(self._busy.held(tenant, conversation_of(wire)))  # before its history is read
        past = await past_of(wire, tenant, self._store, origin.recent)
        request = await self._gateway.try_offload(visitor.holder, self._checked, wire, past.items)
        num_tokens = request.generation.num_reserved_tokens
        scope.enter_context(self._gateway.admission.permit(visitor.holder, 0, num_tokens))
        scope.enter_context(visitor.answering(1, num_tokens))
        run = self._drafted(request, tenant)
        turn = Turn(visitor=visitor, session=_session(tenant, request, past, run.id))
        keep = self._keeper(past, origin.recent, is_stored=run.response.store)
        maker = ResponseMaker(self._gateway, request, turn, run, keep)
        await self._launch(self._kept_and_started(run, maker, turn, past, scope.pop_all()))
        return run

    async def _launch(self, work: Coroutine[Any, Any, None]) -> None:
        """Do all of it, even if whoever asked for it goes in the middle of that."""
        launch = asyncio.create_task(work, name="tidegate-launch")
        self._launches.add(launch)
        launch.add_done_callback(self._launches.discard)
        await asyncio.shield(launch)

    async def _kept_and_started(
        self, run: ResponseRun, maker: ResponseMaker, turn: Turn, past: Past, scope: AsyncExitStack
    ) -> None:
        """Both or neither."""
        async with scope:
            if run.response.store:
                with keeping():
                    await self._store.put_response(with_unkept(past, maker.record()))
            self._runs[turn.visitor.tenant.owner, run.id] = run
            run.start(maker.make(scope.pop_all()))

    async def _wait_for_previous(self, visitor: Visitor, wire: ResponseWire, origin: Origin) -> None:
        if wire.previous_response_id is None:
            return
        previous = self.running(visitor, wire.previous_response_id)
        if previous is None or previous.is_ended:
            return
        if not origin.may_wait:
            raise conflict("previous_response_id", "That response is still being made.")
        await previous.wait_ended()

    def _checked(self, wire: ResponseWire, history: Sequence[ItemRecord]) -> ResponseRequest:
        return self._endpoint.check(wire, decoded(history))

    def _drafted(self, request: ResponseRequest, tenant: Tenant) -> ResponseRun:
        """Its run, before anything has come of it."""
        settings, generation = self._gateway.settings, request.generation
        tier = service_for(tenant, generation).tier.value
        draft = building.draft(request, new_id("resp"), int(time.time()), generation.model, tier)
        detached_s: float | None = settings.detached_s if draft.store else 0.0
        if draft.background:
            detached_s = None
        policy = RunPolicy(detached_s, settings.max_event_log_bytes)
        on_end = partial(self._note_end, tenant.owner)
        return ResponseRun(draft, policy, on_end, is_streamed=bool(request.wire.stream))

    def _keeper(self, past: Past, recent: RecentTurns | None, *, is_stored: bool) -> Keep:
        """Keeps what has become of a turn: in the store, or with the connection that remembers it."""

        async def keep(record: ResponseRecord) -> None:
            if is_stored:
                with keeping():
                    await self._put(with_unkept(past, record))
            elif recent is not None:
                recent.remember(past, record)

        return keep

    async def _put(self, record: ResponseRecord) -> None:
        if record.conversation_id is not None and record.status in DELIVERED:
            await self._store.put_turn(record)
        else:
            await self._store.put_response(record)

    # ---- ended runs ----

    def _note_end(self, owner: str, run: ResponseRun) -> None:
        """Its events can be had for a while longer, as long as they are not too many together."""
        settings, loop = self._gateway.settings, asyncio.get_running_loop()
        self._ended[owner, run.id] = loop.call_later(settings.detached_s, self._drop, owner, run)
        self._ended_bytes += run.log.num_bytes
        while self._ended_bytes > settings.max_ended_log_bytes:
            oldest = next(iter(self._ended))
            self._drop(oldest[0], self._runs[oldest])

    def _drop(self, owner: str, run: ResponseRun) -> None:
        self._runs.pop((owner, run.id), None)
        timer = self._ended.pop((owner, run.id), None)
        if timer is not None:
            timer.cancel()
            self._ended_bytes -= run.log.num_bytes

    # ---- the rest ----

    def _runs_of(self, owner: str, conversation_id: str) -> list[ResponseRun]:
        """Turns of a conversation whose events can be had."""
        mine = (run for (of, _), run in self._runs.items() if of == owner)
        return [run for run in mine if run.response.conversation == ShownConversation(conversation_id)]

    async def _found(self, visitor: Visitor, response_id: str) -> ResponseRecord:
        record = await self._store.response(visitor.tenant.owner, response_id)
        if record is None:
            raise _not_found()
        return record

    async def _purge(
        self,
        visitor: Visitor,
        record: ResponseRecord,
        history: Sequence[ItemRecord],
        from_token: int | None = None,
    ) -> None:
        """Forget the KV of what a response said, or of all from a token on; who says the same computes again.

        Raises ApiError (503) if no engine can see to it.
        """
        engine = self._gateway.engine
        purge = await self._gateway.offload.run(
            purge_of, record, history, self._endpoint, owner=visitor.holder.name
        )
        if purge is None:
            return
        first = purge.from_token if from_token is None else from_token
        try:
            engine.forget_kv(purge.token_ids, first, visitor.tenant.cache_salt)
        except EngineDeadError:
            raise no_engine(engine.restart_in_s) from None


def _session(tenant: Tenant, request: ResponseRequest, past: Past, response_id: str) -> str:
    return (
        session_of_key(tenant, request.generation)
        or past.session
        or session_name(tenant, "response", response_id)
    )


def _not_found() -> ApiError:
    return ApiError(ErrorKind.NOT_FOUND, "There is no response with this id.", param="response_id")
