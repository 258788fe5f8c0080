"""The state store without its thread: each call is one transaction, which is done or leaves no trace.

Runs on: the state thread (tests call it directly). Blocks for the file. Durable against the death of the
process when a call returns. Every call drops what is too old; those that add make room for it. What is used
is what goes last. Another owner's ids find nothing, by the same look-up as ids that nobody has.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from gateway.responses import conversation_table as conversations
from gateway.responses import eviction
from gateway.responses import response_table as responses
from gateway.responses.eviction import Kept
from gateway.responses.records import (
    ConversationFullError,
    ConversationRecord,
    HistoryGoneError,
    ItemPage,
    ItemRecord,
    Order,
    ResponseRecord,
    StateFullError,
    StateSettings,
)
from gateway.responses.recount import recount
from gateway.responses.response_table import ConversationPlace
from gateway.responses.schema import ROW_BYTES, open_database, shrink, unusable


class Ledger:
    """Owns the connection. ``num_lost``: responses that were running when the last server died."""

    def __init__(self, settings: StateSettings, clock: Callable[[], float]) -> None:
        """Blocks; raises StateFileError."""
        self._settings = settings
        self._clock = clock
        self._database = open_database(settings.path)
        try:
            with self._transaction() as now:
                self.num_lost = responses.fail_lost(self._database, now)
                eviction.make_room(self._database, settings.max_bytes)
            shrink(self._database, settings.max_bytes)
        except (sqlite3.Error, msgspec.DecodeError) as error:
            self._database.close()
            raise unusable(settings.path, error) from None

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[float]:
        """Yields what time it is. Raises sqlite3.Error if the file fails."""
        now = self._clock()
        self._database.execute("BEGIN IMMEDIATE")
        try:
            eviction.expire(self._database, now - self._settings.ttl_s)
            yield now
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    # ---- responses -----------------------------------------------------------------------------

    def put_response(self, record: ResponseRecord) -> None:
        """Raises HistoryGoneError, StateFullError."""
        with self._transaction() as now:
            self._put(record, now)

    def put_turn(self, record: ResponseRecord) -> None:
        """``put_response``, and what was said in it is what its conversation has last.

        Raises HistoryGoneError, StateFullError, ConversationFullError, DuplicateItemError.
        """
        assert record.conversation_id is not None
        with self._transaction() as now:
            kept = self._put(record, now)
            if kept is not None:
                conversations.add(self._database, kept.conversation, (*record.inputs, *record.outputs))
                self._check_conversation(record.tenant, record.conversation_id)
                self._make_room(kept)

    def response(self, tenant: str, response_id: str) -> ResponseRecord | None:
        with self._transaction() as now:
            record = responses.get(self._database, tenant, response_id)
            if record is not None:
                self._use_response(tenant, response_id, now)
            return record

    def history(self, tenant: str, response_id: str) -> tuple[ItemRecord, ...] | None:
        with self._transaction() as now:
            number = self._use_response(tenant, response_id, now)
            if number is None:
                return None
            turns = responses.turns(self._database, tenant, number)
            if turns.place is None:
                return turns.items
            if not conversations.touch(self._database, turns.place.conversation, now):
                return None
            return conversations.up_to(self._database, turns.place) + turns.items

    def delete_response(self, tenant: str, response_id: str) -> ResponseRecord | None:
        with self._transaction():
            return responses.delete(self._database, tenant, response_id)

    def _put(self, record: ResponseRecord, now: float) -> Kept | None:
        """What must stay for it; None if it was deleted meanwhile."""
        place = self._place(record, now)
        number = responses.put(self._database, record, place, now)
        if number is None:
            return None
        most = self._settings.max_history_bytes
        if responses.history_bytes(self._database, record.tenant, number) > most:
            raise StateFullError(f"a history may take {most} bytes")
        kept = Kept(number) if place is None else Kept(number, place.conversation)
        self._make_room(kept)
        return kept

    def _place(self, record: ResponseRecord, now: float) -> ConversationPlace | None:
        """Where a turn comes in its conversation, if it has one."""
        if record.conversation_id is None:
            return None
        number = conversations.use(self._database, record.tenant, record.conversation_id, now)
        if number is None:
            raise HistoryGoneError("its conversation is there no more")
        return conversations.end_of(self._database, number)

    def _use_response(self, tenant: str, response_id: str, now: float) -> int | None:
        number = responses.find(self._database, tenant, response_id)
        if number is not None:
            responses.touch(self._database, number, now)
        return number

    # ---- conversations -------------------------------------------------------------------------

    def create_conversation(self, record: ConversationRecord, items: tuple[ItemRecord, ...] = ()) -> None:
        """Raises StateFullError, ConversationFullError, DuplicateItemError."""
        with self._transaction() as now:
            number = conversations.create(self._database, record, now)
            conversations.add(self._database, number, items)
            self._check_conversation(record.tenant, record.id)
            kept, most = Kept(conversation=number), self._settings.max_conversations
            eviction.keep_newest_conversations(self._database, record.tenant, most, kept)
            self._make_room(kept)

    def conversation(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        with self._transaction() as now:
            conversations.use(self._database, tenant, conversation_id, now)
            return conversations.get(self._database, tenant, conversation_id)

    def update_conversation(
        self, tenant: str, conversation_id: str, metadata: bytes
    ) -> ConversationRecord | None:
        """Another ``metadata``. Raises StateFullError."""
        with self._transaction() as now:
            number = conversations.use(self._database, tenant, conversation_id, now)
            if number is not None:
                conversations.set_metadata(self._database, number, metadata)
                self._make_room(Kept(conversation=number))
            return conversations.get(self._database, tenant, conversation_id)

    def delete_conversation(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        with self._transaction():
            return conversations.delete(self._database, tenant, conversation_id)

    def add_items(
        self, tenant: str, conversation_id: str, items: tuple[ItemRecord, ...]
    ) -> ConversationRecord | None:
        """Raises StateFullError, ConversationFullError, DuplicateItemError."""
        with self._transaction() as now:
            number = conversations.use(self._database, tenant, conversation_id, now)
            if number is None:
                return None
            conversations.add(self._database, number, items)
            record = self._check_conversation(tenant, conversation_id)
            self._make_room(Kept(conversation=number))
            return record

    def conversation_items(
        self, tenant: str, conversation_id: str, after: str | None, limit: int, order: Order
    ) -> ItemPage | None:
        """Raises UnknownItemError."""
        with self._transaction() as now:
            number = conversations.use(self._database, tenant, conversation_id, now)
            if number is None:
                return None
            return conversations.page(self._database, number, after, limit, order)

    def conversation_history(self, tenant: str, conversation_id: str) -> tuple[ItemRecord, ...] | None:
        with self._transaction() as now:
            number = conversations.use(self._database, tenant, conversation_id, now)
            if number is None:
                return None
            return conversations.up_to(self._database, conversations.end_of(self._database, number))

    def last_turn(self, tenant: str, conversation_id: str) -> ResponseRecord | None:
        with self._transaction():
            number = conversations.find(self._database, tenant, conversation_id)
            return None if number is None else responses.last_of(self._database, tenant, number)

    def item(self, tenant: str, conversation_id: str, item_id: str) -> ItemRecord | None:
        with self._transaction() as now:
            number = conversations.use(self._database, tenant, conversation_id, now)
            return None if number is None else conversations.item(self._database, number, item_id)

    def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> ConversationRecord | None:
        with self._transaction() as now:
            number = conversations.use(self._database, tenant, conversation_id, now)
            if number is None or not conversations.delete_item(self._database, number, item_id):
                return None
            return conversations.get(self._database, tenant, conversation_id)

    def _check_conversation(self, tenant: str, conversation_id: str) -> ConversationRecord:
        record = conversations.get(self._database, tenant, conversation_id)
        assert record is not None
        if record.num_items > self._settings.max_items:
            raise ConversationFullError(f"a conversation may have {self._settings.max_items} items")
        if record.num_bytes > self._settings.max_history_bytes:
            raise StateFullError(f"a conversation may take {self._settings.max_history_bytes} bytes")
        return record

    # ---- all of it -----------------------------------------------------------------------------

    def tidy(self) -> None:
        """Drop what is too old, though nobody asks for anything."""
        with self._transaction():
            pass

    def num_bytes(self) -> int:
        return eviction.total_bytes(self._database)

    def check(self) -> list[str]:
        """A recount of everything; empty if all is well."""
        return recount(self._database, ROW_BYTES)

    def _make_room(self, kept: Kept) -> None:
        eviction.make_room(self._database, self._settings.max_bytes, kept)
