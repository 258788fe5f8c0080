"""Bodies: type, size, time, encoding (cases C14, C16)."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.gateway.house import House, raw_client, until

Make = Callable[..., Any]
JSON = {"Content-Type": "application/json"}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"


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
        (gzip.compress(b'{"prompt": "Hi"}'), {**JSON, "Content-Encoding": "gzip"}, 200),
        (gzip.compress(b" " * 20_000_000), {**JSON, "Content-Encoding": "gzip"}, 413),
    ],
)
async def test_bodies(make_house: Make, body: bytes, headers: dict[str, str], status: int) -> None:
    house: House = await make_house()
    reply = await house.request("POST", "/v1/completions", data=body, headers=headers)
    assert reply.status == status
    if status != 200:
        assert reply.error
    await house.check_alive()


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


async def test_a_body_without_a_length_is_cut_while_reading(make_house: Make) -> None:
    house: House = await make_house(max_body_bytes=100_000)

    async def forever() -> Any:
        for _ in range(50):
            yield b" " * 10_000

    reply = await house.request("POST", "/v1/completions", data=forever(), headers=JSON)
    assert reply.status == 413
    await house.check_alive()


async def test_health_answers_while_giant_bodies_come_in(make_house: Make) -> None:
    """C16: and the clients hang up in the middle."""
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
