"""The web application: routes, what surrounds every handler, and the listening socket.

Runs on the event loop. ``serve`` is the whole life of a gateway: open, listen, wait, drain, close.
Handlers are cancelled when their client goes away, which aiohttp does only when told to. Every answer
carries a request id and the headers that keep proxies from buffering it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from engine.client import Engine
from gateway import handlers, probes, web_handlers, websocket_handlers
from gateway.authentication import TIDE_PATH, WEBSOCKET_PATH, authenticate
from gateway.connection import Connection
from gateway.cors import is_preflight
from gateway.error_answers import INTERNAL, SERVER_NAME, error_response, from_refusal
from gateway.errors import ApiError
from gateway.request_body import check_expectation, is_owed_a_body
from gateway.request_keys import GATEWAY, REQUEST_ID_HEADER, request_id_of, visitor_of
from gateway.responses import conversations
from gateway.responses import handlers as responses
from gateway.responses.app_keys import RESPONSES, STORE
from gateway.responses.service import ResponseService
from gateway.responses.store import StateStore
from gateway.state import Gateway, GatewaySettings, open_gateway
from gateway.tenant_register import TenantRegister

log = logging.getLogger("tidegate.gateway")

_BACKLOG = 1024
_MAX_DIGITS = 640  # of numbers in bodies; the least that Python allows. Longer ones cost the square of it


def build_app(gateway: Gateway, store: StateStore) -> web.Application:
    """Routes and middleware. Run it with ``running_site``, which sets what they count on."""
    app = web.Application(middlewares=[_surround])
    app[GATEWAY] = gateway
    app[STORE] = store
    app[RESPONSES] = ResponseService(gateway, store)
    app.on_cleanup.append(_close_responses)
    app.on_response_prepare.append(_add_headers)
    for path, handler in (
        ("/v1/completions", handlers.completions),
        ("/v1/chat/completions", handlers.chat_completions),
        ("/v1/responses", responses.create),
        ("/v1/responses/{id}/cancel", responses.cancel),
        ("/v1/conversations", conversations.create),
        ("/v1/conversations/{id}", conversations.update),
        ("/v1/conversations/{id}/items", conversations.add_items),
        ("/tokenize", handlers.tokenize),
        ("/detokenize", handlers.detokenize),
    ):
        app.router.add_post(path, handler, expect_handler=check_expectation)
    app.router.add_get(WEBSOCKET_PATH, websocket_handlers.connect, allow_head=False)
    app.router.add_post("/v1/tickets", websocket_handlers.ticket, expect_handler=check_expectation)
    app.router.add_get("/v1/responses/{id}", responses.retrieve)
    app.router.add_delete("/v1/responses/{id}", responses.delete)
    app.router.add_get("/v1/responses/{id}/input_items", responses.input_items)
    app.router.add_get("/v1/conversations/{id}", conversations.retrieve)
    app.router.add_delete("/v1/conversations/{id}", conversations.delete)
    app.router.add_get("/v1/conversations/{id}/items", conversations.list_items)
    app.router.add_get("/v1/conversations/{id}/items/{item_id}", conversations.retrieve_item)
    app.router.add_delete("/v1/conversations/{id}/items/{item_id}", conversations.delete_item)
    app.router.add_get("/v1/models", probes.models)
    app.router.add_get("/v1/models/{name:(?s:.+)}", probes.model)
    app.router.add_get("/health", probes.health)
    app.router.add_get("/metrics", probes.metrics)
    app.router.add_get("/version", probes.version)
    app.router.add_get("/openapi.json", probes.openapi)
    if gateway.settings.web:
        app.router.add_get("/", web_handlers.index)
        app.router.add_get("/web/{file:.+}", web_handlers.file)
        app.router.add_get(TIDE_PATH, web_handlers.tide, allow_head=False)
    if gateway.settings.admin_key is not None:
        app.router.add_get("/debug/integrity", probes.integrity)
        app.router.add_get("/debug/kv", probes.kv)
    return app


class _Site(web.BaseSite):
    """Listens on one bound socket for connections of our own kind."""

    def __init__(
        self,
        runner: web.AppRunner,
        gateway: Gateway,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(runner, ssl_context=tls, backlog=_BACKLOG)
        self._gateway = gateway
        self._listener = listener

    @property
    def name(self) -> str:
        return str(self._listener.getsockname())

    async def start(self) -> None:
        await super().start()
        server, loop = self._runner.server, asyncio.get_running_loop()
        assert server is not None
        handshake_s = self._gateway.settings.connection_limits.head_timeout_s
        self._server = await loop.create_server(
            lambda: Connection(server, self._gateway, loop),
            sock=self._listener,
            ssl=self._ssl_context,
            ssl_handshake_timeout=handshake_s if self._ssl_context else None,
            ssl_shutdown_timeout=self._gateway.settings.linger_s if self._ssl_context else None,
            backlog=self._backlog,
        )


@asynccontextmanager
async def running_site(
    gateway: Gateway,
    listeners: Sequence[socket.socket],
    tls: ssl.SSLContext | None = None,
    store: StateStore | None = None,
) -> AsyncIterator[None]:
    """Listen on bound sockets. Leaving closes every connection, and the store if it was not open yet."""
    own = await asyncio.to_thread(StateStore.open, gateway.settings.state) if store is None else store
    runner = web.AppRunner(
        build_app(gateway, own), handler_cancellation=True, handle_signals=False, shutdown_timeout=1.0
    )
    await runner.setup()
    try:
        for listener in listeners:
            await _Site(runner, gateway, listener, tls).start()
        yield
    finally:
        await runner.cleanup()
        if store is None:
            await asyncio.to_thread(own.close)


async def _close_responses(app: web.Application) -> None:
    await app[RESPONSES].close()


async def serve(
    engine: Engine,
    settings: GatewaySettings,
    listeners: Sequence[socket.socket],
    stop: asyncio.Event,
    on_started: Callable[[], None] = lambda: None,
    hurry: asyncio.Event | None = None,
    tenants: TenantRegister | None = None,
    tls: ssl.SSLContext | None = None,
    store: StateStore | None = None,
) -> None:
    """Serve until ``stop`` is set, then drain until ``hurry`` is. The caller closes the engine and the store.

    ``listeners`` are bound already (``gateway.listeners``). ``tenants``: opened already, so that they can be
    reloaded meanwhile; ``store`` too, so that nothing is loaded in vain. Raises UnsupportedTokenizerError.
    """
    sys.set_int_max_str_digits(_MAX_DIGITS)
    gateway = await open_gateway(engine, settings, tenants)
    try:
        async with running_site(gateway, listeners, tls, store):
            on_started()
            await stop.wait()
            await gateway.drain(settings.drain_timeout_s, hurry)
    finally:
        await gateway.close()


# ---- around every handler ----------------------------------------------------------------------


@web.middleware
async def _surround(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Preflights, API key, and one JSON shape for every error."""
    gateway = request.app[GATEWAY]
    try:
        if gateway.cors is not None and is_preflight(request.method, request.headers):
            return web.Response(status=204, headers=gateway.cors.preflight())
        authenticate(request)
        return await handler(request)
    except ApiError as error:
        return error_response(gateway.metrics, error)
    except web.HTTPException as refusal:
        return error_response(gateway.metrics, from_refusal(refusal), refusal)
    except ConnectionResetError:
        raise
    except Exception:
        log.exception("request %s to %r failed", request_id_of(request), request.rel_url.raw_path[:100])
        return error_response(gateway.metrics, INTERNAL)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    gateway, headers = request.app[GATEWAY], response.headers
    headers[REQUEST_ID_HEADER] = request_id_of(request)
    headers.setdefault("Cache-Control", "no-cache")
    headers.setdefault("X-Accel-Buffering", "no")
    headers["Server"] = SERVER_NAME
    visitor = visitor_of(request)
    if visitor is not None:
        headers.update(visitor.rate_limit_headers())
    if gateway.cors is not None:
        headers.update(gateway.cors.headers(request.headers))
    if not response.keep_alive:
        return
    if gateway.draining or is_owed_a_body(request):
        response.force_close()
        headers["Connection"] = "close"
    else:  # a client's pool may keep the connection for so long
        headers["Keep-Alive"] = f"timeout={int(gateway.settings.connection_limits.idle_timeout_s)}"
