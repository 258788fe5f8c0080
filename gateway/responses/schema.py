"""The file of the state store: its tables, its version, and how it is opened.

Runs on the caller's thread, before there is a server; blocks. A file is taken only if it is new, or ours
and of this version, and only by one server at a time: the lock is SQLite's own, which the kernel drops with
the process, however it ends. Totals and counts are kept by triggers: no transaction can leave them wrong.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from engine.config import ConfigError

_APPLICATION_ID = 0x74646774  # "tdgt", by which a file of ours is known
VERSION = 1
_PAGE_BYTES = 1024
ROW_BYTES = _PAGE_BYTES // 2
"""What a row costs beside its texts: keys, indexes, and what a page has left where no further row fits."""
_MAX_WAL_BYTES = 8 * 2**20

_TABLES = f"""
CREATE TABLE tenants (name TEXT PRIMARY KEY, num_bytes INTEGER NOT NULL) WITHOUT ROWID;

-- holds: later turns that build on a response, and one while it runs. Only without any may it go.
-- conversation, turn_after: its history is what that conversation has up to that item, and its own turn.
CREATE TABLE responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    session TEXT NOT NULL,
    previous INTEGER,
    conversation_id TEXT,
    conversation INTEGER,
    turn_after INTEGER,
    status TEXT NOT NULL,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    is_deleted INTEGER NOT NULL DEFAULT 0,
    holds INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL,
    inputs BLOB NOT NULL,
    outputs BLOB NOT NULL,
    body BLOB NOT NULL,
    making BLOB NOT NULL,
    UNIQUE (tenant, id)
);
CREATE INDEX idle_responses ON responses (tenant, used_at, number) WHERE holds = 0;
CREATE INDEX turns ON responses (conversation, number) WHERE conversation IS NOT NULL;
CREATE INDEX old_responses ON responses (used_at) WHERE holds = 0;

CREATE TABLE conversations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    num_items INTEGER NOT NULL DEFAULT 0,
    num_bytes INTEGER NOT NULL,
    metadata BLOB NOT NULL,
    UNIQUE (tenant, id)
);
CREATE INDEX idle_conversations ON conversations (tenant, used_at, number);
CREATE INDEX old_conversations ON conversations (used_at);

CREATE TABLE items (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation INTEGER NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (conversation, id)
);
CREATE INDEX items_in_order ON items (conversation, number);

CREATE TRIGGER item_comes AFTER INSERT ON items BEGIN
    UPDATE conversations
    SET num_items = num_items + 1, num_bytes = num_bytes + length(NEW.body) + {ROW_BYTES}
    WHERE number = NEW.conversation;
END;
CREATE TRIGGER item_goes AFTER DELETE ON items BEGIN
    UPDATE conversations
    SET num_items = num_items - 1, num_bytes = num_bytes - length(OLD.body) - {ROW_BYTES}
    WHERE number = OLD.conversation;
END;
CREATE TRIGGER response_comes AFTER INSERT ON responses BEGIN
    UPDATE responses SET holds = holds + 1 WHERE number = NEW.previous;
END;
CREATE TRIGGER response_goes AFTER DELETE ON responses BEGIN
    UPDATE responses SET holds = holds - 1 WHERE number = OLD.previous;
END;
"""
_TOTALS = """
CREATE TRIGGER {table}_bytes_come AFTER INSERT ON {table} BEGIN
    INSERT INTO tenants VALUES (NEW.tenant, NEW.num_bytes)
    ON CONFLICT (name) DO UPDATE SET num_bytes = num_bytes + excluded.num_bytes;
END;
CREATE TRIGGER {table}_bytes_change AFTER UPDATE OF num_bytes ON {table} BEGIN
    UPDATE tenants SET num_bytes = num_bytes + NEW.num_bytes - OLD.num_bytes WHERE name = NEW.tenant;
END;
CREATE TRIGGER {table}_bytes_go AFTER DELETE ON {table} BEGIN
    UPDATE tenants SET num_bytes = num_bytes - OLD.num_bytes WHERE name = OLD.tenant;
END;
"""


class StateFileError(ConfigError):
    """The file cannot be used. The message is a sentence that says why."""


def open_database(path: Path | None) -> sqlite3.Connection:
    """A connection that has the file for itself, or one to a store in memory. Raises StateFileError.

    Transactions are begun and ended by who uses it, who may be on another thread.
    """
    if path is None:
        return _with_tables(_connect(":memory:"))
    _create_private(path)
    try:
        database = _connect(str(path))
    except sqlite3.Error as error:
        raise unusable(path, error) from None
    try:
        return _with_tables(_checked(database, path))
    except sqlite3.Error as error:
        database.close()
        raise unusable(path, error) from None
    except StateFileError:
        database.close()
        raise


def shrink(database: sqlite3.Connection, max_bytes: int) -> None:
    """Give back what the file has beyond that, if it is free. Writes all of it anew."""
    num_pages = database.execute("PRAGMA page_count").fetchone()[0]
    if num_pages * _PAGE_BYTES > 1.1 * max_bytes:
        database.execute("VACUUM")


def _create_private(path: Path) -> None:
    """What people say to each other is for nobody else on the machine."""
    try:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise StateFileError(f"Cannot create the state file {path}: {error.strerror or error}.") from None


def _connect(name: str) -> sqlite3.Connection:
    database = sqlite3.connect(name, timeout=0, isolation_level=None, check_same_thread=False)
    database.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # of a new file
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    return database


def _checked(database: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """The same, if the file is new or one of ours of this version."""
    application_id, version = (
        database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if _is_new(database) and (application_id, version) == (0, 0):
        pass
    elif application_id != _APPLICATION_ID:
        raise StateFileError(f"The state file {path} is a database of another program; name another file.")
    elif version != VERSION:
        age = "a newer" if version > VERSION else "an older"
        raise StateFileError(
            f"The state file {path} was written by {age} version of tidegate (format {version}, this one"
            f" has {VERSION}); name another file, or run that version."
        )
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(
        "PRAGMA synchronous = NORMAL"
    )  # outlives the process; the machine's last moments may not
    database.execute(f"PRAGMA journal_size_limit = {_MAX_WAL_BYTES}")
    return database


def _is_new(database: sqlite3.Connection) -> bool:
    return not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _with_tables(database: sqlite3.Connection) -> sqlite3.Connection:
    database.execute("PRAGMA secure_delete = ON")  # what was deleted is not to be found in the file
    totals = "".join(_TOTALS.format(table=table) for table in ("responses", "conversations"))
    ours = f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {VERSION};"
    database.executescript(f"BEGIN EXCLUSIVE; {_TABLES + totals + ours if _is_new(database) else ''} COMMIT;")
    return database


def unusable(path: Path | None, error: Exception) -> StateFileError:
    """The sentence for what went wrong."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_BUSY:
        return StateFileError(f"The state file {path} is in use by another server.")
    if code == sqlite3.SQLITE_NOTADB:
        return StateFileError(f"The state file {path} is not a database of tidegate; name another file.")
    return StateFileError(f"Cannot use the state file {path}: {error}.")
