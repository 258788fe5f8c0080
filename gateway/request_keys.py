"""Typed keys of what hangs on an aiohttp application and on a request."""

from __future__ import annotations

import re
import uuid

from aiohttp import web

from gateway.state import Gateway
from gateway.tenant_register import Visitor
from gateway.tenants import KeyDigest

GATEWAY = web.AppKey("tidegate_gateway", Gateway)
REQUEST_ID_HEADER = "x-request-id"
_REQUEST_ID = web.RequestKey("tidegate_request_id", str)
_VISITOR = web.RequestKey("tidegate_visitor", Visitor)
_KEY = web.RequestKey("tidegate_key", bytes)
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def assign_request_id(request: web.Request) -> str:
    """The client's own id if it is harmless in a header and a log line, else a new one."""
    given = request.headers.get(REQUEST_ID_HEADER, "")
    request_id = given if _SANE_ID.fullmatch(given) else new_request_id()
    request[_REQUEST_ID] = request_id
    return request_id


def assign_visitor(request: web.Request, visitor: Visitor, key: KeyDigest) -> None:
    """``key`` is what the visitor was known by."""
    request[_VISITOR] = visitor
    request[_KEY] = key


def new_request_id() -> str:
    return uuid.uuid4().hex


def visitor_of(request: web.Request) -> Visitor | None:
    """Who sent it; None where that makes no difference, or before it was found out."""
    visitor: Visitor | None = request.get(_VISITOR)
    return visitor


def key_of(request: web.Request) -> KeyDigest:
    """What its visitor was known by."""
    return KeyDigest(request[_KEY])


def request_id_of(request: web.Request) -> str:
    request_id: str = request.get(_REQUEST_ID, "unknown")
    return request_id
