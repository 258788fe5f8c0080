"""Finds out who sent a request. Raises 401 where a key is needed and none that is good was given.

Runs on the event loop. ``/debug/`` needs the admin key, the API a tenant's; what is neither is open. A key
comes as a bearer token; for a WebSocket or an event source, to which browsers add no header, also as a
ticket or a subprotocol.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterator

from aiohttp import web

from gateway.errors import ApiError, ErrorKind
from gateway.request_keys import GATEWAY, assign_visitor
from gateway.state import Gateway
from gateway.tenant_register import Visitor
from gateway.tenants import KeyDigest, digest_of, key_bytes

WEBSOCKET_PATH = "/v1/responses"
TIDE_PATH = "/v1/tide"
KEY_SUBPROTOCOL = "openai-insecure-api-key."
_TENANT_PATHS = ("/v1/", "/tokenize", "/detokenize")


def authenticate(request: web.Request) -> None:
    """Check the key that the path needs; of the API, also remember whose it is."""
    gateway = request.app[GATEWAY]
    admin_key = gateway.settings.admin_key
    if request.path.startswith("/debug/") and admin_key is not None:
        if not hmac.compare_digest(_bearer_token(request), key_bytes(admin_key)):
            raise unauthorized()
    elif request.path.startswith(_TENANT_PATHS):
        key = _given_key(request, gateway)
        visitor = None if key is None else visitor_with(gateway, key)
        if key is None or visitor is None:
            raise unauthorized()
        assign_visitor(request, visitor, key)


def visitor_with(gateway: Gateway, key: KeyDigest) -> Visitor | None:
    """Whoever the key belongs to at present; None if that is nobody."""
    register = gateway.tenants
    tenant = register.find(key)
    if tenant is None:
        return None
    return Visitor(tenant, register.holder(tenant), register.account(tenant), gateway.metrics)


def is_upgrade(request: web.Request) -> bool:
    """Whether a WebSocket is asked for."""
    return request.method == "GET" and request.headers.get("Upgrade", "").strip().lower() == "websocket"


def subprotocols(request: web.Request) -> Iterator[str]:
    """Those that the client offers."""
    for header in request.headers.getall("Sec-WebSocket-Protocol", ()):
        yield from filter(None, (name.strip() for name in header.split(",")))


def unauthorized() -> ApiError:
    return ApiError(ErrorKind.UNAUTHORIZED, "A valid API key is needed, sent as 'Authorization: Bearer KEY'.")


def _given_key(request: web.Request, gateway: Gateway) -> KeyDigest | None:
    """None for a ticket that is not good."""
    is_socket = request.path == WEBSOCKET_PATH and is_upgrade(request)
    may_be_elsewhere = is_socket or request.path == TIDE_PATH
    if "Authorization" in request.headers or not may_be_elsewhere:
        return digest_of(_bearer_token(request))
    ticket = request.query.get("ticket")
    if ticket is not None:
        return gateway.tickets.redeem(ticket, asyncio.get_running_loop().time())
    keys = (name for name in subprotocols(request) if name.startswith(KEY_SUBPROTOCOL))
    given = next(keys, KEY_SUBPROTOCOL).removeprefix(KEY_SUBPROTOCOL)
    return digest_of(given.encode(errors="surrogateescape"))


def _bearer_token(request: web.Request) -> bytes:
    """What was given as a key; empty, which no key is, if none was."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip().encode("utf-8", errors="surrogateescape") if scheme.lower() == "bearer" else b""
