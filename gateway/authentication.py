"""Finds out who sent a request. Raises 401 where a key is needed and none that is good was given.

Runs on the event loop. ``/debug/`` needs the admin key, the API a tenant's; what is neither is open.
"""

from __future__ import annotations

import hmac

from aiohttp import web

from gateway.errors import ApiError, ErrorKind
from gateway.request_keys import GATEWAY, assign_visitor
from gateway.tenant_register import Visitor
from gateway.tenants import key_bytes

_TENANT_PATHS = ("/v1/", "/tokenize", "/detokenize")


def authenticate(request: web.Request) -> None:
    """Check the key that the path needs; of the API, also remember whose it is."""
    gateway = request.app[GATEWAY]
    admin_key = gateway.settings.admin_key
    if request.path.startswith("/debug/") and admin_key is not None:
        if not hmac.compare_digest(_bearer_token(request), key_bytes(admin_key)):
            raise _unauthorized()
    elif request.path.startswith(_TENANT_PATHS):
        tenant = gateway.tenants.find(_bearer_token(request))
        if tenant is None:
            raise _unauthorized()
        register = gateway.tenants
        visitor = Visitor(tenant, register.holder(tenant), register.account(tenant), gateway.metrics)
        assign_visitor(request, visitor)


def _bearer_token(request: web.Request) -> bytes:
    """What was given as a key; empty, which no key is, if none was."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip().encode("utf-8", errors="surrogateescape") if scheme.lower() == "bearer" else b""


def _unauthorized() -> ApiError:
    return ApiError(ErrorKind.UNAUTHORIZED, "A valid API key is needed, sent as 'Authorization: Bearer KEY'.")
