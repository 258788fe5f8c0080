"""HTTP handlers of the chat page: its files, and the feed of its tide map.

Runs on the event loop. The files need no key, for the page asks for it; the feed does.
"""

from __future__ import annotations

from aiohttp import ETag, web

from gateway.errors import ApiError, ErrorKind, shutting_down
from gateway.handlers import known_visitor
from gateway.mailbox import StreamFailedError
from gateway.protocol import sse
from gateway.request_keys import GATEWAY
from gateway.sse_writer import Patience, SseWriter
from gateway.tide_feed import Watcher
from gateway.web_page import INDEX


async def index(http: web.Request) -> web.Response:
    """GET /."""
    return _file(http, INDEX)


async def file(http: web.Request) -> web.Response:
    """GET /web/{file}."""
    return _file(http, http.match_info["file"])


def _file(http: web.Request, path: str) -> web.Response:
    found = http.app[GATEWAY].web_files.get(path)
    if found is None:
        raise ApiError(ErrorKind.NOT_FOUND, "There is nothing at this path.")
    known = http.if_none_match or ()
    is_same = any(tag.value in (found.tag, "*") for tag in known)
    answer = web.Response(status=304) if is_same else web.Response(body=found.body)
    answer.headers.update(found.headers)
    answer.etag = ETag(found.tag)
    return answer


async def tide(http: web.Request) -> web.StreamResponse:
    """GET /v1/tide: snapshots as events, until the client goes or the server leaves."""
    gateway, visitor = http.app[GATEWAY], known_visitor(http)
    if gateway.draining:
        raise shutting_down()
    with gateway.tide.watching(visitor) as watcher:
        writer = SseWriter(http, Patience(gateway.settings.stream_limits.pause_timeout_s), {})
        try:
            await _pump(watcher, writer, gateway.settings.keepalive_s)
            await writer.finish()
        except StreamFailedError:
            if http.transport is not None:
                http.transport.abort()
        except ConnectionResetError:
            pass  # the client went
        finally:
            await writer.close()
        return writer.response


async def _pump(watcher: Watcher, writer: SseWriter, keepalive_s: float) -> None:
    while (snapshot := await watcher.next(keepalive_s)) is not None:
        await writer.send(sse.event(snapshot) if snapshot else sse.KEEP_ALIVE)
    if not writer.started:
        await writer.send(sse.KEEP_ALIVE)
