"""Clients that read slowly or never: paused, told, cut off; nobody else notices."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.scripted import Script
from gateway.mailbox import StreamLimits
from tests.gateway.house import House, raw_client, text_ids, until

Make = Callable[..., Any]
ENDLESS = Script(token_ids=text_ids("abcdefgh"), endless=True)
LONG = {"max_model_len": 1_000_000}


@pytest.mark.case("E10")
async def test_clients_that_never_read_are_bounded_and_do_not_disturb_others(make_house: Make) -> None:
    limits = StreamLimits(high_units=64, hard_units=4096, pause_timeout_s=60)
    house: House = await make_house(info=LONG, stream_limits=limits, send_buffer_bytes=8192)
    number = 10
    house.script(*[ENDLESS] * number)
    clients = [raw_client(house, receive_buffer=4096) for _ in range(number)]
    for client in clients:
        raw = await client.__aenter__()
        await raw.send_json("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 5000})
    await until(lambda: len(set(house.engine.record.paused) - set(house.engine.record.resumed)) == number, 30)
    held = dict(house.engine.record.num_delivered)
    assert max(held.values()) < 4000
    house.say(text_ids("fast"))
    assert (await house.complete(stream=True)).text == "fast"
    after = house.engine.record.num_delivered
    assert {key: after[key] for key in held} == held
    for client in clients:
        await client.__aexit__(None, None, None)
    await house.check_alive()


@pytest.mark.case("E10")
async def test_a_slow_client_that_reads_on_gets_everything(make_house: Make) -> None:
    limits = StreamLimits(high_units=16, hard_units=4096)
    house: House = await make_house(info=LONG, stream_limits=limits, send_buffer_bytes=4096)
    house.script(ENDLESS)
    async with raw_client(house, receive_buffer=4096) as client:
        await client.send_json(
            "/v1/completions",
            {"prompt": "Hi", "stream": True, "max_tokens": 3000, "stream_options": {"include_usage": True}},
        )
        await until(lambda: bool(house.engine.record.paused))
        data = await client.read_until(b"[DONE]", 30)
    assert house.engine.record.resumed
    payloads = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: {")]
    events = [json.loads(payload) for payload in payloads]
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    assert text == ("abcdefgh" * 400)[:3000]
    assert events[-1]["usage"]["completion_tokens"] == 3000
    await house.check_alive()


async def test_a_client_paused_for_too_long_is_told_and_dropped(make_house: Make) -> None:
    limits = StreamLimits(high_units=64, hard_units=4096, pause_timeout_s=0.1)
    house: House = await make_house(info=LONG, stream_limits=limits, send_buffer_bytes=8192, linger_s=5)
    house.script(ENDLESS)
    async with raw_client(house, receive_buffer=4096) as client:
        await client.send_json("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 5000})
        await until(lambda: bool(house.engine.record.aborted))
        data = await client.read_until(b"[DONE]", 30)
    assert b'"code":"client_too_slow"' in data
    assert data.count(b'"error"') == 1
    await house.check_alive()


@pytest.mark.case("E10")
async def test_a_client_that_never_reads_its_farewell_is_cut_off(make_house: Make) -> None:
    limits = StreamLimits(high_units=64, hard_units=4096, pause_timeout_s=0.3)
    house: House = await make_house(info=LONG, stream_limits=limits, send_buffer_bytes=4096, linger_s=0.05)
    house.script(ENDLESS)
    async with raw_client(house, receive_buffer=4096) as client:
        await client.send_json("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 5000})
        await until(lambda: bool(house.engine.record.submitted))
        await house.idle()
        with pytest.raises(ConnectionResetError):
            await client.read_until(b"[DONE]", 30)
    await house.check_alive()
