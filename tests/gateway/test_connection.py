"""Connections that send too much, too slowly, too often, or no HTTP: each costs itself only."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from engine.scripted import Script
from gateway.connection_limits import ConnectionLimits
from tests.gateway.house import House, RawClient, raw_client, text_ids, until

Make = Callable[..., Any]
ENDLESS = Script(token_ids=text_ids("abcdefgh"), endless=True)
LONG = {"max_model_len": 1_000_000}
GET = b"GET /version HTTP/1.1\r\nHost: t\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'{"prompt": "Hi"}'
WHOLE = POST + b"Content-Length: 16\r\n\r\n" + BODY


def answers(data: bytes) -> list[tuple[int, dict[str, str], Any]]:
    """Every answer in ``data``, none of them chunked: status, headers, JSON."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = int(headers["content-length"])
        found.append((int(first.split()[1]), headers, json.loads(data[:length])))
        data = data[length:]
    return found


def the_refusal(data: bytes) -> tuple[int, str]:
    """Status and code of the one answer in ``data``, which has all that an error has."""
    ((status, headers, body),) = answers(data)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert headers["content-type"].startswith("application/json")
    assert re.fullmatch("[0-9a-f]{32}", headers["x-request-id"])
    assert headers["server"] == "tidegate"
    return status, body["error"]["code"]


# ---- what is no HTTP -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01 CANARY\r\n\r\n", 400, "invalid_http"),
        (b"CANARY / HTTP/1.1\r\nHost: t\r\n\r\n", 400, "invalid_http"),
        (b"GET CANARY HTTP/1.1\r\nHost: t\r\n\r\n", 400, "invalid_http"),
        (b"GET /health CANARY\r\nHost: t\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\nHost: t\r\nCANARY\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\nHost: t\r\nx: CAN\x00ARY\r\n\r\n", 400, "invalid_http"),
        (b"GET /health\r\n\r\n", 400, "invalid_http"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_http"),
        (b"GET /" + b"CANARY" * 1500 + b" HTTP/1.1\r\nHost: t\r\n\r\n", 414, "url_too_long"),
        (b"GET /health?" + b"CANARY" * 1500 + b" HTTP/1.1\r\nHost: t\r\n\r\n", 414, "url_too_long"),
        (GET + b"x: " + b"CANARY" * 3000 + b"\r\n\r\n", 431, "headers_too_large"),
        (GET + b"CANARY" * 3000 + b": x\r\n\r\n", 431, "headers_too_large"),
        (GET + b"".join(b"x-%d: CANARY\r\n" % i for i in range(101)) + b"\r\n", 431, "headers_too_large"),
        (GET + b"".join(b"x-%d: %s\r\n" % (i, b"CANARY" * 170) for i in range(40)) + b"\r\n",
         431, "headers_too_large"),
        (GET + b"".join(b"x-%d: %s\r\n" % (i, b"CANARY" * 170) for i in range(40)), 431, "headers_too_large"),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_gets_json_and_is_not_repeated(
    make_house: Make, sent: bytes, status: int, code: str
) -> None:
    house: House = await make_house()
    async with raw_client(house) as client:
        await client.send(sent)
        data = await client.read_to_end()
    assert the_refusal(data) == (status, code)
    assert b"CANARY" not in data
    await house.check_alive()


async def test_heads_just_within_the_limits_pass(make_house: Make) -> None:
    house: House = await make_house()
    async with raw_client(house) as client:
        for line in (b"x: " + b"a" * 16_000, b"\r\n".join(b"x-%d: %s" % (i, b"a" * 300) for i in range(95))):
            await client.send(GET + line + b"\r\n\r\n")
            assert (await client.read_until(b'{"version"')).startswith(b"HTTP/1.1 200 ")
            client.received = b""
        await client.send(b"GET /health?" + b"a" * 8_000 + b" HTTP/1.1\r\nHost: t\r\n\r\n")
        await client.read_until(b'{"status":"ok"')


@pytest.mark.parametrize(
    "sent",
    [
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
        POST + b"Content-Length: 2\r\nContent-Length: 60\r\n\r\n{}" + GET + b"\r\n",
        POST + b"Content-Length: 2, 60\r\n\r\n{}" + GET + b"\r\n",
        POST + b"Content-Length: +2\r\n\r\n{}" + GET + b"\r\n",
        POST + b"Content-Length : 2\r\n\r\n{}" + GET + b"\r\n",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
        POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
        CHUNKED + b"2\n{}\r\n0\r\n\r\n" + GET + b"\r\n",
        CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n" + GET + b"\r\n",
    ],
)
async def test_a_body_that_two_readers_may_end_in_two_places_is_refused(
    make_house: Make, sent: bytes
) -> None:
    """Nothing smuggled behind it is answered."""
    house: House = await make_house()
    async with raw_client(house) as client:
        await client.send(sent)
        data = await client.read_to_end()
    assert the_refusal(data)[0] == 400
    assert not house.engine.record.submitted
    await house.check_alive()


@pytest.mark.parametrize("rest", [b"ZZ\r\n", b"5\r\nabcdefgh\r\n", b"ffffffffffffffffff\r\n"])
async def test_framing_that_breaks_in_mid_body_is_found_at_once(make_house: Make, rest: bytes) -> None:
    """And not when the body's time is up."""
    house: House = await make_house(body_timeout_s=1000)
    async with raw_client(house) as client:
        await client.send(CHUNKED + b'5\r\n{"a":\r\n')
        await until(lambda: house.gateway.bodies.total_bytes > 0)
        await client.send(rest)
        data = await client.read_to_end()
    assert the_refusal(data)[0] == 400
    await house.check_alive()


# ---- too slow, too many --------------------------------------------------------------------------


async def test_a_head_that_trickles_in_is_given_up(make_house: Make) -> None:
    house: House = await make_house(connection_limits=ConnectionLimits(head_timeout_s=0.2))
    async with raw_client(house) as client:

        async def trickle() -> None:
            for byte in GET + b"x: " + b"a" * 100_000:
                await client.send(bytes([byte]))
                await asyncio.sleep(0.01)

        sending = asyncio.create_task(trickle())
        try:
            data = await client.read_until(b"}}")
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    assert the_refusal(data) == (408, "request_timeout")
    await house.check_alive()


@pytest.mark.case("E11")
@pytest.mark.parametrize("answered_before", [False, True])
async def test_a_connection_that_sends_nothing_is_closed_in_silence(
    make_house: Make, answered_before: bool
) -> None:
    """Before a first request it has the time of a head, after one that of an idle connection."""
    slow, quick = 1000.0, 0.1
    limits = ConnectionLimits(
        head_timeout_s=slow if answered_before else quick, idle_timeout_s=quick if answered_before else slow
    )
    house: House = await make_house(connection_limits=limits)
    async with raw_client(house) as client:
        if answered_before:
            await client.send(GET + b"\r\n")
            await client.read_until(b"}")
            client.received = b""
        assert await client.read_to_end() == b""
    await house.check_alive()


async def test_a_head_that_has_begun_is_not_cut_off_as_idle(make_house: Make) -> None:
    house: House = await make_house(connection_limits=ConnectionLimits(idle_timeout_s=0.1))
    async with raw_client(house) as client:
        for _ in range(2):
            await client.send(GET)
            await asyncio.sleep(0.3)
            await client.send(b"\r\n")
            assert (await client.read_until(b'{"version"')).startswith(b"HTTP/1.1 200 ")
            client.received = b""


async def test_a_long_answer_is_neither_idle_nor_a_slow_head(make_house: Make) -> None:
    house: House = await make_house(
        info=LONG, step_s=0.005, connection_limits=ConnectionLimits(idle_timeout_s=0.05, head_timeout_s=0.05)
    )
    house.say(text_ids("x" * 60))
    assert (await house.complete(stream=True)).text == "x" * 60


@pytest.mark.case("E11")
async def test_a_kept_connection_says_for_how_long(make_house: Make) -> None:
    house: House = await make_house(connection_limits=ConnectionLimits(idle_timeout_s=77))
    for stream in (False, True):
        assert (await house.complete(stream=stream)).headers["keep-alive"] == "timeout=77"


async def test_past_the_bound_connections_are_told_and_closed(make_house: Make) -> None:
    house: House = await make_house(connection_limits=ConnectionLimits(max_connections=3))
    async with raw_client(house) as first, raw_client(house), raw_client(house):
        await until(lambda: house.gateway.connections.count == 3)
        async with raw_client(house) as late:
            await late.send(GET + b"\r\n")
            data = await late.read_to_end()
        assert the_refusal(data) == (503, "too_many_connections")
        assert int(answers(data)[0][1]["retry-after"]) > 0
        await first.send(GET + b"\r\n")
        await first.read_until(b'{"version"')
    await until(lambda: house.gateway.connections.count == 0)
    assert house.gateway.connections.num_refused == 1
    await house.check_alive()
    assert b"tidegate_connections 1.0" in (await house.request("GET", "/metrics")).body


async def test_thousands_of_pipelined_requests_leave_turns_for_others(make_house: Make) -> None:
    house: House = await make_house()
    number, answered = 10_000, 0
    async with raw_client(house) as client:
        sending = asyncio.create_task(client.send((GET + b"\r\n") * number))
        for turn in range(10):
            await house.complete()
            data = await client.read_until(b'{"version"')
            answered += data.count(b'{"version"')
            client.received = b""
            assert answered < number, f"they had gone before turn {turn}"
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    await house.check_alive()


async def test_pipelined_requests_are_held_back_behind_a_slow_one(make_house: Make) -> None:
    """A connection with a stream under way cannot make us keep what it sends without end."""
    house: House = await make_house(info=LONG, step_s=0.002)
    house.script(ENDLESS)
    async with raw_client(house) as client:
        await client.send_json("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 100_000})
        await client.read_until(b"data: ")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.send((GET + b"\r\n") * 500_000)
    await house.check_alive()


# ---- Expect --------------------------------------------------------------------------------------


async def test_a_client_that_waits_is_asked_for_its_body(make_house: Make) -> None:
    house: House = await make_house()
    async with raw_client(house) as client:
        for _ in range(2):
            await client.send(POST + b"Expect: 100-continue\r\nContent-Length: 16\r\n\r\n")
            assert await client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.received = b""
            await client.send(BODY)
            assert (await client.read_until(b'"usage"')).startswith(b"HTTP/1.1 200 ")
            client.received = b""
    await house.check_alive()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (POST + b"Content-Length: 16\r\n", 401),
        (POST + b"Authorization: Bearer key\r\nContent-Length: 99999999\r\n", 413),
        (POST + b"Authorization: Bearer key\r\nContent-Encoding: br\r\nContent-Length: 16\r\n", 415),
    ],
)
async def test_a_client_that_is_refused_is_not_asked(make_house: Make, head: bytes, status: int) -> None:
    """And since nobody knows whether it sends the body all the same, its connection is not used again."""
    house: House = await make_house(api_keys=("key",), linger_s=0.05)
    async with raw_client(house) as client:
        await client.send(head + b"Expect: 100-continue\r\n\r\n")
        data = await client.read_to_end()
    assert the_refusal(data)[0] == status
    assert answers(data)[0][1]["connection"] == "close"


@pytest.mark.parametrize("path", [b"/v1/completions", b"/health", b"/nowhere"])
async def test_other_expectations_are_refused_without_an_echo(make_house: Make, path: bytes) -> None:
    house: House = await make_house()
    async with raw_client(house) as client:
        await client.send(b"POST " + path + b" HTTP/1.1\r\nHost: t\r\nExpect: CANARY\r\n\r\n")
        data = await client.read_until(b"}}")
    assert the_refusal(data) == (417, "expectation_failed")
    assert b"CANARY" not in data


# ---- resets --------------------------------------------------------------------------------------

Step = Callable[[House, RawClient], Any]


async def _sends(data: bytes, house: House, client: RawClient) -> None:
    await client.send(data)
    await asyncio.sleep(0.01)


async def _reads(house: House, client: RawClient) -> None:
    await client.send(WHOLE)
    await client.read_until(b'"usage"')


async def _streams(house: House, client: RawClient) -> None:
    house.script(ENDLESS)
    await client.send_json("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 5000})
    await client.read_until(b"data: ")


async def _does_not_read(house: House, client: RawClient) -> None:
    house.script(Script(token_ids=text_ids("abcdefgh"), endless=True, per_step=100))
    await client.send_json("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 500_000})
    await until(lambda: bool(house.engine.record.paused))


async def _is_being_read(house: House, client: RawClient) -> None:
    """Its body waits for a thread that is busy for a while longer."""
    number = house.gateway.settings.offload_threads
    busy = [asyncio.create_task(house.gateway.offload.try_run(time.sleep, 0.05)) for _ in range(number)]
    await client.send(WHOLE)
    await until(lambda: house.gateway.offload.pending > number)
    asyncio.gather(*busy)  # they end by themselves


async def _reads_until(mark: bytes, script: Script, house: House, client: RawClient) -> None:
    house.script(script)
    await client.send_json("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 5000})
    await client.read_until(mark)


async def _waits_for(script: Script, house: House, client: RawClient) -> None:
    before = len(house.engine.record.submitted)
    house.script(script)
    await client.send_json("/v1/completions", {"prompt": "Hi", "max_tokens": 5000})
    await until(lambda: len(house.engine.record.submitted) > before)


STATES: dict[str, Step] = {
    "connected": lambda house, client: _sends(b"", house, client),
    "in the request line": lambda house, client: _sends(b"GET /hea", house, client),
    "in the headers": lambda house, client: _sends(POST, house, client),
    "before the body": lambda house, client: _sends(POST + b"Content-Length: 16\r\n\r\n", house, client),
    "in the body": lambda house, client: _sends(POST + b"Content-Length: 99\r\n\r\n{", house, client),
    "in a chunk": lambda house, client: _sends(CHUNKED + b"5\r\n{", house, client),
    "asked for the body": lambda house, client: _sends(
        POST + b"Expect: 100-continue\r\nContent-Length: 16\r\n\r\n", house, client
    ),
    "just sent": lambda house, client: client.send(WHOLE),
    "refused with the body unread": lambda house, client: _sends(
        b"POST /nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 99\r\n\r\n{", house, client
    ),
    "in a pipeline": lambda house, client: _sends(WHOLE * 40, house, client),
    "prefilling": lambda house, client: _waits_for(
        Script(token_ids=(97,), prefill_steps=10**9), house, client
    ),
    "being read": _is_being_read,
    "queued": lambda house, client: _waits_for(ENDLESS, house, client),
    "generating": lambda house, client: _waits_for(ENDLESS, house, client),
    "kept alive": lambda house, client: _reads_until(
        b": keep-alive", Script(token_ids=(97,), prefill_steps=10**9), house, client
    ),
    "at the end of its stream": lambda house, client: _reads_until(
        b"[DONE]", Script(token_ids=(97,)), house, client
    ),
    "after a failure": lambda house, client: _reads_until(
        b"[DONE]", Script(token_ids=text_ids("ab"), fail_after=1), house, client
    ),
    "streaming": _streams,
    "paused": _does_not_read,
    "idle": _reads,
}


@pytest.mark.case("E7")
@pytest.mark.parametrize("state", STATES)
async def test_a_reset_in_any_state_ends_that_connection_only(make_house: Make, state: str) -> None:
    """That of an HTTP answer or an event stream."""
    house: House = await make_house(
        info=LONG,
        step_s=0.001,
        engine_seqs=1 if state == "queued" else 64,
        keepalive_s=0.02,
        send_buffer_bytes=8192,
    )
    house.say(text_ids("y" * 300))
    neighbour = asyncio.create_task(house.complete(stream=True, max_tokens=1000))
    await until(lambda: house.engine.num_running == 1)
    async with raw_client(house, receive_buffer=4096) as client:
        await STATES[state](house, client)
        client.reset()
    await until(lambda: house.gateway.connections.count == 1)
    assert (await neighbour).text == "y" * 300
    await house.check_alive()
