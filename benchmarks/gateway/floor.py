"""The floor: aiohttp on uvloop, writing ready-made events and doing nothing else.

``python -m benchmarks.gateway.floor TOKENS_PER_S PHASES`` prints its port, and serves until its input ends.
``/sse?events=N&bytes=B`` streams N events of B bytes over HTTP, ``/ws`` over a WebSocket. One task writes one
event to each stream of a group, group by group at the same pace as the scripted engine's steps; each event is
one ``write`` of aiohttp's own, awaited, of bytes that are there already.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import uvloop
from aiohttp import WSMsgType, web

Write = Callable[[], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Stream:
    write: Write
    num_left: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class _Pacer:
    """Writes to all streams of a group at once."""

    def __init__(self, tokens_per_s: float, phases: int) -> None:
        self._groups: list[set[_Stream]] = [set() for _ in range(phases)]
        self._turn_s = 1 / (tokens_per_s * phases)

    async def stream(self, write: Write, num_events: int) -> None:
        stream = _Stream(write, num_events)
        group = min(self._groups, key=len)
        group.add(stream)
        try:
            await stream.ended.wait()
        finally:
            group.discard(stream)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            for group in self._groups:
                due = max(due + self._turn_s, loop.time())
                await asyncio.sleep(due - loop.time())
                for stream in tuple(group):
                    with contextlib.suppress(ConnectionResetError):
                        await stream.write()
                    stream.num_left -= 1
                    if not stream.num_left:
                        group.discard(stream)
                        stream.ended.set()


def _app(pacer: _Pacer) -> web.Application:
    async def sse(request: web.Request) -> web.StreamResponse:
        num_events, num_bytes = int(request.query["events"]), int(request.query["bytes"])
        event = b"data: " + b"x" * (num_bytes - 8) + b"\n\n"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        await pacer.stream(lambda: response.write(event), num_events)
        return response

    async def ws(request: web.Request) -> web.WebSocketResponse:
        num_events, num_bytes = int(request.query["events"]), int(request.query["bytes"])
        event = b"x" * (num_bytes - 4)
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        await pacer.stream(lambda: socket.send_frame(event, WSMsgType.TEXT), num_events)
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/sse", sse)
    app.router.add_get("/ws", ws)
    return app


async def _serve(tokens_per_s: float, phases: int) -> None:
    pacer = _Pacer(tokens_per_s, phases)
    runner = web.AppRunner(_app(pacer), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    pacing = asyncio.create_task(pacer.run())
    print(runner.addresses[0][1], flush=True)
    await stop.wait()
    pacing.cancel()
    await asyncio.gather(pacing, return_exceptions=True)
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1]), int(sys.argv[2])))
