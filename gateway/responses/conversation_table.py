"""Conversations in the store, and their items in the order in which they came.

Runs on: the state thread, inside a transaction. Blocks for the file. An item belongs to one conversation and
goes with it; its number grows with every item that ever came, so pages go on where they ended whatever is
added or deleted meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from gateway.responses.records import (
    ConversationRecord,
    DuplicateItemError,
    ItemPage,
    ItemRecord,
    Order,
    UnknownItemError,
)
from gateway.responses.response_table import ConversationPlace
from gateway.responses.schema import ROW_BYTES

_ONE = """
SELECT id, tenant, created_at, metadata, num_items, num_bytes
FROM conversations WHERE tenant = ? AND id = ?
"""


def create(database: sqlite3.Connection, record: ConversationRecord, now: float) -> int:
    """Returns the number of its row. It has no items yet."""
    cursor = database.execute(
        "INSERT INTO conversations (tenant, id, created_at, used_at, num_bytes, metadata)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            record.tenant, record.id, record.created_at, now, ROW_BYTES + len(record.metadata),
            record.metadata,
        ),
    )  # fmt: skip
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def get(database: sqlite3.Connection, tenant: str, conversation_id: str) -> ConversationRecord | None:
    row = database.execute(_ONE, (tenant, conversation_id)).fetchone()
    return None if row is None else ConversationRecord(*row)


def find(database: sqlite3.Connection, tenant: str, conversation_id: str) -> int | None:
    """The number of its row; None if the tenant has none of that id."""
    row = database.execute(
        "SELECT number FROM conversations WHERE tenant = ? AND id = ?", (tenant, conversation_id)
    ).fetchone()
    return None if row is None else int(row[0])


def use(database: sqlite3.Connection, tenant: str, conversation_id: str, now: float) -> int | None:
    """``find`` it, because it is used now."""
    number = find(database, tenant, conversation_id)
    if number is not None:
        touch(database, number, now)
    return number


def touch(database: sqlite3.Connection, number: int, now: float) -> bool:
    """It was used just now. False if it is there no more."""
    cursor = database.execute("UPDATE conversations SET used_at = ? WHERE number = ?", (now, number))
    return bool(cursor.rowcount)


def set_metadata(database: sqlite3.Connection, number: int, metadata: bytes) -> None:
    database.execute(
        "UPDATE conversations SET num_bytes = num_bytes + ? - length(metadata), metadata = ?"
        " WHERE number = ?",
        (len(metadata), metadata, number),
    )


def delete(database: sqlite3.Connection, tenant: str, conversation_id: str) -> ConversationRecord | None:
    """What was deleted, with all its items."""
    record = get(database, tenant, conversation_id)
    if record is not None:
        number = find(database, tenant, conversation_id)
        assert number is not None
        remove(database, number)
    return record


def remove(database: sqlite3.Connection, number: int) -> None:
    database.execute("DELETE FROM items WHERE conversation = ?", (number,))
    database.execute("DELETE FROM conversations WHERE number = ?", (number,))


def count(database: sqlite3.Connection, tenant: str) -> int:
    """How many a tenant has."""
    found = database.execute("SELECT count(*) FROM conversations WHERE tenant = ?", (tenant,)).fetchone()
    return int(found[0])


# ---- items -------------------------------------------------------------------------------------


def add(database: sqlite3.Connection, number: int, items: Iterable[ItemRecord]) -> None:
    """At the end, in this order. Raises DuplicateItemError."""
    for item in items:
        try:
            database.execute(
                "INSERT INTO items (conversation, id, body) VALUES (?, ?, ?)", (number, item.id, item.body)
            )
        except sqlite3.IntegrityError:
            raise DuplicateItemError(item.id) from None


def end_of(database: sqlite3.Connection, number: int) -> ConversationPlace:
    """Where the next turn comes."""
    last = database.execute("SELECT max(number) FROM items WHERE conversation = ?", (number,)).fetchone()[0]
    return ConversationPlace(number, last or 0)


def up_to(database: sqlite3.Connection, place: ConversationPlace) -> tuple[ItemRecord, ...]:
    """All that stands before a turn, oldest first."""
    rows = database.execute(
        "SELECT id, body FROM items WHERE conversation = ? AND number <= ? ORDER BY number",
        (place.conversation, place.turn_after),
    )
    return tuple(ItemRecord(*row) for row in rows)


def page(database: sqlite3.Connection, number: int, after: str | None, limit: int, order: Order) -> ItemPage:
    """Up to ``limit`` items, from the first in that order or behind ``after``. Raises UnknownItemError."""
    comparison, direction = (">", "ASC") if order == "asc" else ("<", "DESC")
    values = [number]
    where = "conversation = ?"
    if after is not None:
        where += f" AND number {comparison} ?"
        values.append(_number_of(database, number, after))
    rows = database.execute(
        f"SELECT id, body FROM items WHERE {where} ORDER BY number {direction} LIMIT ?", (*values, limit + 1)
    ).fetchall()
    return ItemPage(tuple(ItemRecord(*row) for row in rows[:limit]), has_more=len(rows) > limit)


def item(database: sqlite3.Connection, number: int, item_id: str) -> ItemRecord | None:
    row = database.execute(
        "SELECT id, body FROM items WHERE conversation = ? AND id = ?", (number, item_id)
    ).fetchone()
    return None if row is None else ItemRecord(*row)


def delete_item(database: sqlite3.Connection, number: int, item_id: str) -> bool:
    """False if there is none."""
    cursor = database.execute("DELETE FROM items WHERE conversation = ? AND id = ?", (number, item_id))
    return bool(cursor.rowcount)


def _number_of(database: sqlite3.Connection, number: int, item_id: str) -> int:
    row = database.execute(
        "SELECT number FROM items WHERE conversation = ? AND id = ?", (number, item_id)
    ).fetchone()
    if row is None:
        raise UnknownItemError("no such item")
    return int(row[0])
