"""What leaves the store: what was not used for too long, and at its size what was used least recently.

Runs on: the state thread, inside a transaction. Blocks for the file. Only what nothing builds on can go: a
response that is used keeps all turns before it. Room is made by the tenant that takes the most, so one that
takes less than an equal share loses nothing to the others.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from gateway.responses import conversation_table, response_table
from gateway.responses.records import StateFullError

_BATCH = 256  # at a time: nobody waits for more
_NONE = -1  # is the number of no row
_OLDEST = """
SELECT kind, number FROM (
    SELECT * FROM (
        SELECT 0 AS kind, number, used_at FROM responses
        WHERE tenant = :tenant AND holds = 0 AND number != :response ORDER BY used_at, number LIMIT 1
    )
    UNION ALL
    SELECT * FROM (
        SELECT 1, number, used_at FROM conversations
        WHERE tenant = :tenant AND number != :conversation ORDER BY used_at, number LIMIT 1
    )
) ORDER BY used_at, kind LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """What room is made for, and which must not go for it: rows by number."""

    response: int = _NONE
    conversation: int = _NONE


def total_bytes(database: sqlite3.Connection) -> int:
    """What all tenants take."""
    found = database.execute("SELECT coalesce(sum(num_bytes), 0) FROM tenants").fetchone()
    return int(found[0])


def expire(database: sqlite3.Connection, before: float) -> None:
    """Drop what was last used before that; of very much a part, and the rest at the next calls."""
    for _ in range(_BATCH):
        row = database.execute(
            "SELECT number FROM responses WHERE holds = 0 AND used_at < ? ORDER BY used_at LIMIT 1", (before,)
        ).fetchone()
        if row is None:
            break
        response_table.remove(database, row[0])
    old = database.execute(
        "SELECT number FROM conversations WHERE used_at < ? ORDER BY used_at LIMIT ?", (before, _BATCH)
    ).fetchall()
    for (number,) in old:
        conversation_table.remove(database, number)


def make_room(database: sqlite3.Connection, max_bytes: int, kept: Kept = Kept()) -> None:
    """Drop until there is no more than ``max_bytes``. Raises StateFullError if that cannot be."""
    while total_bytes(database) > max_bytes:
        tenants = database.execute("SELECT name FROM tenants ORDER BY num_bytes DESC, name").fetchall()
        if not any(_drop_oldest(database, name, kept) for (name,) in tenants):
            raise StateFullError("what must be kept is larger than the store")


def keep_newest_conversations(database: sqlite3.Connection, tenant: str, max_count: int, kept: Kept) -> None:
    """Drop a tenant's least recently used ones beyond that."""
    for _ in range(conversation_table.count(database, tenant) - max_count):
        number = database.execute(
            "SELECT number FROM conversations WHERE tenant = ? AND number != ?"
            " ORDER BY used_at, number LIMIT 1",
            (tenant, kept.conversation),
        ).fetchone()[0]
        conversation_table.remove(database, number)


def _drop_oldest(database: sqlite3.Connection, tenant: str, kept: Kept) -> bool:
    """False if the tenant has nothing that can go."""
    row = database.execute(
        _OLDEST, {"tenant": tenant, "response": kept.response, "conversation": kept.conversation}
    ).fetchone()
    if row is None:
        return False
    kind, number = row
    table = conversation_table if kind else response_table
    table.remove(database, number)
    return True
