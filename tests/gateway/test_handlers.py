"""Streams and plain answers over real sockets: text, ends, usage, failures, lost clients."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from engine.messages import Grammar
from engine.scripted import Script
from tests.gateway.house import House, RawClient, raw_client, text_ids, until

Make = Callable[..., Any]
ENDLESS = Script(token_ids=text_ids("abcdefgh"), endless=True)
LONG = {"max_model_len": 1_000_000}


# ---- text ----------------------------------------------------------------------------------------


@pytest.mark.case("A1")
@pytest.mark.case("A2")
@pytest.mark.case("A3")
@pytest.mark.case("A5")
@pytest.mark.case("A8")
@pytest.mark.parametrize("endpoint", ["complete", "chat"])
@pytest.mark.parametrize("per_step", [1, 3])
@pytest.mark.parametrize(
    ("ids", "stop", "text"),
    [
        ([258, *text_ids("G"), 259, *text_ids("J")], "DEFGHIJ", ""),
        (text_ids("abDEFx"), "DE", "ab"),
        (text_ids("tell me END of it"), [" of", "END o"], "tell me "),
        (text_ids("no match at all EN"), "END", "no match at all EN"),
        (text_ids("😀漢字é"), [], "😀漢字é"),
        ([0xFF, 97, 0xC3, 98], [], "\ufffda\ufffdb"),
    ],
)
async def test_streamed_and_plain_text_are_the_same(
    make_house: Make, endpoint: str, per_step: int, ids: list[int], stop: Any, text: str
) -> None:
    house: House = await make_house()
    script = Script(token_ids=ids, stop_token_id=266, per_step=per_step)
    house.script(script, script)
    ask = getattr(house, endpoint)
    plain = await ask(stop=stop)
    streamed = await ask(stop=stop, stream=True, stream_options={"include_usage": True})
    assert plain.text == streamed.text == text
    assert streamed.events[-1]["usage"] == plain.json["usage"]
    assert plain.json["choices"][0]["finish_reason"] == "stop"
    assert [reason for reason in streamed.finish_reasons if reason is not None] == ["stop"]
    await house.check_alive()


@pytest.mark.case("A6")
@pytest.mark.parametrize("stream", [False, True])
async def test_the_limit_inside_a_character_drops_it(make_house: Make, stream: bool) -> None:
    house: House = await make_house()
    house.say(text_ids("a😀"))
    reply = await house.complete(max_tokens=3, stream=stream)
    assert reply.text == "a"
    last = reply.events[-1] if stream else reply.json
    assert last["choices"][0]["finish_reason"] == "length"
    if not stream:
        assert last["usage"]["completion_tokens"] == 3


@pytest.mark.case("A9")
@pytest.mark.case("A10")
@pytest.mark.parametrize("endpoint", ["complete", "chat"])
@pytest.mark.parametrize(("max_tokens", "reason"), [(100, "stop"), (3, "length")])
@pytest.mark.parametrize("n", [1, 3])
async def test_the_finish_reason_comes_once_and_last(
    make_house: Make, endpoint: str, max_tokens: int, reason: str, n: int
) -> None:
    house: House = await make_house()
    house.say(text_ids("abc"))
    events = (await getattr(house, endpoint)(stream=True, max_tokens=max_tokens, n=n)).events
    for index in range(n):
        mine = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + [reason]
        assert len(mine) > 1


@pytest.mark.case("B1")
@pytest.mark.case("B3")
@pytest.mark.parametrize("endpoint", ["complete", "chat"])
async def test_usage_on_request_comes_once_without_choices(make_house: Make, endpoint: str) -> None:
    house: House = await make_house()
    house.say(text_ids("x" * 100), per_step=7, num_cached_tokens=1)
    reply = await getattr(house, endpoint)(stream=True, stream_options={"include_usage": True})
    *chunks, last = reply.events
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 101
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


async def test_min_tokens_and_ignore_eos_reach_the_engine(make_house: Make) -> None:
    house: House = await make_house()
    house.script(ENDLESS)
    reply = await house.complete(min_tokens=5, ignore_eos=True, max_tokens=8, stop="b")
    sampling = house.engine.record.submitted[-1].sampling
    assert (sampling.min_tokens, sampling.ignore_eos) == (5, True)
    assert reply.text == "abcdefgh"


async def test_a_large_plain_answer_is_complete(make_house: Make) -> None:
    """It is encoded off the loop."""
    house: House = await make_house(info=LONG)
    house.script(Script(token_ids=text_ids("abcdefgh"), endless=True, per_step=50))
    choice = (await house.complete(max_tokens=3000, logprobs=0)).json["choices"][0]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"] == ("abcdefgh" * 400)[:3000]


# ---- headers -------------------------------------------------------------------------------------


@pytest.mark.case("C10")
async def test_a_cap_that_does_not_fit_is_clamped_and_said(make_house: Make) -> None:
    house: House = await make_house()
    for stream in (False, True):
        house.say(text_ids("a"))
        reply = await house.complete(prompt="Hi", max_tokens=100_000, stream=stream)
        assert reply.status == 200
        assert reply.headers["x-tidegate-max-tokens-clamped"] == "254"
    assert "x-tidegate-max-tokens-clamped" not in (await house.complete(max_tokens=5)).headers


async def test_a_stream_says_that_it_must_not_be_buffered(make_house: Make) -> None:
    house: House = await make_house()
    headers = (await house.complete(stream=True)).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["x-accel-buffering"] == "no"
    assert headers["cache-control"] == "no-cache"


# ---- failures ------------------------------------------------------------------------------------


@pytest.mark.case("A11")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_is_a_status(
    make_house: Make, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    house: House = await make_house()
    house.script(Script(token_ids=text_ids("abc"), fail_after=0))
    reply = await house.complete(stream=stream, headers={"x-request-id": "mine-1"})
    assert reply.status == 500
    assert reply.error["type"] == "server_error"
    assert reply.headers["x-request-id"] == "mine-1"
    lines = [record.getMessage() for record in caplog.records if "mine-1" in record.getMessage()]
    assert len(lines) == 1
    assert "scripted failure" in lines[0]
    await house.check_alive()


@pytest.mark.case("C19")
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_finds_wrong_with_a_request_is_a_400(
    make_house: Make, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO)
    house: House = await make_house()
    house.script(Script(token_ids=text_ids("abc"), refusal="No text can satisfy the grammar." + "x" * 500))
    reply = await house.chat(stream=stream, response_format={"type": "json_object"})
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["message"].startswith("No text can satisfy the grammar.")
    assert reply.error["param"] == "response_format"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    grammar = house.engine.record.submitted[0].sampling.grammar
    assert grammar == Grammar("json_schema", '{"type":"object"}')
    await house.check_alive()


@pytest.mark.case("A12")
async def test_a_failure_in_mid_stream_is_in_band(make_house: Make, caplog: pytest.LogCaptureFixture) -> None:
    house: House = await make_house()
    house.script(Script(token_ids=text_ids("abc"), fail_after=2))
    reply = await house.chat(stream=True, headers={"x-request-id": "mine-2"})
    assert reply.status == 200
    *chunks, last = reply.events
    assert last["error"]["code"] == "request_failed"
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == "ab"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    lines = [r for r in caplog.records if r.levelno >= logging.ERROR and "mine-2" in r.getMessage()]
    assert len(lines) == 1
    await house.check_alive()


async def test_a_failure_in_a_plain_answer_is_a_status(make_house: Make) -> None:
    house: House = await make_house()
    house.script(Script(token_ids=text_ids("abc"), fail_after=2))
    assert (await house.chat()).status == 500
    await house.check_alive()


@pytest.mark.case("A13")
@pytest.mark.case("C6")
@pytest.mark.parametrize("endpoint", ["complete", "chat"])
@pytest.mark.parametrize("n", [0, -1, 65, 5_000_000])
async def test_a_bad_n_is_refused_before_the_stream(make_house: Make, endpoint: str, n: int) -> None:
    house: House = await make_house()
    reply = await getattr(house, endpoint)(stream=True, n=n)
    assert reply.status == 400
    assert reply.error["param"] == "n"
    assert not house.engine.record.submitted
    await house.check_alive()


async def test_engine_death_ends_every_stream(make_house: Make, caplog: pytest.LogCaptureFixture) -> None:
    house: House = await make_house(step_s=0.002)
    house.script(*[ENDLESS] * 3)
    tasks = [
        asyncio.create_task(house.complete(stream=True, headers={"x-request-id": f"id-{i}"}))
        for i in range(3)
    ]
    await until(lambda: house.engine.num_running == 3)
    house.script(Script(token_ids=(1,), prefill_steps=10**9))
    tasks.append(asyncio.create_task(house.complete(headers={"x-request-id": "id-3"})))
    await until(lambda: len(house.engine.record.num_delivered) == 3 and house.engine.num_running == 4)
    house.engine.die("out of memory")
    replies = await asyncio.gather(*tasks)
    assert {reply.events[-1]["error"]["code"] for reply in replies[:3]} == {"engine_dead"}
    assert replies[3].status == 503
    assert all(f"id-{i}" in caplog.text for i in range(4))
    assert "out of memory" in caplog.text
    assert (await house.request("GET", "/health")).status == 503
    late = await house.complete()
    assert (late.status, late.error["code"]) == (503, "engine_dead")
    await house.idle()


# ---- keep-alives ---------------------------------------------------------------------------------


@pytest.mark.case("E12")
@pytest.mark.parametrize("queued", [False, True])
async def test_comments_flow_while_nothing_else_does(make_house: Make, queued: bool) -> None:
    """While prefilling, and while waiting for a place in the batch."""
    house: House = await make_house(keepalive_s=0.03, step_s=0.005, engine_seqs=1)
    first = None
    if queued:
        house.script(Script(token_ids=(97,), prefill_steps=50))
        first = asyncio.create_task(house.complete())
        await until(lambda: house.engine.num_running == 1)
    house.say(text_ids("ok"), prefill_steps=30)
    reply = await house.chat(stream=True)
    assert reply.body.count(b": keep-alive\n\n") >= 2
    assert reply.body.startswith(b": keep-alive\n\n")
    assert reply.text == "ok"
    if first:
        await first
    await house.check_alive()


@pytest.mark.case("A11")
async def test_a_failure_after_a_keep_alive_is_in_band(make_house: Make) -> None:
    house: House = await make_house(keepalive_s=0.02, step_s=0.005)
    house.script(Script(token_ids=(97,), prefill_steps=20, fail_after=0))
    reply = await house.complete(stream=True)
    assert reply.status == 200
    assert "error" in reply.events[0]


# ---- clients that go away ------------------------------------------------------------------------


def reset(client: RawClient) -> None:
    """Close with a reset instead of an orderly end."""
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.case("E1")
@pytest.mark.parametrize("abruptly", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_closing_after_the_first_chunk_aborts(make_house: Make, path: str, abruptly: bool) -> None:
    house: House = await make_house(info=LONG, step_s=0.002)
    house.script(ENDLESS)
    body = {"prompt": "Hi"} if "chat" not in path else {"messages": [{"role": "user", "content": "Hi"}]}
    async with raw_client(house) as client:
        await client.send_json(path, {**body, "stream": True})
        await client.read_until(b"data: ")
        if abruptly:
            reset(client)
    (request_id,) = [add.request_id for add in house.engine.record.submitted]
    await until(lambda: request_id in house.engine.record.aborted)
    assert house.engine.record.num_delivered[request_id] < 500
    await house.check_alive()


@pytest.mark.case("E2")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("queued", [False, True])
async def test_a_lost_client_is_removed_wherever_it_is(make_house: Make, stream: bool, queued: bool) -> None:
    """Running and queued; a queued request is never started."""
    house: House = await make_house(info=LONG, step_s=0.002, engine_seqs=1)
    hog = None
    if queued:
        house.script(ENDLESS)
        hog = asyncio.create_task(house.complete())
        await until(lambda: house.engine.num_running == 1)
    house.script(ENDLESS)
    async with raw_client(house) as client:
        await client.send_json("/v1/completions", {"prompt": "Hi", "stream": stream, "max_tokens": 5000})
        await until(lambda: len(house.engine.record.submitted) == 1 + queued)
        victim = house.engine.record.submitted[-1].request_id
        if not queued:
            await until(lambda: victim in house.engine.record.num_delivered)
    await until(lambda: victim in house.engine.record.aborted)
    if queued:
        assert victim not in house.engine.record.num_delivered
    if hog is not None:
        hog.cancel()
        await asyncio.gather(hog, return_exceptions=True)
    await house.check_alive()


async def test_a_client_that_goes_while_it_sends_leaves_nothing(make_house: Make) -> None:
    house: House = await make_house()
    async with raw_client(house) as client:
        await client.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"prompt":'
        )
        await until(lambda: house.gateway.bodies.total_bytes > 0)
    await house.idle()
    assert b'outcome="cancelled"} 1.0' in (await house.request("GET", "/metrics")).body
    await house.check_alive()
    assert len(house.engine.record.submitted) == 1


@pytest.mark.case("E4")
async def test_streams_closed_in_every_moment_of_their_lives(make_house: Make) -> None:
    house: House = await make_house(max_waiting=1000, max_num_seqs=100, engine_seqs=100)
    number = 150
    scripts = [Script(token_ids=text_ids("ab"), endless=i % 3 > 0, stop_token_id=266) for i in range(number)]
    house.script(*scripts)

    async def one(i: int) -> None:
        async with raw_client(house) as client:
            await client.send_json(
                "/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 3 + i % 5}
            )
            if i % 2:
                await client.read_until(b"data: ")

    await asyncio.gather(*(one(i) for i in range(number)))
    await house.check_alive()


@pytest.mark.case("E4")
@pytest.mark.parametrize("abruptly", [False, True])
async def test_many_streams_closed_in_the_same_moment(make_house: Make, abruptly: bool) -> None:
    """Waiting, running, and just finishing."""
    number = 300
    house: House = await make_house(
        info=LONG, max_waiting=number, max_waiting_tokens=10**6, engine_seqs=100, step_s=0.001
    )
    house.script(
        *(Script(token_ids=text_ids("ab"), endless=i % 3 > 0, stop_token_id=266) for i in range(number))
    )
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw_client(house)) for _ in range(number)]
        body = {"prompt": "Hi", "stream": True, "max_tokens": 1000}
        await asyncio.gather(*(client.send_json("/v1/completions", body) for client in clients))
        await until(lambda: len(house.engine.record.submitted) == number)
        for client in clients:
            if abruptly:
                reset(client)
            client.sock.close()
    await house.check_alive()


# ---- many clients --------------------------------------------------------------------------------


@pytest.mark.case("E15")
@pytest.mark.parametrize("stream", [False, True])
async def test_past_the_bound_requests_are_refused_with_a_hint(make_house: Make, stream: bool) -> None:
    house: House = await make_house(max_num_seqs=2, max_waiting=3, engine_seqs=2, step_s=0.002)
    house.script(*[Script(token_ids=text_ids("ok"), stop_token_id=266, prefill_steps=20)] * 5)
    replies = await asyncio.gather(*(house.complete(stream=stream) for _ in range(60)))
    good = [reply for reply in replies if reply.status == 200]
    refused = [reply for reply in replies if reply.status == 429]
    assert len(good) + len(refused) == 60
    assert len(good) >= 5
    assert all(reply.text == "ok" for reply in good)
    for reply in refused:
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.error["code"] == "server_busy"
    await house.check_alive()


@pytest.mark.case("E16")
async def test_a_giant_prompt_leaves_the_other_streams_running(make_house: Make) -> None:
    """Tokens of the others keep coming while the prompt is read."""
    house: House = await make_house(info=LONG, step_s=0.002)
    house.script(ENDLESS)
    async with raw_client(house) as client:
        await client.send_json("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 5000})
        await client.read_until(b"data: ")
        (streaming,) = house.engine.request_ids
        before = house.engine.record.num_delivered[streaming]
        reply = await house.complete(prompt="a" * 900_000, max_tokens=1)
        assert reply.status == 200
        assert house.engine.record.num_delivered[streaming] > before + 5
    await house.check_alive()


@pytest.mark.case("E11")
async def test_a_pooled_connection_is_used_again(make_house: Make) -> None:
    """An idle connection stays open, after streams as after plain answers."""
    house: House = await make_house()
    async with raw_client(house) as client:
        for stream in (False, True, False):
            await client.send_json("/v1/completions", {"prompt": "Hi", "stream": stream, "max_tokens": 5000})
            data = await client.read_until(b"[DONE]\n\n\r\n0\r\n\r\n" if stream else b'"usage":{')
            assert b"connection: close" not in data.lower()
            await asyncio.sleep(0.02)
            client.received = b""
    await house.check_alive()
