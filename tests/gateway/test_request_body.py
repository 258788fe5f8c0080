"""Bodies: type, size, time, encoding."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.gateway.house import House, RawClient, raw_client, until

Make = Callable[..., Any]
JSON = {"Content-Type": "application/json"}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"


@pytest.mark.case("C12")
@pytest.mark.case("C14")
@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", JSON, 400),
        (b"{", JSON, 400),
        (b"null", JSON, 400),
        (b'{"prompt": "Hi"', JSON, 400),
        (b'{"prompt": "\\ud800"}', JSON, 400),
        (b'{"temperature": NaN, "prompt": "Hi"}', JSON, 400),
        (b'{"temperature": 1e400, "prompt": "Hi"}', JSON, 400),
        (b'{"user": ' + b"[" * 50_000 + b"]" * 50_000 + b', "prompt": "Hi"}', JSON, 400),
        (b'{"prompt": "Hi"}', {"Content-Type": "text/plain"}, 415),
        (b"prompt=Hi", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        (b'{"prompt": "Hi"}', {"Content-Type": "application/json; charset=utf-8"}, 200),
        (b'{"prompt": "Hi"}', {**JSON, "Content-Encoding": "zzz"}, 415),
        (b"not gzip", {**JSON, "Content-Encoding": "gzip"}, 400),
        (gzip.compress(b'{"prompt": "Hi"}', mtime=0), {**JSON, "Content-Encoding": "gzip"}, 200),
        (zlib.compress(b'{"prompt": "Hi"}'), {**JSON, "Content-Encoding": "deflate"}, 200),
        (gzip.compress(b'{"prompt": "Hi"}', mtime=0)[:-3], {**JSON, "Content-Encoding": "gzip"}, 400),
        (gzip.compress(b'{"prompt": "Hi"}', mtime=0) + b"x", {**JSON, "Content-Encoding": "gzip"}, 400),
        (
            gzip.compress(b'{"prompt":' + b" " * 5_000_000 + b'"Hi"}', mtime=0),
            {**JSON, "Content-Encoding": "gzip"},
            200,
        ),
        (gzip.compress(b" " * 20_000_000, mtime=0), {**JSON, "Content-Encoding": "gzip"}, 413),
        (b'{"prompt": "Hi"}', {**JSON, "Content-Encoding": "br"}, 415),
    ],
)
async def test_bodies(make_house: Make, body: bytes, headers: dict[str, str], status: int) -> None:
    house: House = await make_house()
    reply = await house.request("POST", "/v1/completions", data=body, headers=headers)
    assert reply.status == status
    if status != 200:
        assert reply.error
    await house.check_alive()


@pytest.mark.case("C16")
async def test_a_giant_body_is_refused_before_it_is_read(make_house: Make) -> None:
    house: House = await make_house()
    async with raw_client(house) as client:
        await client.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
            b"Content-Length: 67108864\r\n\r\n"
        )
        data = await client.read_until(b"request_too_large")
    assert data.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in data.lower()
    await house.check_alive()


@pytest.mark.case("C16")
async def test_a_body_without_a_length_is_cut_while_reading(make_house: Make) -> None:
    house: House = await make_house(max_body_bytes=100_000)

    async def forever() -> Any:
        for _ in range(50):
            yield b" " * 10_000

    reply = await house.request("POST", "/v1/completions", data=forever(), headers=JSON)
    assert reply.status == 413
    await house.check_alive()


@pytest.mark.case("C16")
async def test_health_answers_while_giant_bodies_come_in(make_house: Make) -> None:
    """And the clients hang up in the middle."""
    house: House = await make_house()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    async with raw_client(house) as one, raw_client(house) as two:
        await one.send(head + b"Content-Length: 8000000\r\n\r\n")
        await two.send(head + b"Content-Length: 67108864\r\n\r\n")
        for _ in range(20):
            await one.send(b"x" * 100_000)
            started = time.monotonic()
            assert (await house.request("GET", "/health")).status == 200
            assert time.monotonic() - started < 5
    await house.check_alive()


async def test_a_body_that_does_not_come_is_given_up(make_house: Make) -> None:
    house: House = await make_house(body_timeout_s=0.05)
    async with raw_client(house) as client:
        await client.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n{"
        )
        data = await client.read_until(b"request_timeout")
    assert data.startswith(b"HTTP/1.1 408 ")
    await house.check_alive()


async def test_connections_that_send_no_body_hold_nothing(make_house: Make) -> None:
    house: House = await make_house(max_num_seqs=1, max_waiting=1)
    head = HEAD + b"Content-Length: 99\r\n\r\n"
    async with AsyncExitStack() as stack:
        for _ in range(5):
            client = await stack.enter_async_context(raw_client(house))
            await client.send(head)
        await house.check_alive()


async def test_bodies_together_are_bounded(make_house: Make) -> None:
    house: House = await make_house(max_body_bytes=100_000, max_total_body_bytes=150_000)
    head = HEAD + b"Content-Length: 99999\r\n\r\n"
    async with raw_client(house) as first, raw_client(house) as second:
        await first.send(head + b" " * 90_000)
        await until(lambda: house.gateway.bodies.total_bytes >= 90_000)
        await second.send(head + b" " * 90_000)
        assert b"429" in await second.read_until(b"server_busy")
    await until(lambda: house.gateway.bodies.total_bytes == 0)
    await house.check_alive()


# ---- what grows, and what never ends -------------------------------------------------------------

BOMB = gzip.compress(bytes(64 * 2**20)) * 4


@pytest.mark.alone
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/nowhere"])
async def test_a_bomb_is_not_inflated_in_one_go_and_never_for_nobody(make_house: Make, path: str) -> None:
    """Whether it is read, refused at its bound, or thrown away unread: the loop goes on meanwhile."""
    house: House = await make_house(api_keys=("key",), linger_s=1)
    started = time.perf_counter()
    inflate(BOMB)
    at_once_s = time.perf_counter() - started
    headers = {**JSON, "Content-Encoding": "gzip"}
    headers |= {"Authorization": "Bearer key"} if path == "/v1/completions" else {}
    reply, worst_gap_s = await asyncio.gather(
        house.request("POST", path, data=BOMB, headers=headers), worst_gap()
    )
    assert reply.status == {"/v1/completions": 413, "/v1/models": 401, "/nowhere": 404}[path]
    assert worst_gap_s < at_once_s / 2
    await house.idle()


def inflate(data: bytes) -> None:
    while data:
        stream = zlib.decompressobj(wbits=31)
        stream.decompress(data)
        data = stream.unused_data


async def worst_gap(turns: int = 100) -> float:
    """Longest time that the loop did not come around, in seconds."""
    worst, last = 0.0, time.perf_counter()
    for _ in range(turns):
        await asyncio.sleep(0.001)
        worst, last = max(worst, time.perf_counter() - last), time.perf_counter()
    return worst


async def send_until_answered(client: RawClient, data: bytes, mark: bytes) -> bytes:
    """What comes back, whether or not all of ``data`` is taken."""

    async def send() -> None:
        while True:
            await client.send(data)

    sending = asyncio.create_task(send())
    try:
        return await client.read_until(mark)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


async def test_long_chunk_extensions_are_skipped(make_house: Make) -> None:
    house: House = await make_house()
    async with raw_client(house) as client:
        await client.send(CHUNKED + b"10;" + b"x" * 4_000_000 + b'\r\n{"prompt": "Hi"}\r\n0\r\n\r\n')
        assert (await client.read_until(b'"usage"')).startswith(b"HTTP/1.1 200 ")
    await house.check_alive()


@pytest.mark.parametrize(
    ("begin", "endless"),
    [(b"1;", b"x" * 10_000), (b"1", b"\r\n{\r\n1" * 1_000)],
    ids=["an extension", "chunks of one byte"],
)
async def test_a_body_that_never_ends_is_given_up(make_house: Make, begin: bytes, endless: bytes) -> None:
    house: House = await make_house(body_timeout_s=0.3, linger_s=0.2)
    async with raw_client(house) as client:
        await client.send(CHUNKED + begin)
        assert b"request_timeout" in await send_until_answered(client, endless, b"}}")
    await house.check_alive()


async def test_trailers_are_bounded_like_headers(make_house: Make) -> None:
    house: House = await make_house()
    async with raw_client(house) as client:
        await client.send(CHUNKED + b'10\r\n{"prompt": "Hi"}\r\n0\r\n' + b"x: y\r\n" * 200)
        assert b"headers_too_large" in await client.read_until(b"}}")
    assert not house.engine.record.submitted
    await house.check_alive()
