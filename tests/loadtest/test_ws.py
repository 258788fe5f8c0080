"""WebSockets to servers of other kinds: another library's, and such as speak no WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve

from benchmarks.scripted_events import Counts, ResponseEvents
from loadtest.clock import MonotonicClock
from loadtest.drivers.apis import Options
from loadtest.drivers.driver import ServerDriver
from loadtest.drivers.target import Target
from loadtest.plan import PlannedRequest
from loadtest.timeline import Outcome, Timeline


def driver_of(port: int) -> ServerDriver:
    target = Target(f"http://127.0.0.1:{port}", "scripted", api="responses", transport="ws", timeout_s=10)
    return ServerDriver(target, Options(tells_usage=True), MonotonicClock())


async def ask(driver: ServerDriver) -> Timeline:
    planned = PlannedRequest(0, "some text", 0, 1)
    timeline = Timeline(planned, 0, 0, 0.0)
    await driver.perform(driver.prepare(planned), (), timeline)
    return timeline


class House:
    """Answers with one piece. ``num_connections``: that have been made."""

    def __init__(self, piece: str = " so") -> None:
        self.num_connections = 0
        events, counts = ResponseEvents("response", tells_usage=True), Counts(5, 1)
        self._events = [*events.opening(), events.piece(0, piece, counts), *events.closing(1, counts)]

    async def answer(self, socket: ServerConnection) -> None:
        self.num_connections += 1
        async for _ in socket:
            for event in self._events:
                await socket.send(event.decode())


def port_of(sockets: Sequence[object]) -> int:
    port: int = sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    return port


async def test_who_asks_whether_a_socket_lives_is_answered_while_nothing_is_under_way() -> None:
    house = House()
    async with serve(house.answer, "127.0.0.1", 0, ping_interval=0.1, ping_timeout=0.5) as server:
        driver = driver_of(port_of(list(server.sockets)))
        first = await ask(driver)
        await asyncio.sleep(0.9)
        second = await ask(driver)
        await driver.close()
    assert [first.outcome, second.outcome] == [Outcome.COMPLETED] * 2
    assert (house.num_connections, second.resent) == (1, 0)


async def test_a_socket_that_was_closed_between_two_requests_costs_nothing() -> None:
    house = House()
    async with serve(house.answer, "127.0.0.1", 0) as server:
        driver = driver_of(port_of(list(server.sockets)))
        await ask(driver)
        for socket in list(server.connections):
            await socket.close()
        second = await ask(driver)
        await driver.close()
    assert (second.outcome, second.resent, house.num_connections) == (Outcome.COMPLETED, 0, 2)


async def test_an_event_may_be_long() -> None:
    house = House(piece="long " * 1_500_000)
    async with serve(house.answer, "127.0.0.1", 0) as server:
        driver = driver_of(port_of(list(server.sockets)))
        timeline = await ask(driver)
        await driver.close()
    assert (timeline.outcome, timeline.reason) == (Outcome.COMPLETED, "")


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[int]:
    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    async with server:
        yield port_of(server.sockets)


AGREES = b"HTTP/1.1 101 -\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Accept: %b\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (AGREES % b"another's", "not a websocket"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "http 200"),
        (b"HTTP/1.1 307 -\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "http 307"),
        (b'HTTP/1.1 403 -\r\nContent-Length: 99\r\n\r\n{"error": {"code": "no"}}', "http 403 no"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not http"),
        (b"", "connection closed"),
    ],
)
async def test_who_speaks_no_websocket_is_told_from_the_others(answer: bytes, reason: str) -> None:
    async with raw_server(answer) as port:
        driver = driver_of(port)
        timeline = await ask(driver)
        await driver.close()
    assert (timeline.outcome, timeline.reason) == (Outcome.FAILED, reason)
