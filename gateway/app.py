"""The web application: routes, what surrounds every handler, and the listening socket.

Runs on the event loop. ``serve`` is the whole life of a gateway: open, listen, wait, drain, close.
Handlers are cancelled when their client goes away, which aiohttp does only when told to. Every answer
carries a request id and the headers that keep proxies from buffering it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from engine.client import Engine
from gateway import handlers, probes
from gateway.authentication import authenticate
from gateway.errors import ApiError, ErrorKind
from gateway.request_keys import (
    GATEWAY,
    REQUEST_ID_HEADER,
    assign_request_id,
    request_id_of,
    visitor_of,
)
from gateway.state import Gateway, GatewaySettings, open_gateway
from gateway.tenant_register import TenantRegister

log = logging.getLogger("tidegate.gateway")

_BACKLOG = 1024
_MAX_HEADER_BYTES = 16 * 2**10


def build_app(gateway: Gateway) -> web.Application:
    """Routes and middleware. Run it with ``running_site``, which sets what they count on."""
    app = web.Application(middlewares=[_surround])
    app[GATEWAY] = gateway
    app.on_response_prepare.append(_add_headers)
    app.router.add_post("/v1/completions", handlers.completions)
    app.router.add_post("/v1/chat/completions", handlers.chat_completions)
    app.router.add_post("/tokenize", handlers.tokenize)
    app.router.add_post("/detokenize", handlers.detokenize)
    app.router.add_get("/v1/models", probes.models)
    app.router.add_get("/v1/models/{name:.+}", probes.model)
    app.router.add_get("/health", probes.health)
    app.router.add_get("/metrics", probes.metrics)
    app.router.add_get("/version", probes.version)
    if gateway.settings.admin_key is not None:
        app.router.add_get("/debug/integrity", probes.integrity)
        app.router.add_get("/debug/kv", probes.kv)
    return app


@asynccontextmanager
async def running_site(gateway: Gateway, listeners: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Listen on bound sockets. Leaving closes every connection."""
    settings = gateway.settings
    runner = web.AppRunner(
        build_app(gateway),
        handler_cancellation=True,
        handle_signals=False,
        access_log=None,
        keepalive_timeout=settings.idle_connection_s,
        lingering_time=settings.linger_s,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    try:
        for listener in listeners:
            await web.SockSite(runner, listener, backlog=_BACKLOG).start()
        yield
    finally:
        await runner.cleanup()


async def serve(
    engine: Engine,
    settings: GatewaySettings,
    listeners: Sequence[socket.socket],
    stop: asyncio.Event,
    on_started: Callable[[], None] = lambda: None,
    hurry: asyncio.Event | None = None,
    tenants: TenantRegister | None = None,
) -> None:
    """Serve until ``stop`` is set, then drain until ``hurry`` is. The caller closes the engine.

    ``listeners`` are bound already (``gateway.listeners``). ``tenants``: opened already, so that they can be
    reloaded meanwhile. Raises UnsupportedTokenizerError.
    """
    gateway = await open_gateway(engine, settings, tenants)
    try:
        async with running_site(gateway, listeners):
            on_started()
            await stop.wait()
            await gateway.drain(settings.drain_timeout_s, hurry)
    finally:
        await gateway.close()


# ---- around every handler ----------------------------------------------------------------------


@web.middleware
async def _surround(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Request id, API key, and one JSON shape for every error."""
    assign_request_id(request)
    try:
        authenticate(request)
        return await handler(request)
    except ApiError as error:
        return _error_response(error)
    except web.HTTPException as error:
        return _error_response(_from_http(error), error)
    except ConnectionResetError:
        raise
    except Exception:
        log.exception("request %s to %s failed", request_id_of(request), request.path)
        return _error_response(ApiError(ErrorKind.INTERNAL, "The server failed to handle this request."))


def _from_http(error: web.HTTPException) -> ApiError:
    if error.status == 404:
        return ApiError(ErrorKind.NOT_FOUND, "There is nothing at this path.")
    if error.status == 405:
        return ApiError(ErrorKind.METHOD_NOT_ALLOWED, "This path does not take that method.")
    if error.status == 413:
        return ApiError(ErrorKind.BODY_TOO_LARGE, "The body is too large.")
    return ApiError(ErrorKind.BAD_REQUEST, error.reason)


def _error_response(error: ApiError, original: web.HTTPException | None = None) -> web.Response:
    response = web.Response(body=error.body(), status=error.status, content_type="application/json")
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
        response.headers["retry-after-ms"] = str(math.ceil(error.retry_after_s * 1000))
    if error.kind is ErrorKind.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if original is not None and "Allow" in original.headers:
        response.headers["Allow"] = original.headers["Allow"]
    if error.kind in (ErrorKind.SHUTDOWN, ErrorKind.BODY_TOO_LARGE, ErrorKind.BODY_TIMEOUT):
        response.force_close()
    return response


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    headers = response.headers
    headers[REQUEST_ID_HEADER] = request_id_of(request)
    headers.setdefault("Cache-Control", "no-cache")
    headers.setdefault("X-Accel-Buffering", "no")
    headers["Server"] = "tidegate"
    visitor = visitor_of(request)
    if visitor is not None:
        headers.update(visitor.rate_limit_headers())
