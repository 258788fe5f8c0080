"""aiohttp's client as it is set up: who is found and trusted, what is left alone, how failures are called."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from benchmarks.scripted_openai import Reply, Script, ScriptedServer, scripted_openai
from loadtest.clock import MonotonicClock
from loadtest.drivers.apis import Options
from loadtest.drivers.driver import ServerDriver
from loadtest.drivers.session import reason_of
from loadtest.drivers.target import ApiName, Target, TransportName
from loadtest.plan import PlannedRequest, Reading
from loadtest.timeline import Outcome, Timeline
from tests.support.certificates import make_certificate


@pytest.fixture(scope="module")
def process() -> Iterator[ScriptedServer]:
    with scripted_openai(Script(replies=(Reply(gap_s=0.002),))) as server:
        yield server


async def ask(
    url: str, api: ApiName = "chat", transport: TransportName = "sse", pause_s: float = 0.0
) -> Timeline:
    target = Target(url, "scripted", api=api, transport=transport, timeout_s=10)
    driver = ServerDriver(target, Options(tells_usage=True), MonotonicClock())
    planned = PlannedRequest(0, "some text", 0, 10, reading=Reading(pause_s=pause_s))
    timeline = Timeline(planned, 0, 0, 0.0)
    await driver.perform(driver.prepare(planned), (), timeline)
    await driver.close()
    return timeline


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.close()


@asynccontextmanager
async def tls_in_front_of(server: ScriptedServer, context: ssl.SSLContext) -> AsyncIterator[str]:
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", server.port)
        tasks.update((asyncio.create_task(_pass_on(reader, inner[1])),))
        tasks.update((asyncio.create_task(_pass_on(inner[0], writer)),))

    outer = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{outer.sockets[0].getsockname()[1]}"
    finally:
        outer.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_server_by_name(process: ScriptedServer) -> None:
    timeline = await ask(f"http://localhost:{process.port}")
    assert timeline.outcome is Outcome.COMPLETED


async def test_the_next_address_of_a_host_where_nobody_listens_at_the_first(
    process: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_up(resolver: object, host: str, port: int, family: int) -> list[dict[str, object]]:
        return [
            {"hostname": host, "host": at, "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}
            for at in ("127.0.0.2", "127.0.0.1")
        ]

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", look_up)
    assert (await ask(f"http://two.invalid:{process.port}")).outcome is Outcome.COMPLETED


async def test_a_host_that_nobody_knows() -> None:
    assert (await ask("http://nobody.invalid")).reason == "host not found"


async def test_tls_is_spoken_with_who_is_trusted(
    process: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certfile, certificate.keyfile)
    async with tls_in_front_of(process, context) as url:
        assert (await ask(url)).reason == "tls failed"
        monkeypatch.setenv("SSL_CERT_FILE", certificate.certfile)
        assert (await ask(url, pause_s=0.001)).outcome is Outcome.COMPLETED
        assert (await ask(url, "responses", "ws")).outcome is Outcome.COMPLETED


async def test_the_proxy_of_the_environment_is_not_used(
    process: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://proxy.invalid:1")
    assert (await ask(process.url)).outcome is Outcome.COMPLETED


async def test_a_host_that_is_no_name() -> None:
    assert (await ask(f"http://{'a' * 70}.invalid")).reason == "host not found"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (aiohttp.ServerDisconnectedError(), "connection closed"),
        (aiohttp.ClientOSError(errno.ECONNRESET, "reset"), "connection reset"),
        (aiohttp.ClientOSError(errno.EPIPE, "broken pipe"), "connection reset"),
        (aiohttp.ClientOSError(None, "cannot write"), "connection closed"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "connection refused"),
        (OSError(errno.ETIMEDOUT, "timed out"), "connection timed out"),
        (OSError(errno.EHOSTUNREACH, "no route"), f"connection failed, errno {errno.EHOSTUNREACH}"),
        (ssl.SSLError(1, "bad record"), "tls failed"),
    ],
)
def test_what_the_network_did_has_a_short_name(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
