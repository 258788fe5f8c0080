"""HTTPS: files that cannot be used, streams, clients that leave or do not read, new certificates."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from engine.config import ConfigError
from engine.scripted import Script
from gateway.mailbox import StreamLimits
from gateway.tls import ServerTls, TlsFiles
from tests.gateway.house import House, text_ids, until
from tests.support.certificates import Certificate, make_certificate

Make = Callable[..., Any]
LONG = {"max_model_len": 10_000_000}
BYTES_AN_EVENT = 200  # at least
GET = b"GET /version HTTP/1.1\r\nHost: t\r\n\r\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def certificate(folder: Path) -> Certificate:
    return make_certificate(folder, "first")


def server_tls(certificate: Certificate) -> ServerTls:
    return ServerTls(TlsFiles(certificate.certfile, certificate.keyfile))


@pytest.fixture(scope="module")
def tls(certificate: Certificate) -> ServerTls:
    return server_tls(certificate)


@pytest.fixture
def secure(make_house: Make, tls: ServerTls, certificate: Certificate) -> Make:
    """Starts gateways that speak HTTPS with ``certificate``, and whose clients trust it."""
    return partial(make_house, tls=tls.context, trust=certificate.trust)


@asynccontextmanager
async def tls_client(
    house: House, trust: ssl.SSLContext, limit: int = 65536
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port, ssl=trust, limit=limit)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


# ---- files ---------------------------------------------------------------------------------------


def test_a_usable_pair_speaks_modern_tls_only(certificate: Certificate) -> None:
    context = server_tls(certificate).context
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE  # clients prove themselves by their API key


def test_key_and_certificate_may_be_one_file(certificate: Certificate, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text(Path(certificate.keyfile).read_text() + Path(certificate.certfile).read_text())
    ServerTls(TlsFiles(str(both)))


def test_files_that_cannot_be_used_are_named(certificate: Certificate, folder: Path, tmp_path: Path) -> None:
    other = make_certificate(tmp_path, "other")
    locked = make_certificate(tmp_path, "locked", password="sesame")
    junk, broken = tmp_path / "junk", tmp_path / "broken"
    junk.write_bytes(os.urandom(100))
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    cert, key = certificate.certfile, certificate.keyfile
    for files, parts in (
        (TlsFiles("/no/such/file", key), ("--ssl-certfile", "/no/such/file", "No such file")),
        (TlsFiles(cert, "/no/such/file"), ("--ssl-keyfile", "/no/such/file", "No such file")),
        (TlsFiles(str(tmp_path), key), ("--ssl-certfile", "directory")),
        (TlsFiles(str(junk), key), ("--ssl-certfile", "no certificate")),
        (TlsFiles(cert, str(junk)), ("--ssl-keyfile", "no private key")),
        (TlsFiles(key, cert), ("--ssl-certfile", "no certificate")),
        (TlsFiles(cert), ("--ssl-certfile", "no private key")),
        (TlsFiles(str(broken), key), ("cannot be used",)),
        (TlsFiles(cert, other.keyfile), ("--ssl-keyfile", "does not belong")),
        (TlsFiles(locked.certfile, locked.keyfile), ("encrypted", "TIDEGATE_SSL_KEYFILE_PASSWORD")),
        (TlsFiles(locked.certfile, locked.keyfile, "wrong"), ("password",)),
    ):
        with pytest.raises(ConfigError) as caught:
            ServerTls(files)
        for part in parts:
            assert part in str(caught.value), files
        assert "wrong" not in str(caught.value)
    ServerTls(TlsFiles(locked.certfile, locked.keyfile, "sesame"))


def test_the_password_of_the_key_is_not_shown() -> None:
    assert "sesame" not in repr(TlsFiles("cert", "key", "sesame"))


# ---- over the wire -------------------------------------------------------------------------------


async def test_streams_and_answers_are_those_of_plain_http(secure: Make) -> None:
    house: House = await secure()
    for stream in (False, True):
        house.say(text_ids("abc"))
        assert (await house.complete(stream=stream)).text == "abc"
    await house.check_alive()


async def test_the_official_client_streams_over_tls(secure: Make, certificate: Certificate) -> None:
    house: House = await secure()
    house.say(text_ids("abc" * 70))
    async with (
        httpx.AsyncClient(verify=certificate.trust) as http,
        openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", http_client=http) as client,
    ):
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "abc" * 70
    await house.check_alive()


async def test_a_client_that_leaves_is_noticed(secure: Make, certificate: Certificate) -> None:
    house: House = await secure(info=LONG, step_s=0.002)
    house.script(Script(token_ids=text_ids("abcdefgh"), endless=True))
    async with tls_client(house, certificate.trust) as (reader, writer):
        writer.write(post(b'{"prompt": "Hi", "stream": true, "max_tokens": 100000}'))
        await reader.readuntil(b"data: ")
    await until(lambda: bool(house.engine.record.aborted))
    await house.check_alive()


@pytest.mark.case("E10")
async def test_a_client_that_does_not_read_is_paused_and_bounded(
    secure: Make, certificate: Certificate
) -> None:
    """What this process holds for it is no more than without TLS."""
    limits = StreamLimits(high_units=64, hard_units=4096)
    house: House = await secure(info=LONG, stream_limits=limits, send_buffer_bytes=8192)
    house.script(Script(token_ids=text_ids("abcdefgh"), endless=True))
    async with tls_client(house, certificate.trust, limit=1024) as (reader, writer):
        writer.write(post(b'{"prompt": "Hi", "stream": true, "max_tokens": 6000}'))
        await until(lambda: len(house.engine.record.paused) > len(house.engine.record.resumed), 20)
        (held,) = house.engine.record.num_delivered.values()
        assert held * BYTES_AN_EVENT < 2**20
        house.say(text_ids("fast"))
        assert (await house.complete(stream=True)).text == "fast"
        assert held in house.engine.record.num_delivered.values()
        data = bytearray()
        while b"[DONE]" not in data[-100:]:
            data += await reader.read(65536)
    assert "".join(re.findall('"text":"([^"]*)"', data.decode())) == "abcdefgh" * 750
    await house.check_alive()


async def test_plain_http_and_half_a_handshake_cost_themselves_only(secure: Make) -> None:
    house: House = await secure()
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(GET)
    assert b"HTTP" not in await reader.read()
    _, silent = await asyncio.open_connection("127.0.0.1", house.port)
    await house.check_alive()
    for each in (writer, silent):
        each.transport.abort()


async def test_a_new_certificate_serves_connections_to_come(
    make_house: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = (make_certificate(tmp_path, name) for name in ("old", "new"))
    trust_old = old.trust
    tls = await asyncio.to_thread(server_tls, old)
    house: House = await make_house(tls=tls.context, trust=trust_old)
    async with tls_client(house, trust_old) as (reader, writer):
        os.replace(new.certfile, old.certfile)
        await tls.reload()  # the key is still the old one
        assert "does not belong" in caplog.text
        async with tls_client(house, trust_old):
            pass
        os.replace(new.keyfile, old.keyfile)
        await tls.reload()
        with pytest.raises(ssl.SSLCertVerificationError):
            async with tls_client(house, trust_old):
                pass
        async with tls_client(house, old.trust):
            pass
        writer.write(GET)  # and the old connection goes on
        await reader.readuntil(b"}")


def post(body: bytes) -> bytes:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
