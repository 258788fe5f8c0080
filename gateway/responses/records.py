"""What the state store keeps, as those who use it see it: responses, conversations, items.

Pure. Bodies are JSON as the API shows it; the store looks into them only where a response was running when
the server died. ``tenant`` is ``Tenant.owner``, everywhere: what others have is unknown, never forbidden.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

RUNNING = ("queued", "in_progress")
"""Statuses of a response that may still become another one."""
Order = Literal["asc", "desc"]
_DAY_S = 24 * 3600.0
_LOST = {"code": "server_error", "message": "The server stopped while it was answering."}


@dataclass(frozen=True, slots=True)
class ItemRecord:
    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """One response. ``inputs`` are its own turn's, not those of the turns before it.

    ``previous_id`` names the response it builds on, ``conversation_id`` the conversation that its turn is
    part of; it has at most one of them. ``making`` is what its maker wants to know of it again; nobody else
    reads it.
    """

    id: str
    tenant: str
    session: str
    previous_id: str | None
    conversation_id: str | None
    status: str
    created_at: float
    body: bytes
    inputs: tuple[ItemRecord, ...]
    outputs: tuple[ItemRecord, ...]
    making: bytes = b""


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """``metadata`` is JSON. What its items are, and how many bytes they have, is the store's to say."""

    id: str
    tenant: str
    created_at: float
    metadata: bytes
    num_items: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ItemPage:
    items: tuple[ItemRecord, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class StateSettings:
    """``path`` None: in memory. ``ttl_s`` is since the last use.

    ``max_bytes`` bounds the file, which is what is stored with all that goes with it. At
    ``max_conversations`` a tenant's least recently used conversation makes room for a new one; one that
    has ``max_items`` takes no more. No history may take more than ``max_history_bytes``.
    """

    path: Path | None = None
    max_bytes: int = 256 * 2**20
    ttl_s: float = 30 * _DAY_S
    max_conversations: int = 10_000
    max_items: int = 10_000

    @property
    def max_history_bytes(self) -> int:
        return self.max_bytes // 4


class StateError(RuntimeError):
    """What was asked cannot be done with what is stored. Nothing was changed."""


class HistoryGoneError(StateError):
    """A turn builds on a response, or belongs to a conversation, that is there no more."""


class StateFullError(StateError):
    """A history, or all that must be kept at the moment, is larger than the store may be."""


class ConversationFullError(StateError):
    """A conversation has all the items that one may have."""


class DuplicateItemError(StateError):
    """Two items of a conversation would have the same id. ``item_id`` is that id."""

    def __init__(self, item_id: str) -> None:
        super().__init__("an item has the id of another")
        self.item_id = item_id


class UnknownItemError(StateError):
    """A page is to begin after an item that the conversation has not got."""


def as_lost(record: ResponseRecord) -> ResponseRecord:
    """The same response, which nobody is answering any more: failed, its unfinished items incomplete."""
    body = msgspec.json.decode(record.body)
    body["status"] = "failed"
    body["error"] = _LOST
    for item in body.get("output") or ():
        _end(item)
    return replace(
        record,
        status="failed",
        body=msgspec.json.encode(body),
        outputs=tuple(ItemRecord(item.id, _ended(item.body)) for item in record.outputs),
    )


def _ended(body: bytes) -> bytes:
    item = msgspec.json.decode(body)
    _end(item)
    return msgspec.json.encode(item)


def _end(item: dict[str, Any]) -> None:
    if item.get("status") in RUNNING:
        item["status"] = "incomplete"
