"""Responses in the store: a chain is a row for each turn, which names the row that it builds on.

Runs on: the state thread, inside a transaction. Blocks for the file. A row that others build on never goes
before them, so a history is whole or unknown. One that is deleted meanwhile is a row without a body, which
nobody can find; it goes with the last turn that builds on it, and when it runs no more.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.responses.records import RUNNING, HistoryGoneError, ItemRecord, ResponseRecord, as_lost
from gateway.responses.schema import ROW_BYTES

_COLUMNS = """
    r.id, r.tenant, r.session, (SELECT p.id FROM responses p WHERE p.number = r.previous), r.conversation_id,
    r.status, r.created_at, r.body, r.inputs, r.outputs, r.making
"""
_ONE = f"SELECT {_COLUMNS} FROM responses r WHERE r.tenant = ? AND r.id = ? AND NOT r.is_deleted"
_LAST_OF = (
    f"SELECT {_COLUMNS} FROM responses r WHERE r.tenant = ? AND r.conversation = ? AND NOT r.is_deleted"
    " ORDER BY r.number DESC LIMIT 1"
)
_LEFT_RUNNING = f"SELECT {_COLUMNS} FROM responses r WHERE r.status IN (?, ?) AND NOT r.is_deleted"
_CHAIN = """
WITH RECURSIVE chain (number, previous, depth) AS (
    SELECT number, previous, 0 FROM responses WHERE tenant = :tenant AND number = :number
    UNION ALL
    SELECT r.number, r.previous, depth + 1
    FROM chain JOIN responses r ON r.number = chain.previous AND r.tenant = :tenant
)
"""
_CHAIN_BYTES = _CHAIN + "SELECT sum(r.num_bytes) FROM chain JOIN responses r USING (number)"
_TURNS = (
    _CHAIN
    + "SELECT r.inputs, r.outputs, r.conversation_id IS NOT NULL, r.conversation, r.turn_after"
    + " FROM chain JOIN responses r USING (number) ORDER BY depth DESC"
)
_decode_items = msgspec.msgpack.Decoder(tuple[ItemRecord, ...]).decode


@dataclass(frozen=True, slots=True)
class ConversationPlace:
    """After which item of a conversation a turn comes."""

    conversation: int
    turn_after: int


@dataclass(frozen=True, slots=True)
class Turns:
    """Items of a chain, oldest first, and what stands before them if its first turn is a conversation's."""

    items: tuple[ItemRecord, ...]
    place: ConversationPlace | None


def put(
    database: sqlite3.Connection, record: ResponseRecord, place: ConversationPlace | None, now: float
) -> int | None:
    """Store a response, or what has become of it since. Returns the number of its row.

    Of one that was deleted meanwhile nothing is stored: None. Raises HistoryGoneError.
    """
    known = database.execute(
        "SELECT number, status, is_deleted FROM responses WHERE tenant = ? AND id = ?",
        (record.tenant, record.id),
    ).fetchone()
    if known is None:
        return _insert(database, record, place, now)
    number, status, is_deleted = known
    if is_deleted:
        if status in RUNNING and record.status not in RUNNING:
            _end_deleted(database, number)
        return None
    inputs, outputs = _encode(record)
    database.execute(
        "UPDATE responses SET status = ?, holds = holds + ?, used_at = ?, num_bytes = ?, inputs = ?,"
        " outputs = ?, body = ?, making = ? WHERE number = ?",
        (
            record.status, (record.status in RUNNING) - (status in RUNNING), now,
            _num_bytes(record, inputs, outputs), inputs, outputs, record.body, record.making, number,
        ),
    )  # fmt: skip
    return int(number)


def _insert(
    database: sqlite3.Connection, record: ResponseRecord, place: ConversationPlace | None, now: float
) -> int:
    previous = None
    if record.previous_id is not None:
        assert record.conversation_id is None
        previous = find(database, record.tenant, record.previous_id)
        if previous is None:
            raise HistoryGoneError("the response that it builds on is there no more")
    inputs, outputs = _encode(record)
    cursor = database.execute(
        "INSERT INTO responses (tenant, id, session, previous, conversation_id, conversation, turn_after,"
        " status, created_at, used_at, holds, num_bytes, inputs, outputs, body, making)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            record.tenant, record.id, record.session, previous, record.conversation_id,
            place and place.conversation, place and place.turn_after, record.status, record.created_at, now,
            record.status in RUNNING, _num_bytes(record, inputs, outputs), inputs, outputs, record.body,
            record.making,
        ),
    )  # fmt: skip
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def get(database: sqlite3.Connection, tenant: str, response_id: str) -> ResponseRecord | None:
    row = database.execute(_ONE, (tenant, response_id)).fetchone()
    return None if row is None else _record(row)


def last_of(database: sqlite3.Connection, tenant: str, conversation: int) -> ResponseRecord | None:
    """The newest response whose turn is part of a conversation."""
    row = database.execute(_LAST_OF, (tenant, conversation)).fetchone()
    return None if row is None else _record(row)


def find(database: sqlite3.Connection, tenant: str, response_id: str) -> int | None:
    """The number of its row; None if the tenant has none of that id, or has deleted it."""
    row = database.execute(
        "SELECT number FROM responses WHERE tenant = ? AND id = ? AND NOT is_deleted", (tenant, response_id)
    ).fetchone()
    return None if row is None else int(row[0])


def touch(database: sqlite3.Connection, number: int, now: float) -> None:
    """It was used just now, and with it all that it builds on, which cannot go before it."""
    database.execute("UPDATE responses SET used_at = ? WHERE number = ?", (now, number))


def turns(database: sqlite3.Connection, tenant: str, number: int) -> Turns:
    """Everything from the first turn to this one. Raises HistoryGoneError."""
    rows = database.execute(_TURNS, {"tenant": tenant, "number": number}).fetchall()
    _, _, is_in_conversation, conversation, turn_after = rows[0]
    items = tuple(item for row in rows for part in row[:2] for item in _decode_items(part))
    return Turns(items, ConversationPlace(conversation, turn_after) if is_in_conversation else None)


def history_bytes(database: sqlite3.Connection, tenant: str, number: int) -> int:
    """What a response and all that it builds on take."""
    found = database.execute(_CHAIN_BYTES, {"tenant": tenant, "number": number}).fetchone()
    return int(found[0])


def delete(database: sqlite3.Connection, tenant: str, response_id: str) -> ResponseRecord | None:
    """What was deleted. Its turn stays in the histories of those that build on it."""
    record = get(database, tenant, response_id)
    if record is None:
        return None
    number = find(database, tenant, response_id)
    assert number is not None
    database.execute(
        "UPDATE responses SET is_deleted = 1, num_bytes = num_bytes - length(body) - length(making),"
        " body = x'', making = x''"
        " WHERE number = ?",
        (number,),
    )
    _remove_unheld(database, number)
    return record


def remove(database: sqlite3.Connection, number: int) -> None:
    """A row that nothing builds on, and those before it that were only kept for it."""
    previous = database.execute("SELECT previous FROM responses WHERE number = ?", (number,)).fetchone()[0]
    database.execute("DELETE FROM responses WHERE number = ?", (number,))
    _remove_unheld(database, previous)


def _remove_unheld(database: sqlite3.Connection, number: int | None) -> None:
    """A row that is deleted, if nothing needs it, and then perhaps the one before it, and so on."""
    while row := database.execute(
        "SELECT previous FROM responses WHERE number = ? AND is_deleted AND holds = 0", (number,)
    ).fetchone():
        database.execute("DELETE FROM responses WHERE number = ?", (number,))
        number = row[0]


def _end_deleted(database: sqlite3.Connection, number: int) -> None:
    """It was deleted while it ran, and runs no more."""
    database.execute("UPDATE responses SET status = 'deleted', holds = holds - 1 WHERE number = ?", (number,))
    _remove_unheld(database, number)


def fail_lost(database: sqlite3.Connection, now: float) -> int:
    """End what was running when the server died. Returns how many there were."""
    records = [_record(row) for row in database.execute(_LEFT_RUNNING, RUNNING)]
    for record in records:
        put(database, as_lost(record), None, now)
    deleted = database.execute("SELECT number FROM responses WHERE is_deleted AND status IN (?, ?)", RUNNING)
    for (number,) in deleted.fetchall():
        _end_deleted(database, number)
    return len(records)


def _record(row: tuple[Any, ...]) -> ResponseRecord:
    *plain, inputs, outputs, making = row
    fields = (*plain, _decode_items(inputs), _decode_items(outputs), making)
    return ResponseRecord(*fields)


def _encode(record: ResponseRecord) -> tuple[bytes, bytes]:
    return msgspec.msgpack.encode(record.inputs), msgspec.msgpack.encode(record.outputs)


def _num_bytes(record: ResponseRecord, inputs: bytes, outputs: bytes) -> int:
    return ROW_BYTES + len(record.body) + len(record.making) + len(inputs) + len(outputs)
