"""Typed keys of what hangs on an aiohttp application and on a request."""

from __future__ import annotations

import hashlib
import re
import uuid

from aiohttp import web

from gateway.state import Gateway

GATEWAY = web.AppKey("tidegate_gateway", Gateway)
REQUEST_ID_HEADER = "x-request-id"
_REQUEST_ID = web.RequestKey("tidegate_request_id", str)
_TENANT = web.RequestKey("tidegate_tenant", bytes)
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def assign_request_id(request: web.Request) -> str:
    """The client's own id if it is harmless in a header and a log line, else a new one."""
    given = request.headers.get(REQUEST_ID_HEADER, "")
    request_id = given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex
    request[_REQUEST_ID] = request_id
    return request_id


def assign_tenant(request: web.Request, api_key: str) -> None:
    """Every API key is a tenant of its own: what one computes, another never finds in the cache."""
    request[_TENANT] = hashlib.blake2s(api_key.encode()).digest()


def tenant_of(request: web.Request) -> bytes:
    """Of an authenticated request; empty on a server without keys."""
    tenant: bytes = request.get(_TENANT, b"")
    return tenant


def request_id_of(request: web.Request) -> str:
    request_id: str = request.get(_REQUEST_ID, "unknown")
    return request_id
