"""What the state store should do, in dictionaries: slow, simple, without a file."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gateway.responses.records import (
    RUNNING,
    ConversationFullError,
    ConversationRecord,
    DuplicateItemError,
    HistoryGoneError,
    ItemPage,
    ItemRecord,
    ResponseRecord,
    StateError,
    StateFullError,
    StateSettings,
    UnknownItemError,
    as_lost,
)
from gateway.responses.schema import ROW_BYTES


@dataclass
class Turn:
    record: ResponseRecord
    used_at: float
    previous: Turn | None
    conversation: Conversation | None
    turn_after: int
    is_deleted: bool = False

    @property
    def num_bytes(self) -> int:
        texts = (msgspec.msgpack.encode(part) for part in (self.record.inputs, self.record.outputs))
        own = 0 if self.is_deleted else len(self.record.body) + len(self.record.making)
        return ROW_BYTES + sum(map(len, texts)) + own

    @property
    def chain(self) -> list[Turn]:
        return [*(self.previous.chain if self.previous else ()), self]


@dataclass
class Conversation:
    record: ConversationRecord
    used_at: float
    items: dict[str, tuple[int, ItemRecord]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return (
            ROW_BYTES
            + len(self.record.metadata)
            + sum(ROW_BYTES + len(item.body) for _, item in self.items.values())
        )

    @property
    def shown(self) -> ConversationRecord:
        return replace(self.record, num_items=len(self.items), num_bytes=self.num_bytes)

    @property
    def history(self) -> tuple[ItemRecord, ...]:
        return tuple(item for _, item in self.items.values())


class StateModel:
    """Each call as the ledger's of the same name, with the time as its first argument."""

    def __init__(self, settings: StateSettings) -> None:
        self.settings = settings
        self.turns: list[Turn] = []
        self.conversations: list[Conversation] = []
        self.num_items = 0

    def call(self, now: float, name: str, *arguments: Any) -> Any:
        """The result, or the kind of error, which leaves everything as it was."""
        before = copy.deepcopy((self.turns, self.conversations, self.num_items))
        self._expire(now - self.settings.ttl_s)
        method: Callable[..., Any] = getattr(self, name)
        try:
            return method(now, *arguments)
        except StateError as error:
            self.turns, self.conversations, self.num_items = before
            return type(error)

    def restart(self, now: float) -> None:
        self._expire(now - self.settings.ttl_s)
        for turn in [turn for turn in self.turns if turn.record.status in RUNNING]:
            if turn.is_deleted:
                turn.record = replace(turn.record, status="deleted")
                self._sweep()
            else:
                turn.record, turn.used_at = as_lost(turn.record), now
        self._make_room(None, None)  # their errors take some

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in (*self.turns, *self.conversations))

    @property
    def known(self) -> set[tuple[str, str]]:
        return {(turn.record.tenant, turn.record.id) for turn in self.turns if not turn.is_deleted} | {
            (entry.record.tenant, entry.record.id) for entry in self.conversations
        }

    # ---- responses ---------------------------------------------------------------------------------

    def put_response(self, now: float, record: ResponseRecord) -> None:
        self._put(now, record)

    def put_turn(self, now: float, record: ResponseRecord) -> None:
        turn = self._put(now, record)
        conversation = self._conversation(record.tenant, record.conversation_id or "")
        if turn is not None and conversation is not None:
            self._add(conversation, (*record.inputs, *record.outputs))
            self._make_room(turn, conversation)

    def response(self, now: float, tenant: str, response_id: str) -> ResponseRecord | None:
        turn = self._use(now, tenant, response_id)
        return turn and turn.record

    def history(self, now: float, tenant: str, response_id: str) -> tuple[ItemRecord, ...] | None:
        turn = self._use(now, tenant, response_id)
        if turn is None:
            return None
        said = tuple(item for part in turn.chain for item in (*part.record.inputs, *part.record.outputs))
        first = turn.chain[0]
        if first.record.conversation_id is None:
            return said
        if not any(first.conversation is entry for entry in self.conversations):
            return None
        assert first.conversation is not None
        first.conversation.used_at = now
        before = (item for number, item in first.conversation.items.values() if number <= first.turn_after)
        return (*before, *said)

    def delete_response(self, now: float, tenant: str, response_id: str) -> ResponseRecord | None:
        turn = self._turn(tenant, response_id)
        if turn is not None:
            turn.is_deleted = True
            self._sweep()
        return turn and turn.record

    def _put(self, now: float, record: ResponseRecord) -> Turn | None:
        conversation = None
        if record.conversation_id is not None:
            conversation = self._conversation(record.tenant, record.conversation_id)
            if conversation is None:
                raise HistoryGoneError
            conversation.used_at = now
        turn = self._turn(record.tenant, record.id, even_deleted=True)
        if turn is not None and turn.is_deleted:
            if record.status not in RUNNING and turn.record.status in RUNNING:
                turn.record = replace(turn.record, status="deleted")
                self._sweep()
            return None
        if turn is None:
            previous = record.previous_id and self._turn(record.tenant, record.previous_id)
            if record.previous_id and not previous:
                raise HistoryGoneError
            last = (
                max((number for number, _ in conversation.items.values()), default=0) if conversation else 0
            )
            turn = Turn(record, now, previous or None, conversation, last)
            self.turns.append(turn)
        turn.record, turn.used_at = record, now
        if sum(part.num_bytes for part in turn.chain) > self.settings.max_history_bytes:
            raise StateFullError
        self._make_room(turn, conversation)
        return turn

    def _turn(self, tenant: str, response_id: str, even_deleted: bool = False) -> Turn | None:
        for turn in self.turns:
            if (turn.record.tenant, turn.record.id) == (tenant, response_id):
                return turn if even_deleted or not turn.is_deleted else None
        return None

    def _use(self, now: float, tenant: str, response_id: str) -> Turn | None:
        turn = self._turn(tenant, response_id)
        if turn is not None:
            turn.used_at = now
        return turn

    # ---- conversations -----------------------------------------------------------------------------

    def create_conversation(
        self, now: float, record: ConversationRecord, items: tuple[ItemRecord, ...]
    ) -> None:
        made = Conversation(record, now)
        self.conversations.append(made)
        self._add(made, items)
        own = [entry for entry in self.conversations if entry.record.tenant == record.tenant]
        for entry in sorted(own, key=lambda entry: entry.used_at)[: -self.settings.max_conversations]:
            self._drop_conversation(entry)
        self._make_room(None, made)

    def conversation(self, now: float, tenant: str, conversation_id: str) -> ConversationRecord | None:
        found = self._use_conversation(now, tenant, conversation_id)
        return found and found.shown

    def update_conversation(
        self, now: float, tenant: str, conversation_id: str, metadata: bytes
    ) -> ConversationRecord | None:
        found = self._use_conversation(now, tenant, conversation_id)
        if found is not None:
            found.record = replace(found.record, metadata=metadata)
            self._make_room(None, found)
        return found and found.shown

    def delete_conversation(self, now: float, tenant: str, conversation_id: str) -> ConversationRecord | None:
        found = self._conversation(tenant, conversation_id)
        if found is not None:
            self._drop_conversation(found)
        return found and found.shown

    def add_items(
        self, now: float, tenant: str, conversation_id: str, items: tuple[ItemRecord, ...]
    ) -> ConversationRecord | None:
        found = self._use_conversation(now, tenant, conversation_id)
        if found is not None:
            self._add(found, items)
            self._make_room(None, found)
        return found and found.shown

    def conversation_items(
        self, now: float, tenant: str, conversation_id: str, after: str | None, limit: int, order: str
    ) -> ItemPage | None:
        found = self._use_conversation(now, tenant, conversation_id)
        if found is None:
            return None
        listed = list(found.history) if order == "asc" else list(reversed(found.history))
        if after is not None:
            if after not in found.items:
                raise UnknownItemError
            listed = listed[[item.id for item in listed].index(after) + 1 :]
        return ItemPage(tuple(listed[:limit]), len(listed) > limit)

    def conversation_history(
        self, now: float, tenant: str, conversation_id: str
    ) -> tuple[ItemRecord, ...] | None:
        found = self._use_conversation(now, tenant, conversation_id)
        return None if found is None else found.history

    def last_turn(self, now: float, tenant: str, conversation_id: str) -> ResponseRecord | None:
        found = self._conversation(tenant, conversation_id)
        own = [turn for turn in self.turns if turn.conversation is found and not turn.is_deleted]
        return own[-1].record if found is not None and own else None

    def item(self, now: float, tenant: str, conversation_id: str, item_id: str) -> ItemRecord | None:
        found = self._use_conversation(now, tenant, conversation_id)
        return found.items[item_id][1] if found is not None and item_id in found.items else None

    def delete_item(
        self, now: float, tenant: str, conversation_id: str, item_id: str
    ) -> ConversationRecord | None:
        found = self._use_conversation(now, tenant, conversation_id)
        if found is None or found.items.pop(item_id, None) is None:
            return None
        return found.shown

    def _add(self, conversation: Conversation, items: tuple[ItemRecord, ...]) -> None:
        for item in items:
            if item.id in conversation.items:
                raise DuplicateItemError(item.id)
            self.num_items += 1
            conversation.items[item.id] = (self.num_items, item)
        if len(conversation.items) > self.settings.max_items:
            raise ConversationFullError
        if conversation.num_bytes > self.settings.max_history_bytes:
            raise StateFullError

    def _conversation(self, tenant: str, conversation_id: str) -> Conversation | None:
        for entry in self.conversations:
            if (entry.record.tenant, entry.record.id) == (tenant, conversation_id):
                return entry
        return None

    def _use_conversation(self, now: float, tenant: str, conversation_id: str) -> Conversation | None:
        found = self._conversation(tenant, conversation_id)
        if found is not None:
            found.used_at = now
        return found

    def _drop_conversation(self, conversation: Conversation) -> None:
        self.conversations = [entry for entry in self.conversations if entry is not conversation]

    # ---- what goes ---------------------------------------------------------------------------------

    def _may_go(self, turn: Turn) -> bool:
        return turn.record.status not in RUNNING and all(turn is not later.previous for later in self.turns)

    def _drop(self, turn: Turn) -> None:
        self.turns = [entry for entry in self.turns if entry is not turn]
        self._sweep()

    def _sweep(self) -> None:
        """Deleted turns that nothing needs."""
        while idle := [turn for turn in self.turns if turn.is_deleted and self._may_go(turn)]:
            self.turns = [turn for turn in self.turns if all(turn is not gone for gone in idle)]

    def _expire(self, before: float) -> None:
        while old := [turn for turn in self.turns if turn.used_at < before and self._may_go(turn)]:
            self._drop(old[0])
        self.conversations = [entry for entry in self.conversations if entry.used_at >= before]

    def _make_room(self, turn: Turn | None, conversation: Conversation | None) -> None:
        while self.num_bytes > self.settings.max_bytes:
            self._drop_one(turn, conversation)

    def _drop_one(self, turn: Turn | None, conversation: Conversation | None) -> None:
        idle: list[Turn | Conversation] = [t for t in self.turns if self._may_go(t) and t is not turn]
        idle += [entry for entry in self.conversations if entry is not conversation]
        taken: dict[str, int] = {}
        for entry in (*self.turns, *self.conversations):
            taken[entry.record.tenant] = taken.get(entry.record.tenant, 0) + entry.num_bytes
        for tenant in sorted(taken, key=lambda tenant: (-taken[tenant], tenant)):
            own = [entry for entry in idle if entry.record.tenant == tenant]
            if own:
                oldest = min(own, key=lambda entry: entry.used_at)
                if isinstance(oldest, Turn):
                    self._drop(oldest)
                else:
                    self._drop_conversation(oldest)
                return
        raise StateFullError
