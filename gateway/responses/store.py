"""Responses and conversations that outlive their request and, with ``--state``, the server.

Runs on: the event loop, which it never blocks; the file belongs to the thread ``tidegate-state``. Calls are
done in the order in which they came. What was put is durable when the call returns. Bounds: ``max_bytes``
and ``ttl_s`` of what is stored (``eviction.py`` says what goes), 1,024 calls that wait. Another tenant's ids
are unknown. ``tenant`` is always ``Tenant.owner``.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TypeVar

from gateway.errors import ApiError, ErrorKind, shutting_down
from gateway.responses.ledger import Ledger
from gateway.responses.records import (
    ConversationRecord,
    ItemPage,
    ItemRecord,
    Order,
    ResponseRecord,
    StateSettings,
)
from gateway.responses.state_thread import StateThread, ThreadBusyError

log = logging.getLogger("tidegate.gateway")

_IDLE_S = 60.0  # after which an idle store looks for what has become too old
T = TypeVar("T")


class StateStore:
    """Made by ``open``. Calls raise ApiError: 500 if the file fails, 503 if too many wait or it is closed."""

    def __init__(self, ledger: Ledger, max_pending: int = 1024) -> None:
        self._ledger = ledger
        self._thread = StateThread("tidegate-state", max_pending, self._tidy, _IDLE_S)

    @classmethod
    def open(cls, settings: StateSettings, clock: Callable[[], float] = time.time) -> StateStore:
        """Blocks for the file; raises StateFileError, which says what is wrong with it."""
        ledger = Ledger(settings, clock)
        if ledger.num_lost:
            log.warning("%d responses were running when the server ended; they have failed", ledger.num_lost)
        return cls(ledger)

    def __enter__(self) -> StateStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Blocks until everything that was asked for is done. May be called again."""
        self._thread.close()
        self._ledger.close()

    # ---- responses -----------------------------------------------------------------------------

    async def put_response(self, record: ResponseRecord) -> None:
        """Store a response, or what has become of one that is stored. Deleted meanwhile, it stays deleted.

        While its status is a running one it is not evicted, and after the server's death found failed.
        Raises HistoryGoneError if what it builds on is there no more, StateFullError for a history that is
        too large to be kept.
        """
        await self._run(self._ledger.put_response, record)

    async def put_turn(self, record: ResponseRecord) -> None:
        """``put_response``, and with it, or not at all, its items become the newest of its conversation.

        Also raises ConversationFullError, and DuplicateItemError for an id that the conversation has already.
        """
        await self._run(self._ledger.put_turn, record)

    async def response(self, tenant: str, response_id: str) -> ResponseRecord | None:
        return await self._run(self._ledger.response, tenant, response_id)

    async def history(self, tenant: str, response_id: str) -> tuple[ItemRecord, ...] | None:
        """Inputs and outputs of the whole chain up to a response, oldest first; None if it is unknown.

        Turns that were deleted since are in it. A chain that began in a conversation has what that had before
        the turn; if the conversation has gone, so has the history: None.
        """
        return await self._run(self._ledger.history, tenant, response_id)

    async def delete_response(self, tenant: str, response_id: str) -> ResponseRecord | None:
        """What was deleted. Nobody can get it or go on from it; turns that build on it keep their history."""
        return await self._run(self._ledger.delete_response, tenant, response_id)

    # ---- conversations -------------------------------------------------------------------------

    async def create_conversation(
        self, record: ConversationRecord, items: tuple[ItemRecord, ...] = ()
    ) -> None:
        """At ``max_conversations`` the tenant's least recently used one goes.

        Raises StateFullError, ConversationFullError, DuplicateItemError.
        """
        await self._run(self._ledger.create_conversation, record, items)

    async def conversation(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        return await self._run(self._ledger.conversation, tenant, conversation_id)

    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: bytes
    ) -> ConversationRecord | None:
        """As it is now. Raises StateFullError."""
        return await self._run(self._ledger.update_conversation, tenant, conversation_id, metadata)

    async def delete_conversation(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        """What was deleted, with its items. Responses of it stay, but nobody can go on from them."""
        return await self._run(self._ledger.delete_conversation, tenant, conversation_id)

    async def add_items(
        self, tenant: str, conversation_id: str, items: tuple[ItemRecord, ...]
    ) -> ConversationRecord | None:
        """All of them or none. Raises StateFullError, ConversationFullError, DuplicateItemError."""
        return await self._run(self._ledger.add_items, tenant, conversation_id, items)

    async def conversation_items(
        self,
        tenant: str,
        conversation_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
        order: Order = "desc",
    ) -> ItemPage | None:
        """Those that follow the item ``after`` in that order. Raises UnknownItemError."""
        return await self._run(self._ledger.conversation_items, tenant, conversation_id, after, limit, order)

    async def conversation_history(self, tenant: str, conversation_id: str) -> tuple[ItemRecord, ...] | None:
        """All its items, oldest first: what the next turn goes on from."""
        return await self._run(self._ledger.conversation_history, tenant, conversation_id)

    async def last_turn(self, tenant: str, conversation_id: str) -> ResponseRecord | None:
        """The newest response of a conversation, running or ended; None if it has none, or is unknown."""
        return await self._run(self._ledger.last_turn, tenant, conversation_id)

    async def item(self, tenant: str, conversation_id: str, item_id: str) -> ItemRecord | None:
        return await self._run(self._ledger.item, tenant, conversation_id, item_id)

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> ConversationRecord | None:
        """The conversation without it; None if there was no such item, or no such conversation."""
        return await self._run(self._ledger.delete_item, tenant, conversation_id, item_id)

    # ---- the thread ----------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        return self._thread.pending

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        if self._thread.is_closed:
            raise shutting_down()
        try:
            call = self._thread.submit_call(partial(work, *args))
        except ThreadBusyError:
            raise ApiError(
                ErrorKind.STATE_BUSY, "Too many calls wait for stored responses.", retry_after_s=1
            ) from None
        try:
            return await asyncio.wrap_future(call)
        except sqlite3.Error as error:
            log.error("the state store failed: %s", error)
            raise ApiError(ErrorKind.STATE_FAILED, "Stored responses cannot be read or written.") from None

    def _tidy(self) -> None:
        try:
            self._ledger.tidy()
        except sqlite3.Error as error:
            log.error("the state store failed while it was tidied: %s", error)
