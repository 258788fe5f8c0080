"""What a turn builds on: the history before it, and that nobody else builds on it in the same moment.

Runs on the event loop. A history has only turns that were told whole, or as far as they go: one that failed
or was cancelled is nothing that another could follow. While a turn runs none can follow it, and a
conversation has one at a time; who may wait says so, everybody else gets a 409.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gateway.errors import ApiError, ErrorKind
from gateway.openai.responses.endpoint import conversation_of
from gateway.openai.responses.shape import DELIVERED
from gateway.openai.responses.wire import ResponseWire
from gateway.responses.records import ItemRecord, ResponseRecord
from gateway.responses.store import StateStore
from gateway.submission import session_name
from gateway.tenants import Tenant


@dataclass(frozen=True, slots=True)
class Past:
    """``items`` of all turns before, oldest first. ``session``: as the engine knows it, "" for a new one.

    ``is_kept``: the store has them too.
    """

    items: tuple[ItemRecord, ...] = ()
    session: str = ""
    is_kept: bool = True


@dataclass(frozen=True, slots=True)
class RecentTurn:
    """A turn, and what it was built on."""

    past: Past
    record: ResponseRecord

    @property
    def num_bytes(self) -> int:
        """Of all that it holds, though turns before it may hold some of that too."""
        items = (*self.past.items, *self.record.inputs, *self.record.outputs)
        return len(self.record.body) + sum(len(item.body) for item in items)


class RecentTurns:
    """Turns that a connection remembers although nothing keeps them: the last ones.

    Bounds: ``max_turns``, and ``max_bytes`` unless the last one alone is more.
    """

    def __init__(self, max_turns: int, max_bytes: int) -> None:
        self._max_turns = max_turns
        self._max_bytes = max_bytes
        self._turns: dict[str, RecentTurn] = {}
        self.num_bytes = 0

    def remember(self, past: Past, record: ResponseRecord) -> None:
        turn = RecentTurn(past, record)
        self._turns[record.id] = turn
        self.num_bytes += turn.num_bytes
        while len(self._turns) > self._max_turns or (
            self.num_bytes > self._max_bytes and len(self._turns) > 1
        ):
            self.forget_oldest()

    def forget(self, response_id: str) -> None:
        turn = self._turns.pop(response_id, None)
        if turn is not None:
            self.num_bytes -= turn.num_bytes

    def forget_oldest(self) -> None:
        """There must be one."""
        self.forget(next(iter(self._turns)))

    def find(self, response_id: str) -> RecentTurn | None:
        return self._turns.get(response_id)


class BusyConversations:
    """Conversations of which a turn runs, by tenant."""

    def __init__(self) -> None:
        self._busy: set[tuple[str, str]] = set()

    @contextmanager
    def held(self, tenant: Tenant, conversation_id: str | None) -> Iterator[None]:
        """Scope of the one turn. Raises ApiError (409) if another runs."""
        if conversation_id is None:
            yield
            return
        key = (tenant.owner, conversation_id)
        if key in self._busy:
            raise conflict("conversation", "A response of this conversation is still being made.")
        self._busy.add(key)
        try:
            yield
        finally:
            self._busy.discard(key)


def with_unkept(past: Past, record: ResponseRecord) -> ResponseRecord:
    """A turn as it can be stored: with the history before it, if that has nobody else who keeps it."""
    if past.is_kept:
        return record
    return replace(record, previous_id=None, inputs=(*past.items, *record.inputs))


async def past_of(wire: ResponseWire, tenant: Tenant, store: StateStore, recent: RecentTurns | None) -> Past:
    """Raises ApiError for a predecessor or a conversation that is not there."""
    conversation_id = conversation_of(wire)
    if conversation_id is not None:
        items = await store.conversation_history(tenant.owner, conversation_id)
        if items is None:
            raise ApiError(ErrorKind.NOT_FOUND, "There is no such conversation.", param="conversation")
        return Past(items, session_name(tenant, "conversation", conversation_id))
    if wire.previous_response_id is None:
        return Past()
    return await _past_of_response(wire.previous_response_id, tenant, store, recent)


async def _past_of_response(
    response_id: str, tenant: Tenant, store: StateStore, recent: RecentTurns | None
) -> Past:
    remembered = None if recent is None else recent.find(response_id)
    if remembered is not None:
        past, record = remembered.past, remembered.record
        _check_delivered(record)
        return Past((*past.items, *record.inputs, *record.outputs), record.session, is_kept=False)
    found = await store.response(tenant.owner, response_id)
    if found is None:
        raise previous_not_found("There is no response with this id to go on from.")
    _check_delivered(found)
    history = await store.history(tenant.owner, response_id)
    if history is None:
        raise previous_not_found("What this response builds on is not kept any more.")
    return Past(history, found.session)


def _check_delivered(record: ResponseRecord) -> None:
    if record.status not in DELIVERED:
        raise previous_not_found("That response was not delivered, so nothing can follow it.")


def previous_not_found(message: str) -> ApiError:
    return ApiError(ErrorKind.PREVIOUS_NOT_FOUND, message, param="previous_response_id")


def conflict(param: str, message: str) -> ApiError:
    return ApiError(ErrorKind.CONFLICT, message, param=param, retry_after_s=1)
