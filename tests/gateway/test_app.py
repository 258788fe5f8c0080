"""Around every handler: keys, error shapes, draining, the site's life."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.scripted import Script, ScriptedEngine
from gateway.app import serve
from gateway.detokenizer import UnsupportedTokenizerError
from gateway.listeners import bound_listeners
from gateway.state import GatewaySettings
from tests.gateway.house import House, engine_info, raw_client, text_ids, until

Make = Callable[..., Any]
ENDLESS = Script(token_ids=text_ids("abcdefgh"), endless=True)


# ---- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer wrong", "Basic first", "first", "Bearer firs", "Bearer first2", "Bearer é"],
)
async def test_a_wrong_key_is_401_on_the_api_and_nothing_else(make_house: Make, header: str | None) -> None:
    house: House = await make_house(api_keys=("first", "second"))
    headers = {} if header is None else {"Authorization": header}
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/v1/nothing")):
        reply = await house.request(method, path, headers=headers)
        assert reply.status == 401
        assert reply.error["code"] == "invalid_api_key"
        assert reply.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/metrics", "/version"):
        assert (await house.request("GET", path, headers=headers)).status == 200
    assert not house.engine.record.submitted


@pytest.mark.parametrize("header", ["Bearer first", "Bearer second", "bearer first", "Bearer  first "])
async def test_a_right_key_opens(make_house: Make, header: str) -> None:
    house: House = await make_house(api_keys=("first", "second"))
    assert (await house.complete(headers={"Authorization": header})).status == 200


async def test_debug_needs_the_admin_key(make_house: Make) -> None:
    house: House = await make_house(api_keys=("user",), admin_key="admin")
    for key, status in (("user", 401), ("admin", 200)):
        reply = await house.request("GET", "/debug/integrity", headers={"Authorization": f"Bearer {key}"})
        assert reply.status == status
    assert reply.json["problems"] == []
    assert reply.json["stats"]["tiers"]["device"]["blocks_free"] == 64
    assert (await house.complete(headers={"Authorization": "Bearer admin"})).status == 401


async def test_debug_kv_shows_the_tiers_and_where_each_request_is(make_house: Make) -> None:
    house: House = await make_house(admin_key="admin")
    assert (await house.request("GET", "/debug/kv")).status == 401
    reply = await house.request("GET", "/debug/kv", headers={"Authorization": "Bearer admin"})
    assert reply.status == 200
    assert reply.json["tiers"]["device"]["blocks_free"] == 64
    assert reply.json["transfers"]["swap_in"]["num_bytes"] == 0
    assert reply.json["sequences"] == [] and reply.json["num_requests"] == 0


@pytest.mark.parametrize("api_keys", [(), ("user",)])
async def test_without_an_admin_key_there_is_no_debug(make_house: Make, api_keys: tuple[str, ...]) -> None:
    house: House = await make_house(api_keys=api_keys)
    for path in ("/debug/integrity", "/debug/kv"):
        assert (await house.request("GET", path, headers={"Authorization": "Bearer user"})).status == 404


@pytest.mark.parametrize(
    "target",
    [
        "/v1/models", "//v1/models", "/%76%31/models", "/v1%2Fmodels", "/./v1/models", "/x/../v1/models",
        "/V1/models", "/v1//models", "/v1/models/", "/v1/models?x", "/v1/models#x", "/v1/models;x",
        "/v1/%6dodels", "http://t/v1/models", "http://t/%76%31/models", "/v1/models/tiny",
        "/v1/models/%74iny", "/debug/kv", "/%64ebug/kv", "/debug%2fkv", "http://t/debug/kv", "//debug/kv",
        "/tokenize", "/%74okenize",
    ],
)  # fmt: skip
async def test_no_spelling_of_a_path_gets_past_its_key(make_house: Make, target: str) -> None:
    house: House = await make_house(api_keys=("user",), admin_key="admin")
    for method in ("GET", "HEAD", "POST"):
        async with raw_client(house) as client:
            await client.send(f"{method} {target} HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n".encode())
            status = int((await client.read_until(b"\r\n\r\n")).split()[1])
        assert status in (400, 401, 404, 405), method


# ---- shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404), ("POST", "/v1/unknown", 404), ("GET", "/v1/models/unknown", 404),
        ("GET", "/v1/completions", 405), ("DELETE", "/v1/chat/completions", 405), ("POST", "/health", 405),
        ("OPTIONS", "/v1/models", 405), ("GET", "/../../etc/passwd", 404), ("GET", "/%00", 404),
    ],
)  # fmt: skip
async def test_what_is_not_there_has_the_same_shape(
    make_house: Make, method: str, path: str, status: int
) -> None:
    house: House = await make_house()
    reply = await house.request(method, path)
    assert reply.status == status
    assert reply.error["type"] == "invalid_request_error"
    assert ("allow" in reply.headers) == (status == 405)
    assert reply.headers["x-accel-buffering"] == "no"


async def test_an_unforeseen_error_is_a_500_without_details(
    make_house: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house: House = await make_house()

    def fail(body: bytes) -> None:
        raise RuntimeError("secret inner workings")

    monkeypatch.setattr(house.gateway.completions, "parse", fail)
    reply = await house.complete(headers={"x-request-id": "mine"})
    assert reply.status == 500
    assert "secret" not in reply.error["message"]
    assert "mine" in caplog.text
    monkeypatch.undo()
    await house.check_alive()


# ---- draining ------------------------------------------------------------------------------------


@pytest.mark.case("E13")
async def test_draining_lets_streams_finish_and_refuses_new_requests(make_house: Make) -> None:
    house: House = await make_house(step_s=0.005)
    house.script(*[Script(token_ids=text_ids("x" * 30), stop_token_id=266)] * 20)
    asks = [asyncio.create_task(house.complete(stream=i % 2 == 0)) for i in range(20)]
    await until(lambda: house.engine.num_running == 20)
    drain = asyncio.create_task(house.gateway.drain(30))
    await asyncio.sleep(0)
    late = await house.complete()
    assert (late.status, late.error["code"]) == (503, "shutting_down")
    assert late.headers["connection"] == "close"
    assert int(late.headers["retry-after"]) >= 1
    health = await house.request("GET", "/health")
    assert (health.status, health.json["status"]) == (503, "draining")
    assert {reply.text for reply in await asyncio.gather(*asks)} == {"x" * 30}
    await asyncio.wait_for(drain, 10)
    await house.idle()


@pytest.mark.case("E13")
async def test_what_does_not_finish_in_time_is_ended_in_band(make_house: Make) -> None:
    house: House = await make_house(step_s=0.002, info={"max_model_len": 1_000_000})
    house.script(*[ENDLESS] * 3)
    asks = [asyncio.create_task(house.complete(stream=i < 2)) for i in range(3)]
    await until(lambda: house.engine.num_running == 3)
    await asyncio.wait_for(house.gateway.drain(0.05), 10)
    *streams, plain = await asyncio.gather(*asks)
    for reply in streams:
        assert reply.events[-1]["error"]["message"] == "server shutting down"
    assert plain.status == 503
    assert len(house.engine.record.aborted) == 3
    await house.idle()


async def test_a_client_that_never_reads_does_not_hold_up_the_end(make_house: Make) -> None:
    house: House = await make_house(info={"max_model_len": 1_000_000}, send_buffer_bytes=4096, linger_s=0.05)
    house.script(ENDLESS)
    async with raw_client(house, receive_buffer=4096) as client:
        await client.send_json("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 5000})
        await until(lambda: bool(house.engine.record.paused))
        await asyncio.wait_for(house.gateway.drain(0.01), 10)
        await house.idle()


# ---- the site ------------------------------------------------------------------------------------


async def test_serve_from_start_to_stop(tokenizer_dir: str) -> None:
    engine = ScriptedEngine(engine_info(tokenizer_dir), lambda request: Script(token_ids=(97,)))
    stop, started = asyncio.Event(), asyncio.Event()
    with bound_listeners("127.0.0.1", 0, 65536) as listeners:
        task = asyncio.create_task(serve(engine, GatewaySettings(), listeners, stop, started.set))
        await asyncio.wait_for(started.wait(), 10)
        reader, writer = await asyncio.open_connection(*listeners[0].getsockname())
        writer.write(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
        assert b"200" in await reader.readline()
        stop.set()
        await asyncio.wait_for(task, 10)
        await reader.read()
        writer.close()
        await writer.wait_closed()
    await engine.close()


async def test_a_tokenizer_that_cannot_be_used_stops_the_start(tmp_path_factory: Any) -> None:
    empty = str(tmp_path_factory.mktemp("empty"))
    engine = ScriptedEngine(engine_info(empty), lambda request: ENDLESS)
    with pytest.raises(UnsupportedTokenizerError):
        await serve(engine, GatewaySettings(), [], asyncio.Event())
    await engine.close()


async def test_what_one_key_computes_no_other_finds(make_house: Make) -> None:
    house: House = await make_house(api_keys=("one", "two"))
    for key in ("one", "two", "one"):
        assert (await house.complete(headers={"Authorization": f"Bearer {key}"})).status == 200
    salts = [request.cache_salt for request in house.engine.record.submitted]
    assert salts[0] == salts[2] != salts[1]
    assert all(salts)


async def test_pipelined_requests_are_answered_in_order(make_house: Make) -> None:
    house: House = await make_house()
    body = json.dumps({"prompt": "Hi"}).encode()
    one = (
        b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )
    async with raw_client(house) as client:
        await client.send(one + one)
        async with asyncio.timeout(10):
            while client.received.count(b'"usage":{') < 2:
                client.received += await asyncio.get_running_loop().sock_recv(client.sock, 65536)
    await house.check_alive()


@pytest.mark.parametrize(
    "path", ["/health", "/metrics", "/version", "/v1/models", "/nowhere", "/v1/completions"]
)
async def test_head_is_get_without_the_body(make_house: Make, path: str) -> None:
    house: House = await make_house()
    get, head = [await house.request(method, path) for method in ("GET", "HEAD")]
    assert (head.status, head.body) == (get.status, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.case("E11")
async def test_while_draining_every_answer_ends_its_connection(make_house: Make) -> None:
    """A pool does not send its next request into a connection that is about to close."""
    house: House = await make_house()
    await house.gateway.drain(0)
    for path in ("/health", "/version", "/nowhere"):
        headers = (await house.request("GET", path)).headers
        assert headers["connection"] == "close"
        assert "keep-alive" not in headers
