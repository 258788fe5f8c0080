"""Counts everything in the store from scratch and compares it with the totals that are kept.

Runs on: the state thread. Blocks for the file. For tests: after every step, as for the engine's blocks.
"""

from __future__ import annotations

import sqlite3

_CHECKS = {
    "a tenant's bytes": """
        SELECT count(*) FROM tenants t WHERE num_bytes !=
            (SELECT coalesce(sum(num_bytes), 0) FROM responses WHERE tenant = t.name)
            + (SELECT coalesce(sum(num_bytes), 0) FROM conversations WHERE tenant = t.name)""",
    "a tenant's row": """
        SELECT count(*) FROM (SELECT tenant FROM responses UNION SELECT tenant FROM conversations)
        WHERE tenant NOT IN (SELECT name FROM tenants)""",
    "a response's bytes": """
        SELECT count(*) FROM responses
        WHERE num_bytes != :row + length(body) + length(making) + length(inputs) + length(outputs)""",
    "a response's holds": """
        SELECT count(*) FROM responses r WHERE holds != (status IN ('queued', 'in_progress'))
            + (SELECT count(*) FROM responses later WHERE later.previous = r.number)""",
    "a response that another builds on": """
        SELECT count(*) FROM responses r WHERE previous IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM responses p WHERE p.number = r.previous AND p.tenant = r.tenant)""",
    "a deleted response that nothing builds on": """
        SELECT count(*) FROM responses WHERE is_deleted AND (holds = 0 OR length(body))""",
    "a conversation's items": """
        SELECT count(*) FROM conversations c
        WHERE num_items != (SELECT count(*) FROM items WHERE conversation = c.number)""",
    "a conversation's bytes": """
        SELECT count(*) FROM conversations c WHERE num_bytes != :row + length(metadata)
            + (SELECT coalesce(sum(length(body) + :row), 0) FROM items WHERE conversation = c.number)""",
    "an item of no conversation": """
        SELECT count(*) FROM items WHERE conversation NOT IN (SELECT number FROM conversations)""",
}


def recount(database: sqlite3.Connection, row_bytes: int) -> list[str]:
    """What is not as it should be; empty if all is well."""
    return [
        f"wrong: {what} ({wrong} times)"
        for what, query in _CHECKS.items()
        if (wrong := database.execute(query, {"row": row_bytes}).fetchone()[0])
    ]
