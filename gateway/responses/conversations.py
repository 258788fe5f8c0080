"""HTTP handlers of /v1/conversations: made, read, changed and deleted as OpenAI's clients do it.

Runs on the event loop; bodies are parsed on offload threads. Each call counts as a request of its tenant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from aiohttp import web

from gateway.errors import ApiError, ErrorKind, bad_request
from gateway.handlers import known_visitor
from gateway.openai.responses.conversations import (
    DeletedConversation,
    encode_conversation,
    encode_metadata,
    read_items,
    read_metadata,
    read_new,
)
from gateway.openai.responses.items import FunctionOutputItem, Item, check_calls, new_id
from gateway.request_keys import GATEWAY
from gateway.responses.app_keys import RESPONSES, STORE
from gateway.responses.keeping import decoded, kept
from gateway.responses.paging import item_list, page_query
from gateway.responses.records import (
    ConversationFullError,
    ConversationRecord,
    ItemRecord,
    StateFullError,
    UnknownItemError,
)

T = TypeVar("T")


async def create(http: web.Request) -> web.Response:
    """POST /v1/conversations."""
    visitor = known_visitor(http)
    given = await _read(http, read_new)
    record = ConversationRecord(
        new_id("conv"), visitor.tenant.owner, time.time(), encode_metadata(given.metadata)
    )
    with _storing():
        await http.app[STORE].create_conversation(record, kept(given.items))
    return _conversation(record)


async def retrieve(http: web.Request) -> web.Response:
    """GET /v1/conversations/{id}."""
    return _conversation(await http.app[STORE].conversation(*_entered(http)))


async def update(http: web.Request) -> web.Response:
    """POST /v1/conversations/{id}."""
    metadata = await _read(http, read_metadata)
    with _storing():
        found = await http.app[STORE].update_conversation(*_named(http), encode_metadata(metadata))
    return _conversation(found)


async def delete(http: web.Request) -> web.Response:
    """DELETE /v1/conversations/{id}."""
    owner, conversation_id = _entered(http)
    await http.app[RESPONSES].forget_conversation(known_visitor(http), conversation_id)
    if await http.app[STORE].delete_conversation(owner, conversation_id) is None:
        raise _not_found()
    return _json(msgspec.json.encode(DeletedConversation(id=conversation_id)))


# ---- items -------------------------------------------------------------------------------------


async def add_items(http: web.Request) -> web.Response:
    """POST /v1/conversations/{id}/items."""
    items = await _read(http, read_items)
    if any(isinstance(item, FunctionOutputItem) for item in items):
        history = _found(await http.app[STORE].conversation_history(*_named(http)))
        await http.app[GATEWAY].try_offload(known_visitor(http).holder, _check_calls, history, items)
    records = kept(items)
    with _storing():
        _found(await http.app[STORE].add_items(*_named(http), records))
    return _json(msgspec.json.encode(item_list(records, has_more=False)))


async def list_items(http: web.Request) -> web.Response:
    """GET /v1/conversations/{id}/items."""
    query = page_query(http)
    owner, conversation_id = _entered(http)
    try:
        page = await http.app[STORE].conversation_items(
            owner, conversation_id, after=query.after, limit=query.limit, order=query.order
        )
    except UnknownItemError:
        raise ApiError(ErrorKind.NOT_FOUND, "There is no item with this id.", param="after") from None
    found = _found(page)
    return _json(msgspec.json.encode(item_list(found.items, has_more=found.has_more)))


async def retrieve_item(http: web.Request) -> web.Response:
    """GET /v1/conversations/{id}/items/{item_id}."""
    item = await http.app[STORE].item(*_entered(http), http.match_info["item_id"])
    return _json(_found(item, "item").body)


async def delete_item(http: web.Request) -> web.Response:
    """DELETE /v1/conversations/{id}/items/{item_id}."""
    owner, conversation_id = _entered(http)
    _found(await http.app[STORE].item(owner, conversation_id, http.match_info["item_id"]), "item")
    await http.app[RESPONSES].forget_conversation(known_visitor(http), conversation_id)
    left = await http.app[STORE].delete_item(owner, conversation_id, http.match_info["item_id"])
    return _conversation(_found(left, "item"))


def _check_calls(history: Sequence[ItemRecord], items: Sequence[Item]) -> None:
    check_calls(decoded(history), items, "items")


# ---- around them -------------------------------------------------------------------------------


def _named(http: web.Request) -> tuple[str, str]:
    """Whose conversation it is to be, and which."""
    return known_visitor(http).tenant.owner, http.match_info["id"]


def _entered(http: web.Request) -> tuple[str, str]:
    """The same, of a call without a body, which is counted. Raises LimitError."""
    known_visitor(http).count_request()
    return _named(http)


async def _read(http: web.Request, read: Callable[[bytes], T]) -> T:
    """What the body says. Raises ApiError."""
    gateway, visitor = http.app[GATEWAY], known_visitor(http)
    async with gateway.bodies.read(http, visitor.holder) as body:
        visitor.count_request()
        return await gateway.try_offload(visitor.holder, read, body)


@contextmanager
def _storing() -> Iterator[None]:
    """Tells a client what the store cannot do. Raises ApiError."""
    try:
        yield
    except ConversationFullError:
        raise bad_request("items", "The conversation would have more items than one may have.") from None
    except StateFullError:
        raise ApiError(
            ErrorKind.HISTORY_TOO_LARGE,
            "The conversation would be larger than this server keeps (--state-size).",
            param="items",
        ) from None


def _found(value: T | None, what: str = "conversation") -> T:
    if value is None:
        raise _not_found(what)
    return value


def _not_found(what: str = "conversation") -> ApiError:
    return ApiError(ErrorKind.NOT_FOUND, f"There is no {what} with this id.", param=f"{what}_id")


def _conversation(record: ConversationRecord | None) -> web.Response:
    found = _found(record)
    return _json(encode_conversation(found.id, found.created_at, found.metadata))


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
