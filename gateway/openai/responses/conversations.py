"""Wire structs of /v1/conversations, and what a client may put into one.

Pure; runs on offload threads. Items are checked as a turn's input is, and get ids of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from gateway.errors import bad_request
from gateway.openai.harmless import check_metadata
from gateway.openai.notes import told
from gateway.openai.ranges import MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE
from gateway.openai.responses.items import InputItem, Item, check_calls, check_input
from gateway.openai.wire import decode

MAX_ITEMS_AT_ONCE = 20
Metadata = Annotated[
    dict[
        Annotated[str, told(maxLength=MAX_METADATA_KEY)], Annotated[str, told(maxLength=MAX_METADATA_VALUE)]
    ],
    told("Told back.", maxProperties=MAX_METADATA),
]
Items = Annotated[list[InputItem], told(maxItems=MAX_ITEMS_AT_ONCE)]


class ConversationWire(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    items: Items | None = None
    metadata: Metadata | None = None


class ConversationUpdateWire(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    metadata: Metadata | None


class ItemsWire(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    items: Items


class Conversation(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: Metadata


class DeletedConversation(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


class NewConversation(msgspec.Struct, frozen=True):
    """One that passed every check."""

    items: tuple[Item, ...]
    metadata: dict[str, str]


_NEW = msgspec.json.Decoder(ConversationWire)
_UPDATE = msgspec.json.Decoder(ConversationUpdateWire)
_ITEMS = msgspec.json.Decoder(ItemsWire)
_METADATA = msgspec.json.Decoder(dict[str, str])


def read_new(body: bytes) -> NewConversation:
    """Raises ApiError naming the first bad field."""
    wire = decode(_NEW, body)
    metadata = wire.metadata or {}
    check_metadata(metadata)
    items = _checked(wire.items or [])
    check_calls((), items, "items")
    return NewConversation(items, metadata)


def read_metadata(body: bytes) -> dict[str, str]:
    """Raises ApiError naming the first bad field."""
    metadata = decode(_UPDATE, body).metadata or {}
    check_metadata(metadata)
    return metadata


def read_items(body: bytes) -> tuple[Item, ...]:
    """Items for a conversation that may have others before them, on which ``check_calls`` depends.

    Raises ApiError naming the first bad field.
    """
    return _checked(decode(_ITEMS, body).items)


def encode_metadata(metadata: dict[str, str]) -> bytes:
    """As it is kept."""
    return msgspec.json.encode(metadata)


def encode_conversation(conversation_id: str, created_at: float, metadata: bytes) -> bytes:
    """As the API shows it; ``metadata`` is as it was kept."""
    shown = Conversation(id=conversation_id, created_at=int(created_at), metadata=_METADATA.decode(metadata))
    return msgspec.json.encode(shown)


def _checked(given: Sequence[InputItem]) -> tuple[Item, ...]:
    if len(given) > MAX_ITEMS_AT_ONCE:
        raise bad_request("items", f"'items' must not have more than {MAX_ITEMS_AT_ONCE} items.")
    return tuple(check_input(given, "items"))
