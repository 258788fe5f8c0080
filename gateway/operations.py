"""What every path takes and can answer, for /openapi.json.

Data only. ``tests/gateway/test_openapi.py`` compares the paths with the router's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.errors import ErrorKind
from gateway.openai.chat import ChatWire
from gateway.openai.chat_answers import ChatAnswer, ChatChunk
from gateway.openai.completions import Completion, CompletionWire
from gateway.openai.responses.conversations import (
    Conversation,
    ConversationUpdateWire,
    ConversationWire,
    DeletedConversation,
    ItemsWire,
)
from gateway.openai.responses.events import AnyEvent
from gateway.openai.responses.items import Item
from gateway.openai.responses.shape import DeletedResponse, ItemList, ResponseObject
from gateway.openai.responses.wire import ResponseWire
from gateway.openai.schemas import Hint, Schema, Struct
from gateway.openai.tokens import Detokenized, DetokenizeWire, Tokenized, TokenizeWire
from gateway.probe_answers import Health, Integrity, KvPlaces, ModelCard, ModelList, Version
from gateway.responses.event_log import MAX_EVENT_NUMBER
from gateway.responses.paging import DEFAULT_PAGE, MAX_PAGE
from gateway.tickets import TicketAnswer
from gateway.tide import TideSnapshot

JSON, TEXT, EVENTS = "application/json", "text/plain", "text/event-stream"
_HTML, _ANY = "text/html", "*/*"


class Access(enum.Enum):
    """Who may call. The value names the security scheme."""

    OPEN = None
    API_KEY = "apiKey"
    ADMIN_KEY = "adminKey"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. ``failures`` are its own, beside a wrong key and what can fail anywhere.

    ``answers``: bodies by status, a schema or the struct, or several, whose schema it is. ``chunk``: what the
    events of a streamed answer carry; of several they have types. ``query``: names of what the URL may say.
    ``is_of_page``: it is there with the chat page only.
    """

    method: str
    path: str
    summary: str
    answers: Mapping[int, Hint | Schema]
    access: Access = Access.API_KEY
    body: Struct | None = None
    chunk: Hint | None = None
    query: tuple[str, ...] = ()
    media_type: str = JSON
    failures: tuple[ErrorKind, ...] = ()
    is_of_page: bool = False


ANYWHERE = (
    ErrorKind.BAD_HTTP, ErrorKind.HEAD_TIMEOUT, ErrorKind.URL_TOO_LONG, ErrorKind.HEADERS_TOO_LARGE,
    ErrorKind.EXPECTATION_FAILED, ErrorKind.TOO_MANY_CONNECTIONS, ErrorKind.INTERNAL,
)  # fmt: skip
_BODY_ERRORS = (
    ErrorKind.BAD_REQUEST, ErrorKind.UNSUPPORTED, ErrorKind.CONTEXT_LENGTH, ErrorKind.MODEL_NOT_FOUND,
    ErrorKind.BODY_TIMEOUT, ErrorKind.BODY_TOO_LARGE, ErrorKind.UNSUPPORTED_MEDIA_TYPE, ErrorKind.BUSY,
    ErrorKind.REQUEST_LIMIT,
)  # fmt: skip
_ENGINE_ERRORS = (ErrorKind.ENGINE_DEAD, ErrorKind.ENGINE_BUSY)
_GENERATION_ERRORS = (
    *_BODY_ERRORS, *_ENGINE_ERRORS, ErrorKind.REQUEST_FAILED, ErrorKind.SHUTDOWN, ErrorKind.TOO_SLOW,
    ErrorKind.TOKEN_LIMIT, ErrorKind.ABOVE_LIMIT,
)  # fmt: skip
_STATE_ERRORS = (
    ErrorKind.STATE_FAILED, ErrorKind.STATE_BUSY, ErrorKind.SHUTDOWN, ErrorKind.NOT_FOUND,
    ErrorKind.REQUEST_LIMIT,
)  # fmt: skip
_STATE_BODY_ERRORS = (
    *_STATE_ERRORS, ErrorKind.BAD_REQUEST, ErrorKind.UNSUPPORTED, ErrorKind.HISTORY_TOO_LARGE,
    ErrorKind.BODY_TIMEOUT, ErrorKind.BODY_TOO_LARGE, ErrorKind.UNSUPPORTED_MEDIA_TYPE, ErrorKind.BUSY,
)  # fmt: skip
_RESPONSE_ERRORS = (
    *_GENERATION_ERRORS, *_STATE_ERRORS, ErrorKind.PREVIOUS_NOT_FOUND, ErrorKind.CONFLICT,
    ErrorKind.HISTORY_TOO_LARGE,
)  # fmt: skip
_PAGE = ("after", "limit", "order")

OPERATIONS = (
    Operation(
        "post", "/v1/chat/completions", "Answer a chat.",
        {200: ChatAnswer}, body=ChatWire, chunk=ChatChunk, failures=_GENERATION_ERRORS,
    ),
    Operation(
        "post", "/v1/completions", "Continue prompts.",
        {200: Completion}, body=CompletionWire, chunk=Completion, failures=_GENERATION_ERRORS,
    ),
    Operation(
        "post", "/v1/responses", "Answer what was said, and what was said before it.",
        {200: ResponseObject}, body=ResponseWire, chunk=AnyEvent, failures=_RESPONSE_ERRORS,
    ),
    Operation(
        "get", "/v1/responses", "The same over a WebSocket, for many turns at once.",
        {101: {}}, query=("ticket", "response_id", "starting_after"),
        failures=(
            ErrorKind.UPGRADE_REQUIRED, ErrorKind.FOREIGN_ORIGIN, ErrorKind.BAD_REQUEST, ErrorKind.SHUTDOWN,
        ),
    ),
    Operation(
        "post", "/v1/tickets", "What a browser opens a WebSocket with instead of its key, once.",
        {200: TicketAnswer}, failures=(ErrorKind.BUSY,),
    ),
    Operation(
        "get", "/v1/responses/{id}", "A response as it stands, or the rest of its events.",
        {200: ResponseObject}, chunk=AnyEvent, query=("stream", "starting_after", "include"),
        failures=(*_STATE_ERRORS, ErrorKind.BAD_REQUEST),
    ),
    Operation(
        "post", "/v1/responses/{id}/cancel", "End a response that is being made.",
        {200: ResponseObject}, failures=_STATE_ERRORS,
    ),
    Operation(
        "delete", "/v1/responses/{id}", "Delete it, and the KV of what it said.",
        {200: DeletedResponse}, failures=_STATE_ERRORS,
    ),
    Operation(
        "get", "/v1/responses/{id}/input_items", "A page of what the model was given for it.",
        {200: ItemList}, query=(*_PAGE, "include"), failures=(*_STATE_ERRORS, ErrorKind.BAD_REQUEST),
    ),
    Operation(
        "post", "/v1/conversations", "Make a conversation.",
        {200: Conversation}, body=ConversationWire, failures=_STATE_BODY_ERRORS,
    ),
    Operation(
        "get", "/v1/conversations/{id}", "A conversation.", {200: Conversation}, failures=_STATE_ERRORS
    ),
    Operation(
        "post", "/v1/conversations/{id}", "Give it other metadata.",
        {200: Conversation}, body=ConversationUpdateWire, failures=_STATE_BODY_ERRORS,
    ),
    Operation(
        "delete", "/v1/conversations/{id}", "Delete it with all its items.",
        {200: DeletedConversation}, failures=_STATE_ERRORS,
    ),
    Operation(
        "post", "/v1/conversations/{id}/items", "Add items at its end.",
        {200: ItemList}, body=ItemsWire, query=("include",), failures=_STATE_BODY_ERRORS,
    ),
    Operation(
        "get", "/v1/conversations/{id}/items", "A page of its items.",
        {200: ItemList}, query=(*_PAGE, "include"), failures=(*_STATE_ERRORS, ErrorKind.BAD_REQUEST),
    ),
    Operation(
        "get", "/v1/conversations/{id}/items/{item_id}", "One of its items.",
        {200: Item}, query=("include",), failures=_STATE_ERRORS,
    ),
    Operation(
        "delete", "/v1/conversations/{id}/items/{item_id}", "Delete one of its items.",
        {200: Conversation}, failures=_STATE_ERRORS,
    ),
    Operation("get", "/v1/models", "The models that are served.", {200: ModelList}),
    Operation(
        "get", "/v1/models/{name}", "One of them.", {200: ModelCard}, failures=(ErrorKind.MODEL_NOT_FOUND,)
    ),
    Operation(
        "post", "/tokenize", "Token ids of a prompt or of a chat.",
        {200: Tokenized}, body=TokenizeWire, failures=_BODY_ERRORS,
    ),
    Operation(
        "post", "/detokenize", "The text of token ids.",
        {200: Detokenized}, body=DetokenizeWire, failures=_BODY_ERRORS,
    ),
    Operation(
        "get", "/health", "Whether the server makes progress.", {200: Health, 503: Health}, Access.OPEN
    ),
    Operation(
        "get", "/metrics", "Figures for Prometheus.", {200: {"type": "string"}}, Access.OPEN, media_type=TEXT
    ),
    Operation("get", "/version", "The version of the server.", {200: Version}, Access.OPEN),
    Operation("get", "/openapi.json", "This document.", {200: {"type": "object"}}, Access.OPEN),
    Operation(
        "get", "/v1/tide", "Where the KV of the caller's sessions is, as it changes.",
        {200: TideSnapshot}, media_type=EVENTS, failures=(ErrorKind.BUSY, ErrorKind.SHUTDOWN),
        is_of_page=True,
    ),
    Operation(
        "get", "/", "The chat page.", {200: {"type": "string"}}, Access.OPEN, media_type=_HTML,
        is_of_page=True,
    ),
    Operation(
        "get", "/web/{file}", "One of its files.", {200: {"type": "string"}}, Access.OPEN, media_type=_ANY,
        failures=(ErrorKind.NOT_FOUND,), is_of_page=True,
    ),
    Operation(
        "get", "/debug/kv", "What the tiers hold, and where each request's blocks are.",
        {200: KvPlaces}, Access.ADMIN_KEY, failures=_ENGINE_ERRORS,
    ),
    Operation(
        "get", "/debug/integrity", "A recount of all requests and blocks.",
        {200: Integrity}, Access.ADMIN_KEY, failures=_ENGINE_ERRORS,
    ),
)  # fmt: skip


def _in_path(name: str, what: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "description": what, "schema": {"type": "string"}}


def _in_query(name: str, what: str, **schema: object) -> Schema:
    return {"name": name, "in": "query", "description": what, "schema": schema}


PATH_PARAMETERS = {
    "id": _in_path("id", "Of the object."),
    "item_id": _in_path("item_id", "Of the item."),
    "file": _in_path("file", "Its path under /web/."),
}
QUERY_PARAMETERS = {
    "after": _in_query("after", "The last item of the page before.", type="string"),
    "limit": _in_query(
        "limit", "Items of a page.", type="integer", minimum=1, maximum=MAX_PAGE, default=DEFAULT_PAGE
    ),
    "order": _in_query("order", "Oldest or newest first.", enum=["asc", "desc"], default="desc"),
    "stream": _in_query("stream", "Its events instead.", type="boolean", default=False),
    "starting_after": _in_query(
        "starting_after",
        "With 'stream': the number of the last event that came.",
        type="integer",
        minimum=-1,
        maximum=MAX_EVENT_NUMBER,
    ),
    "ticket": _in_query("ticket", "From /v1/tickets, in place of a key.", type="string"),
    "response_id": _in_query(
        "response_id", "A response to be told at once, in the default lane.", type="string"
    ),
    "include": _in_query("include", "Accepted without effect.", type="array", items={"type": "string"}),
}
