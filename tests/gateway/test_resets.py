"""A connection that is reset, in every state of its stream: it costs that stream and nothing else.

A WebSocket session has more states than these; its own tests come with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from engine.scripted import Script
from gateway.mailbox import StreamLimits
from tests.gateway.house import House, RawClient, raw_client, text_ids, until
from tests.gateway.test_handlers import ENDLESS, LONG, reset

Make = Callable[..., Awaitable[House]]
OTHERS_TEXT = "all of it, to the very last letter. " * 2
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"


async def ask(house: House, client: RawClient, script: Script) -> str:
    """Begin a stream; gives the id of the engine's request once it has it."""
    number = len(house.engine.record.submitted)
    house.script(script)
    await client.send_json("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 50_000})
    await until(lambda: len(house.engine.record.submitted) > number)
    return house.engine.record.submitted[-1].request_id


async def connected(house: House, client: RawClient) -> None:
    pass


async def in_its_headers(house: House, client: RawClient) -> None:
    await client.send(HEAD)


async def in_its_body(house: House, client: RawClient) -> None:
    await client.send(HEAD + b'Content-Length: 1000\r\n\r\n{"prompt":')
    await until(lambda: house.gateway.bodies.total_bytes > 0)


async def being_read(house: House, client: RawClient) -> None:
    """Its body waits for a thread to parse it."""
    go = threading.Event()
    busy = [
        asyncio.create_task(house.gateway.offload.run(go.wait, 10))
        for _ in range(house.gateway.settings.offload_threads)
    ]
    await client.send_json("/v1/completions", {"prompt": "Hi", "stream": True})
    await until(lambda: house.gateway.offload.pending > len(busy))
    reset(client)
    client.sock.close()
    await until(lambda: house.gateway.offload.pending == len(busy))
    go.set()
    await asyncio.gather(*busy)


async def queued(house: House, client: RawClient) -> None:
    """The batch has room for one, and that is the other stream."""
    request_id = await ask(house, client, ENDLESS)
    assert request_id not in house.engine.record.num_delivered


async def prefilling(house: House, client: RawClient) -> None:
    await ask(house, client, Script(token_ids=(97,), prefill_steps=10**9))


async def kept_alive(house: House, client: RawClient) -> None:
    await ask(house, client, Script(token_ids=(97,), prefill_steps=10**9))
    await client.read_until(b": keep-alive")


async def streaming(house: House, client: RawClient) -> None:
    await ask(house, client, ENDLESS)
    await client.read_until(b"data: ")


async def paused(house: House, client: RawClient) -> None:
    request_id = await ask(house, client, Script(token_ids=text_ids("abcdefgh"), endless=True, per_step=50))
    await until(lambda: request_id in house.engine.record.paused)


async def at_its_end(house: House, client: RawClient) -> None:
    await ask(house, client, Script(token_ids=text_ids("ab"), stop_token_id=266))


async def after_its_end(house: House, client: RawClient) -> None:
    await ask(house, client, Script(token_ids=text_ids("ab"), stop_token_id=266))
    await client.read_until(b"[DONE]")


async def after_a_failure(house: House, client: RawClient) -> None:
    await ask(house, client, Script(token_ids=text_ids("ab"), fail_after=1))
    await client.read_until(b"[DONE]")


STATES = [
    connected, in_its_headers, in_its_body, being_read, queued, prefilling, kept_alive, streaming, paused,
    at_its_end, after_its_end, after_a_failure,
]  # fmt: skip


@pytest.mark.case("E7")
@pytest.mark.parametrize("state", STATES)
async def test_a_reset_ends_its_own_stream_only(
    make_house: Make, state: Callable[[House, RawClient], Awaitable[None]]
) -> None:
    limits = StreamLimits(high_units=64, hard_units=4096, pause_timeout_s=60)
    house = await make_house(
        info=LONG,
        step_s=0.002,
        engine_seqs=1 if state is queued else 64,
        keepalive_s=0.02,
        stream_limits=limits,
        send_buffer_bytes=8192,
    )
    house.script(Script(token_ids=text_ids(OTHERS_TEXT), stop_token_id=266))
    other = asyncio.create_task(house.complete(stream=True, max_tokens=1000))
    await until(lambda: house.engine.num_running == 1)
    async with raw_client(house, receive_buffer=4096) as client:
        await state(house, client)
        if client.sock.fileno() >= 0:
            reset(client)
    assert (await other).text == OTHERS_TEXT
    await house.check_alive()
