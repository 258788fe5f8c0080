"""/openapi.json: every path of one server, what it takes, and all that it can answer. OpenAPI 3.1.

Built once, at the start; decides nothing. Bodies are described from the wire structs and the notes on their
fields, errors from the table in ``errors.py``; which path has which stands in ``operations.py``.
``tests/gateway/test_openapi.py`` compares the paths with the router's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from types import UnionType

from gateway.errors import TABLE, Error, ErrorKind
from gateway.limits import RATE_LIMIT_HEADERS
from gateway.openai.model import ModelContext
from gateway.openai.notes import Figure
from gateway.openai.ranges import MAX_N
from gateway.openai.schemas import Hint, Schema, component_schemas, ref
from gateway.operations import (
    ANYWHERE,
    EVENTS,
    JSON,
    OPERATIONS,
    PATH_PARAMETERS,
    QUERY_PARAMETERS,
    Access,
    Operation,
)

_OPENAPI = "3.1.1"
_DESCRIPTION = """\
An OpenAI-compatible API. Parameters that are not listed are refused by name. A path that does not exist is \
answered 404, a method that a path does not take 405, each with an error like any other."""


@dataclass(frozen=True, slots=True)
class About:
    """What the document says of one server beside its model."""

    version: str
    max_body_bytes: int
    needs_key: bool
    has_admin_key: bool
    has_web: bool


def document(model: ModelContext, about: About) -> Schema:
    """The whole of it, as JSON values."""
    operations = [op for op in OPERATIONS if _is_there(op, about)]
    paths: Schema = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, about)
    return {
        "openapi": _OPENAPI,
        "info": {
            "title": "tidegate",
            "version": about.version,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(operations, model),
            "headers": _HEADERS,
            "parameters": _named_parameters(operations, model),
            "securitySchemes": {
                access.value: {"type": "http", "scheme": "bearer"}
                for access in (Access.API_KEY, Access.ADMIN_KEY)
                if _is_locked(access, about)
            },
        },
    }


def _schemas(operations: Iterable[Operation], model: ModelContext) -> Schema:
    figures = {
        Figure.MODEL_NAMES: [*model.names, None],
        Figure.WINDOW: model.window,
        Figure.LAST_TOKEN_ID: model.vocab_size - 1,
        Figure.MAX_CHOICES: min(MAX_N, model.max_num_seqs),
    }
    asked = [operation.body for operation in operations if operation.body is not None]
    answered: list[Hint] = [Error]
    for operation in operations:
        answered += [answer for answer in operation.answers.values() if not isinstance(answer, dict)]
        answered += [operation.chunk] if operation.chunk is not None else []
    return component_schemas(asked, answered, figures)


def _named_parameters(operations: Iterable[Operation], model: ModelContext) -> Schema:
    named = {
        "requestId": _REQUEST_ID,
        "modelName": _model_name(model),
        **PATH_PARAMETERS,
        **QUERY_PARAMETERS,
    }
    used = {name for operation in operations for name in _parameters(operation)}
    return {name: told for name, told in named.items() if name in used}


def _is_there(operation: Operation, about: About) -> bool:
    has_key = about.has_admin_key or operation.access is not Access.ADMIN_KEY
    return has_key and (about.has_web or not operation.is_of_page)


def _is_locked(access: Access, about: About) -> bool:
    return about.needs_key if access is Access.API_KEY else access is Access.ADMIN_KEY and about.has_admin_key


# ---- one operation -----------------------------------------------------------------------------


def _operation(operation: Operation, about: About) -> Schema:
    told: Schema = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in _parameters(operation)],
        "responses": dict(sorted(_responses(operation, about).items())),
    }
    if operation.body is not None:
        told["requestBody"] = {
            "description": f"At most {about.max_body_bytes} bytes.",
            "required": True,
            "content": {JSON: {"schema": ref(operation.body)}},
        }
    if _is_locked(operation.access, about):
        told["security"] = [{operation.access.value: []}]
    return told


def _operation_id(operation: Operation) -> str:
    words = "".join(char if char.isalnum() else " " for char in operation.path).split()
    return "_".join([operation.method, *words])


def _parameters(operation: Operation) -> Iterator[str]:
    yield "requestId"
    for name in re.findall(r"\{(\w+)\}", operation.path):
        yield "modelName" if name == "name" else name
    yield from operation.query


def _responses(operation: Operation, about: About) -> Schema:
    headers = ["x-request-id"]
    if about.needs_key and operation.access is Access.API_KEY:
        headers += RATE_LIMIT_HEADERS
    kinds = [*operation.failures, *ANYWHERE]
    if _is_locked(operation.access, about):
        kinds.append(ErrorKind.UNAUTHORIZED)
    failures: dict[int, list[ErrorKind]] = {}
    for kind in kinds:
        failures.setdefault(TABLE[kind].status, []).append(kind)
    return {
        str(status): _response(operation, status, failures.get(status, []), headers)
        for status in {*operation.answers, *failures}
    }


def _response(operation: Operation, status: int, kinds: list[ErrorKind], headers: list[str]) -> Schema:
    """What one status can mean: the operation's own answer, one of the failures, or for some either."""
    if status == HTTPStatus.SWITCHING_PROTOCOLS:
        return {"description": "A WebSocket.", "headers": _headers(headers[:1]), "content": {}}
    content: Schema = {}
    meanings = [kind.value.replace("_", " ") for kind in kinds]
    schemas = [_failure(kinds)] if kinds else []
    if (answer := operation.answers.get(status)) is not None:
        meanings.insert(0, "success" if status < 400 else "no success, for the reason given")
        schema = answer if isinstance(answer, dict) else ref(answer)
        schemas.insert(0, _snapshot(schema) if operation.media_type == EVENTS else schema)
        if operation.chunk is not None:
            is_typed = isinstance(operation.chunk, UnionType)
            content[EVENTS] = {"schema": (_typed_event if is_typed else _event)(operation.chunk)}
            headers = headers if is_typed else [*headers, "x-tidegate-max-tokens-clamped"]
    media_type = JSON if answer is None else operation.media_type
    content[media_type] = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
    return {
        "description": f"{', '.join(meanings).capitalize()}.",
        "headers": _headers([*headers, *_HEADERS_OF.get(status, ())]),
        "content": content,
    }


def _failure(kinds: list[ErrorKind]) -> Schema:
    """An error, with the types and codes of all that it can be."""
    shapes = [TABLE[kind] for kind in kinds]
    narrowed = {
        "type": {"enum": sorted({shape.type for shape in shapes})},
        "code": {"enum": sorted({shape.code for shape in shapes})},
    }
    return {"allOf": [ref(Error), {"properties": {"error": {"properties": narrowed}}}]}


def _event(chunk: Hint) -> Schema:
    """One event of a stream, as its fields: chunks, perhaps an error, and the end mark."""
    payload = {
        "type": "string",
        "contentMediaType": JSON,
        "contentSchema": {"anyOf": [ref(chunk), ref(Error)]},
    }
    return {
        "description": "With 'stream': true. Chunks, then [DONE]; after a failure, an error and [DONE].",
        "type": "object",
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, payload]}},
        "required": ["data"],
    }


def _typed_event(chunk: Hint) -> Schema:
    """The same where events have types, and the last one needs no mark."""
    return {
        "description": "With 'stream': true. Events numbered from 0; the last says how the response ended.",
        "type": "object",
        "properties": {
            "event": {"description": "The 'type' of the data.", "type": "string"},
            "data": {"type": "string", "contentMediaType": JSON, "contentSchema": ref(chunk)},
        },
        "required": ["event", "data"],
    }


def _snapshot(schema: Schema) -> Schema:
    """One event of a feed, as its fields."""
    return {
        "description": "An event for each snapshot that differs from the one before, until the client goes.",
        "type": "object",
        "properties": {"data": {"type": "string", "contentMediaType": JSON, "contentSchema": schema}},
        "required": ["data"],
    }


# ---- headers and parameters --------------------------------------------------------------------

_WHOLE_NUMBER = {"type": "integer", "minimum": 1}
_AMOUNT: Schema = {"description": "If the key has such a limit.", "schema": {"type": "integer", "minimum": 0}}
_RESET: Schema = {
    "description": "Until nothing of it is in use, if the key has such a limit.",
    "schema": {"type": "string", "pattern": "^([0-9]+ms|([0-9]+m)?[0-9.]+s)$"},
}
_HEADERS: Schema = {
    "x-request-id": {
        "description": "The client's own if it sent a usable one.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:/+=-]{1,128}$"},
    },
    "x-tidegate-max-tokens-clamped": {
        "description": "The cap in force, if 'max_tokens' was named and did not fit.",
        "schema": _WHOLE_NUMBER,
    },
    "Retry-After": {"description": "Seconds, when it makes sense to come back.", "schema": _WHOLE_NUMBER},
    "retry-after-ms": {"description": "The same, in milliseconds.", "schema": _WHOLE_NUMBER},
    **{name: _RESET if "-reset-" in name else _AMOUNT for name in RATE_LIMIT_HEADERS},
    "WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}},
    "Upgrade": {"required": True, "schema": {"const": "websocket"}},
}
_RETRY = ("Retry-After", "retry-after-ms")
_HEADERS_OF = {401: ("WWW-Authenticate",), 409: _RETRY, 426: ("Upgrade",), 429: _RETRY, 503: _RETRY}
_REQUEST_ID: Schema = {
    "name": "x-request-id",
    "in": "header",
    "description": "Told back and logged, if it is usable; else the server makes one.",
    "schema": {"type": "string"},
}


def _model_name(model: ModelContext) -> Schema:
    schema = {"type": "string", "enum": list(model.names)}
    return {"name": "name", "in": "path", "required": True, "schema": schema}


def _headers(names: Iterable[str]) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
