"""How one comes to a WebSocket: the upgrade of GET /v1/responses, and the tickets that browsers need for it.

Runs on the event loop. What is wrong is told by an HTTP status, before there is a WebSocket.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
from aiohttp import web

from gateway.authentication import KEY_SUBPROTOCOL, is_upgrade, subprotocols
from gateway.cors import is_same_host
from gateway.errors import ApiError, ErrorKind, shutting_down
from gateway.handlers import known_visitor
from gateway.protocol.ws_events import Resume
from gateway.request_keys import GATEWAY, key_of
from gateway.responses.app_keys import RESPONSES
from gateway.responses.event_log import number_asked_for
from gateway.state import Gateway
from gateway.tickets import TicketAnswer
from gateway.websocket import ResponsesSocket


async def connect(request: web.Request) -> web.StreamResponse:
    """GET /v1/responses, upgraded. Raises ApiError before that."""
    gateway = request.app[GATEWAY]
    if not is_upgrade(request):
        raise ApiError(ErrorKind.UPGRADE_REQUIRED, "Here is a WebSocket; responses are created by POST.")
    _check_origin(request, gateway)
    if gateway.draining:
        raise shutting_down()
    first = _asked_to_resume(request)
    limits, settings = gateway.settings.websocket_limits, gateway.settings
    offered = [name for name in subprotocols(request) if not name.startswith(KEY_SUBPROTOCOL)]
    ws = web.WebSocketResponse(
        timeout=settings.linger_s,
        autoping=False,
        heartbeat=limits.ping_s,
        protocols=offered[:1],
        compress=limits.deflates,
        max_msg_size=settings.max_body_bytes + 1,  # aiohttp takes what is shorter
        writer_limit=0,
    )
    await ws.prepare(request)
    socket = ResponsesSocket(request, ws, request.app[RESPONSES])
    with gateway.sockets.open(socket):
        await socket.run(first)
    return ws


async def ticket(request: web.Request) -> web.Response:
    """POST /v1/tickets."""
    office, visitor = request.app[GATEWAY].tickets, known_visitor(request)
    text = office.issue(key_of(request), visitor.holder, asyncio.get_running_loop().time())
    body = msgspec.json.encode(TicketAnswer(text, int(time.time() + office.ttl_s)))
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})


def _check_origin(request: web.Request, gateway: Gateway) -> None:
    """Browsers let any page open a WebSocket to anywhere, and only say whose page it was."""
    origin = request.headers.get("Origin")
    if origin is None or is_same_host(origin, request.headers.get("Host", "")):
        return
    if gateway.cors is None or not gateway.cors.allows(origin):
        raise ApiError(ErrorKind.FOREIGN_ORIGIN, "Pages of this origin may not connect; see --cors-origin.")


def _asked_to_resume(request: web.Request) -> Resume | None:
    """What the URL asks to be told at once, in the default lane."""
    response_id = request.query.get("response_id")
    if response_id is None:
        return None
    return Resume(response_id, number_asked_for(request.query))
