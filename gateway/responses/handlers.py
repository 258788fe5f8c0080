"""HTTP handlers of /v1/responses.

Runs on the event loop. A handler only follows a run: when its client goes, the run decides for itself whether
it goes on. What fails before anything was sent is a status; after it the last event says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from gateway.errors import bad_request
from gateway.handlers import known_visitor
from gateway.mailbox import StreamFailedError
from gateway.openai.responses.events import Event
from gateway.openai.responses.shape import DeletedResponse, encode, encode_response
from gateway.protocol import sse
from gateway.request_keys import GATEWAY
from gateway.responses.app_keys import RESPONSES
from gateway.responses.event_log import number_asked_for
from gateway.responses.paging import page_of, page_query
from gateway.responses.run import ResponseRun
from gateway.sse_writer import Patience, SseWriter

_JSON = "application/json"


async def create(http: web.Request) -> web.StreamResponse:
    """POST /v1/responses."""
    gateway, visitor = http.app[GATEWAY], known_visitor(http)
    async with gateway.bodies.read(http, visitor.holder) as body:
        run = await http.app[RESPONSES].create(visitor, body)
    if run.is_streamed:
        return await _streamed(http, run, -1)
    if not run.response.background:
        async for _ in run.follow(in_place=lambda events: True):
            pass
        if run.failure is not None:
            raise run.failure
    return web.Response(body=encode_response(run.response), content_type=_JSON)


async def retrieve(http: web.Request) -> web.StreamResponse:
    """GET /v1/responses/{id}, whole or the rest of its events."""
    service, visitor = http.app[RESPONSES], known_visitor(http)
    response_id = http.match_info["id"]
    starting_after = number_asked_for(http.query)
    if not _flag(http, "stream"):
        if "starting_after" in http.query:
            raise bad_request("starting_after", "'starting_after' goes with 'stream=true' only.")
        return web.Response(body=await service.retrieve(visitor, response_id), content_type=_JSON)
    run = await service.events_of(visitor, response_id)
    return await _streamed(http, run, starting_after)


async def cancel(http: web.Request) -> web.Response:
    """POST /v1/responses/{id}/cancel."""
    service = http.app[RESPONSES]
    body = await service.cancel(known_visitor(http), http.match_info["id"])
    return web.Response(body=body, content_type=_JSON)


async def delete(http: web.Request) -> web.Response:
    """DELETE /v1/responses/{id}."""
    response_id = http.match_info["id"]
    await http.app[RESPONSES].delete(known_visitor(http), response_id)
    return web.Response(body=encode(DeletedResponse(response_id)), content_type=_JSON)


async def input_items(http: web.Request) -> web.Response:
    """GET /v1/responses/{id}/input_items."""
    query = page_query(http)
    items = await http.app[RESPONSES].input_items(known_visitor(http), http.match_info["id"])
    return web.Response(body=encode(page_of(items, query)), content_type=_JSON)


async def _streamed(http: web.Request, run: ResponseRun, starting_after: int) -> web.StreamResponse:
    settings = http.app[GATEWAY].settings
    writer = SseWriter(http, Patience(settings.stream_limits.pause_timeout_s), {})

    def send_now(events: Sequence[Event]) -> bool:
        if is_clear := writer.is_clear():
            writer.send_now(b"".join(map(_encoded, events)))
        return is_clear

    follower = run.follow(starting_after, settings.keepalive_s, send_now)
    try:
        async for events in follower:
            await writer.send(b"".join(map(_encoded, events)) or sse.KEEP_ALIVE)
        if not writer.started:
            await writer.send(sse.KEEP_ALIVE)  # there was nothing more to tell
        await writer.finish()
    except StreamFailedError:
        if http.transport is not None:
            http.transport.abort()
    except ConnectionResetError:
        pass  # the client went; the run sees that nobody follows it
    finally:
        await follower.aclose()
        await writer.close()
    return writer.response


def _encoded(event: Event) -> bytes:
    return sse.typed_event(event.type, event.data)


def _flag(http: web.Request, name: str) -> bool:
    given = http.query.get(name, "false")
    if given not in ("true", "false"):
        raise bad_request(name, f"'{name}' must be true or false.")
    return given == "true"
