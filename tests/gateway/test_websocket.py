"""The WebSocket at /v1/responses over real sockets: who comes in, what is said, and how it ends."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from engine.scripted import Script
from gateway.connection_limits import WebSocketLimits
from gateway.mailbox import SHUTDOWN, StreamLimits
from gateway.protocol.ws_session import WsSession
from gateway.responses.records import ResponseRecord
from gateway.responses.store import StateStore
from gateway.tenants import hash_key
from tests.gateway.house import House, RawClient, raw_client, text_ids, until

Make = Callable[..., Any]
ENDLESS = Script(token_ids=text_ids("abcdefgh"), endless=True)
LONG = {"max_model_len": 1_000_000}
PATH = "/v1/responses"


class Client:
    """One WebSocket; what it says and gets."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws

    async def send(self, type: str, **fields: Any) -> None:
        await self.ws.send_str(json.dumps({"type": type, **fields}))

    async def create(self, **fields: Any) -> None:
        await self.send("response.create", **{"input": "Hi", **fields})

    async def event(self) -> dict[str, Any]:
        message = await self.ws.receive(timeout=10)
        assert message.type is WSMsgType.TEXT, (message, self.ws.close_code)
        event: dict[str, Any] = json.loads(message.data)
        return event

    async def until(self, *types: str) -> list[dict[str, Any]]:
        """Events up to the first of these types."""
        events = [await self.event()]
        while events[-1]["type"] not in types:
            events.append(await self.event())
        return events

    async def answer(self, **fields: Any) -> tuple[str, str]:
        """Text and id of one turn."""
        await self.create(**fields)
        events = await self.until("response.completed", "error")
        assert events[-1]["type"] == "response.completed", events[-1]
        return text_of(events), events[-1]["response"]["id"]

    async def close_code(self) -> int:
        """Of the end that comes next."""
        message = await self.ws.receive(timeout=10)
        assert message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING), message
        assert self.ws.close_code is not None
        return self.ws.close_code


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


@asynccontextmanager
async def connected(house: House, query: str = "", **options: Any) -> AsyncIterator[Client]:
    async with house.session.ws_connect(house.url + PATH + query, **options) as ws:
        yield Client(ws)


async def refusal(house: House, query: str = "", **options: Any) -> int:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await house.session.ws_connect(house.url + PATH + query, **options)
    return caught.value.status


async def no_sockets(house: House) -> None:
    """Nothing of any connection is left."""
    await until(lambda: not len(house.gateway.sockets))
    await until(lambda: house.gateway.bodies.total_bytes == 0)
    if house.gateway.tenants.is_open_to_all:
        await house.check_alive()


# ---- who comes in --------------------------------------------------------------------------------


async def test_a_plain_get_is_told_to_upgrade(make_house: Make) -> None:
    house: House = await make_house()
    reply = await house.request("GET", PATH)
    assert (reply.status, reply.error["code"]) == (426, "upgrade_required")
    assert reply.headers["upgrade"] == "websocket"


async def test_a_key_comes_as_a_header_a_ticket_or_a_subprotocol(make_house: Make) -> None:
    house: House = await make_house(api_keys=("key",))
    bearer = {"Authorization": "Bearer key"}
    reply = await house.request("POST", "/v1/tickets", headers=bearer)
    assert reply.headers["cache-control"] == "no-store"
    ticket = reply.json["ticket"]
    protocols = ("realtime", "openai-insecure-api-key.key")
    async with connected(house, headers=bearer) as client:
        assert (await client.answer())[0] == "ok"
    async with connected(house, f"?ticket={ticket}") as client:
        assert (await client.answer())[0] == "ok"
    async with connected(house, protocols=protocols) as client:
        assert client.ws.protocol == "realtime"
        assert (await client.answer())[0] == "ok"
    async with connected(house, protocols=protocols[::-1]) as client:
        assert client.ws.protocol == "realtime"
    async with connected(house, protocols=protocols[1:]) as client:
        assert client.ws.protocol is None, "a key is never told back"
    await no_sockets(house)


async def test_nobody_else_comes_in(make_house: Make) -> None:
    house: House = await make_house(api_keys=("key",))
    good = {"Authorization": "Bearer key"}
    ticket = (await house.request("POST", "/v1/tickets", headers=good)).json["ticket"]
    for options in (
        {},
        {"headers": {"Authorization": "Bearer other"}},
        {"protocols": ("realtime",)},
        {"protocols": ("openai-insecure-api-key.", "realtime")},
        {"protocols": ("openai-insecure-api-key.other", "realtime")},
        {"query": "?ticket="},
        {"query": "?ticket=tgt-other"},
        {"query": f"?ticket={ticket}", "headers": {"Authorization": "Bearer other"}},
    ):
        assert await refusal(house, **options) == 401, options  # type: ignore[arg-type]
    assert (await house.request("POST", "/v1/tickets")).status == 401
    assert (await house.request("GET", f"/v1/models?ticket={ticket}")).status == 401, "for WebSockets only"
    async with connected(house, f"?ticket={ticket}"):
        assert await refusal(house, f"?ticket={ticket}") == 401, "a ticket is good once"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 101), ("http://{host}", 101), ("HTTP://{host}", 101), ("https://{host}", 101),
        ("https://chat.example", 101), ("https://evil.example", 403), ("http://127.0.0.1", 403),
        ("null", 403), ("", 403), ("http://{host}.evil.example", 403), ("https://chat.example.evil", 403),
    ],
)  # fmt: skip
async def test_pages_of_other_hosts_do_not(make_house: Make, origin: str | None, status: int) -> None:
    house: House = await make_house(cors_origins=("https://chat.example",))
    headers = {} if origin is None else {"Origin": origin.format(host=f"127.0.0.1:{house.port}")}
    if status == 101:
        async with connected(house, headers=headers) as client:
            assert (await client.answer())[0] == "ok"
    else:
        assert await refusal(house, headers=headers) == status


async def test_a_key_that_is_revoked_takes_no_more_turns(make_house: Make, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.touch(0o600)
    table = '[tenants.{0}]\nkeys = ["{1}"]\n'
    path.write_text(table.format("a", hash_key("a-key")) + table.format("b", hash_key("b-key")))
    house: House = await make_house(keys_file=path, info=LONG)
    async with connected(house, headers={"Authorization": "Bearer a-key"}) as client:
        house.script(ENDLESS)
        await client.create(stream_id="a", store=False)
        response_id = (await client.until("response.created"))[-1]["response"]["id"]
        path.write_text(table.format("b", hash_key("b-key")))
        await house.gateway.tenants.reload()
        await client.create(stream_id="b")
        error = (await client.until("error"))[-1]
        assert (error["status"], error["error"]["code"], error["stream_id"]) == (401, "invalid_api_key", "b")
        run = house.gateway.streams.request_ids
        assert run, "what runs goes on under the key it came with"
        assert response_id
        house.gateway.streams.end_all(SHUTDOWN)
        await client.until("response.failed")
        assert await client.close_code() == 4401


# ---- what is said --------------------------------------------------------------------------------


async def test_text_and_binary_messages_mean_the_same(make_house: Make) -> None:
    house: House = await make_house()
    async with connected(house) as client:
        await client.ws.send_bytes(b'{"type":"response.create","input":"Hi"}')
        assert text_of(await client.until("response.completed")) == "ok"
        await client.ws.send_str("nonsense")
        assert (await client.event())["error"]["code"] == "invalid_value"
        assert (await client.answer())[0] == "ok"


async def test_errors_have_the_shape_that_the_client_knows(make_house: Make) -> None:
    house: House = await make_house()
    async with connected(house) as client:
        await client.create(model="other", stream_id="a")
        event = await client.event()
        error = event.pop("error")
        assert event == {"type": "error", "status": 404, "stream_id": "a"}
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        await client.create(previous_response_id="resp_none")
        event = await client.event()
        assert event["error"]["code"] == "previous_response_not_found"
        assert event["error"]["param"] == "previous_response_id"
        assert "stream_id" not in event
        await until(lambda: house.gateway.bodies.total_bytes == 0)  # while the connection is open
    await no_sockets(house)


async def test_a_long_message_is_read_too(make_house: Make) -> None:
    house: House = await make_house(info=LONG)
    async with connected(house) as client:
        assert (await client.answer(input="x" * 300_000))[0] == "ok"
        assert house.gateway.bodies.total_bytes == 0
    assert len(house.engine.record.submitted[-1].prompt_token_ids) > 300_000


@pytest.mark.parametrize("where", ["same", "other", "none"])
async def test_what_is_not_stored_can_be_gone_on_from_on_its_connection_only(
    make_house: Make, where: str
) -> None:
    house: House = await make_house()
    async with connected(house) as client, connected(house) as other:
        _, parent = await client.answer(store=False, input="first")
        await (other if where == "none" else client).create(
            store=False, previous_response_id=parent, **({"stream_id": "a"} if where == "other" else {})
        )
        if where == "none":
            assert (await other.event())["error"]["code"] == "previous_response_not_found"
        else:
            await client.until("response.completed")
            prompt = bytes(i for i in house.engine.record.submitted[-1].prompt_token_ids if i < 256)
            assert b"first" in prompt and b"ok" in prompt
    assert (await house.request("GET", f"{PATH}/{parent}")).status == 404


async def test_a_history_that_nothing_keeps_has_each_turn_once(make_house: Make) -> None:
    house: House = await make_house(info=LONG)
    async with connected(house) as client:
        parent = None
        for number in range(4):
            _, parent = await client.answer(
                store=number == 3, input=f"turn {number}", previous_response_id=parent
            )
        prompt = bytes(i for i in house.engine.record.submitted[-1].prompt_token_ids if i < 256)
        assert [prompt.count(b"turn %d" % number) for number in range(4)] == [1, 1, 1, 1]
    items = (await house.request("GET", f"{PATH}/{parent}/input_items")).json["data"]
    assert len(items) == 7


async def test_a_refused_turn_evicts_its_parent_in_the_same_lane_only(make_house: Make) -> None:
    house: House = await make_house()
    async with connected(house) as client:
        _, parent = await client.answer(store=False, stream_id="a")
        for lane, error in (("b", "unsupported_parameter"), ("a", "unsupported_parameter")):
            await client.create(previous_response_id=parent, stream_id=lane, nonsense=1)
            assert (await client.event())["error"]["code"] == error
        await client.create(previous_response_id=parent, store=False, stream_id="b")
        assert (await client.event())["error"]["code"] == "previous_response_not_found"
        _, parent = await client.answer(store=False, stream_id="a")
        await client.create(previous_response_id=parent, stream_id="b", nonsense=1)
        assert (await client.event())["error"]["code"] == "unsupported_parameter"
        await client.answer(previous_response_id=parent, store=False, stream_id="a")


async def test_cancel_ends_a_response_and_nothing_else(make_house: Make) -> None:
    house: House = await make_house(info=LONG)
    house.script(ENDLESS, ENDLESS)
    async with connected(house) as client:
        await client.create(stream_id="a")
        first = (await client.until("response.created"))[-1]["response"]["id"]
        await client.create(stream_id="b", store=False)
        while (await client.event()).get("stream_id") != "b":
            pass
        await client.send("response.cancel", response_id=first)
        ended = (await client.until("response.incomplete"))[-1]
        assert (ended["stream_id"], ended["response"]["status"]) == ("a", "cancelled")
        assert len(house.engine.request_ids) == 1
        await client.send("response.cancel", response_id="resp_none")
        assert (await client.until("error"))[-1]["status"] == 404
    await no_sockets(house)


async def test_cancels_are_looked_up_one_by_one(make_house: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    house: House = await make_house()
    look_up, lookups = StateStore.response, Counter[str]()

    async def slow(store: StateStore, tenant: str, response_id: str) -> ResponseRecord | None:
        lookups["now"] += 1
        lookups["most"] = max(lookups["most"], lookups["now"])
        await asyncio.sleep(0.002)
        found = await look_up(store, tenant, response_id)
        lookups["now"] -= 1
        return found

    monkeypatch.setattr(StateStore, "response", slow)
    async with connected(house) as client:
        for _ in range(20):
            await client.send("response.cancel", response_id="resp_none")
        assert [(await client.event())["status"] for _ in range(20)] == [404] * 20
    assert lookups["most"] == 1
    await no_sockets(house)


async def test_a_response_is_resumed_by_event_and_by_url(make_house: Make) -> None:
    house: House = await make_house()
    house.say(text_ids("Hello there"))
    async with connected(house) as client:
        await client.create()
        whole = await client.until("response.completed")
    response_id = whole[-1]["response"]["id"]
    for number in (-1, 0, 5, len(whole) - 2):
        async with connected(house, f"?response_id={response_id}&starting_after={number}") as client:
            assert await client.until("response.completed") == whole[number + 1 :]
            await client.send(
                "response.resume", response_id=response_id, starting_after=number, stream_id="a"
            )
            again = await client.until("response.completed")
            assert [{k: v for k, v in e.items() if k != "stream_id"} for e in again] == whole[number + 1 :]
            assert {event["stream_id"] for event in again} == {"a"}
    async with connected(house, f"?response_id={response_id}&starting_after={len(whole) - 1}") as client:
        assert (await client.answer())[0] == "ok", "there is nothing more, and the lane is free"
        await client.send("response.resume", response_id=response_id, starting_after=len(whole))
        assert (await client.event())["error"]["param"] == "starting_after"
        _, unstored = await client.answer(store=False)
        for unknown in ("resp_none", unstored):
            await client.send("response.resume", response_id=unknown)
            assert (await client.event())["status"] == 404
    assert await refusal(house, f"?response_id={response_id}&starting_after=x") == 400
    await no_sockets(house)


# ---- how it ends ---------------------------------------------------------------------------------

UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + base64.b64encode(os.urandom(16)) + b"\r\n\r\n"
)


def frame(payload: bytes, opcode: int = 1) -> bytes:
    size = bytes((0x80 | len(payload),)) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2)
    return bytes((0x80 | opcode,)) + size + bytes(4) + payload


async def upgraded(client: RawClient) -> None:
    await client.send(UPGRADE)
    await client.read_until(b"\r\n\r\n")


def create_frame(**fields: Any) -> bytes:
    return frame(json.dumps({"type": "response.create", "input": "Hi", **fields}).encode())


STATES = {
    "before the upgrade": (b"", b""),
    "idle": (b"", b"\r\n\r\n"),
    "inside a frame": (create_frame()[:20], b"\r\n\r\n"),
    "inside a message": (b"\x01\x83" + bytes(4) + b'{"t', b"\r\n\r\n"),
    "starting": (create_frame(), b"\r\n\r\n"),
    "streaming, stored": (create_frame(), b"output_text.delta"),
    "streaming, not stored": (create_frame(store=False), b"output_text.delta"),
    "several lanes and a queue": (
        b"".join(create_frame(stream_id=lane) for lane in "abcabcabc"), b"output_text.delta",
    ),
    "steering": (b"steer", b"steer.accepted"),
    "bad event": (frame(b"nonsense"), b"invalid_value"),
    "after a close frame": (frame(b"\x03\xe8", 8), b"\x88"),
}  # fmt: skip


@pytest.mark.case("E7")
@pytest.mark.parametrize("state", STATES)
async def test_a_reset_costs_that_connection_only(make_house: Make, state: str) -> None:
    house: House = await make_house(info=LONG, detached_s=0.2)
    sent, mark = STATES[state]
    async with connected(house) as bystander:
        if state != "before the upgrade":
            house.script(*[ENDLESS] * 9)
        async with raw_client(house) as client:
            client.reset()
            if mark:
                await upgraded(client)
            else:
                await client.send(UPGRADE[:-20])
            if sent == b"steer":
                await client.send(create_frame())
                response_id = (await client.read_until(b"resp_")).partition(b'"id":"')[2].partition(b'"')[0]
                steer = {"previous_response_id": response_id.decode(), "input": "x"}
                sent = frame(json.dumps({"type": "response.steer", **steer}).encode())
            await client.send(sent)
            if mark:
                await client.read_until(mark)
        house.scripts.clear()
        assert (await bystander.answer())[0] == "ok"
    await no_sockets(house)


@pytest.mark.case("E6")
async def test_a_second_turn_waits_and_one_that_was_dropped_is_wholly_dropped(make_house: Make) -> None:
    """Turn 1 is cut by its client; turn 2 asks to follow it; turn 3 follows what was delivered."""
    house: House = await make_house(info=LONG)
    async with connected(house) as client:
        _, root = await client.answer(input="root")
        house.script(ENDLESS)
        await client.create(input="abandoned", previous_response_id=root)
        dropped = (await client.until("response.output_text.delta"))[0]["response"]["id"]
        await client.send("response.cancel", response_id=dropped)
        await client.create(input="second", previous_response_id=dropped)
        error = (await client.until("error"))[-1]["error"]
        assert error["code"] == "previous_response_not_found"
        await client.answer(input="third", previous_response_id=root)
        await client.create(input="one")
        one = (await client.until("response.created"))[-1]["response"]["id"]
        await client.create(input="two", previous_response_id=one)
        events = await client.until("response.completed") + await client.until("response.completed")
        assert [e["type"] for e in events].count("response.created") == 1
    prompts = [
        bytes(i for i in request.prompt_token_ids if i < 256) for request in house.engine.record.submitted
    ]
    assert b"root" in prompts[2] and b"third" in prompts[2] and b"abandoned" not in prompts[2]
    assert b"one" in prompts[4] and b"two" in prompts[4]
    await no_sockets(house)


@pytest.mark.case("E9")
async def test_connections_without_end_leave_nothing(make_house: Make) -> None:
    house: House = await make_house(info=LONG, detached_s=0.0)
    for number in range(16):
        house.script(ENDLESS)
        async with connected(house) as client:
            await client.create(store=bool(number % 2), prompt_cache_key=f"session {number}")
            await client.until("response.output_text.delta")
    await no_sockets(house)


@pytest.mark.case("E10")
async def test_a_client_that_does_not_read_is_closed_and_costs_a_bound(make_house: Make) -> None:
    house: House = await make_house(
        info=LONG,
        stream_limits=StreamLimits(pause_timeout_s=0.5),
        linger_s=0.2,
        max_event_log_bytes=100_000,
    )
    house.script(*[Script(token_ids=text_ids("x" * 64), endless=True, per_step=64)] * 3)
    async with raw_client(house, receive_buffer=4096) as client, connected(house) as other:
        await upgraded(client)
        await client.send(b"".join(create_frame(stream_id=lane, store=False) for lane in "abc"))
        await until(lambda: len(house.gateway.sockets) == 2)
        num_most = 0
        while len(house.gateway.sockets) == 2:
            connections = list(house.gateway.sockets._sockets)
            buffered = [
                s._request.transport.get_write_buffer_size() for s in connections if s._request.transport
            ]
            num_most = max(num_most, *buffered, 0)
            await asyncio.sleep(0.01)
        assert 0 < num_most < 2 * 64 * 2**10
        assert (await other.answer())[0] == "ok"
    await no_sockets(house)


async def test_one_that_does_not_answer_pings_is_gone(make_house: Make) -> None:
    house: House = await make_house(websocket_limits=WebSocketLimits(ping_s=0.6))
    async with connected(house) as good, raw_client(house) as silent:
        reading = asyncio.create_task(good.event())  # a client that reads answers them by itself
        await upgraded(silent)
        await until(lambda: len(house.gateway.sockets) == 2)
        await until(lambda: len(house.gateway.sockets) == 1)
        await good.create()
        assert (await reading)["type"] == "response.created"


async def test_pings_of_the_client_are_answered(make_house: Make) -> None:
    house: House = await make_house()
    async with raw_client(house) as client:
        await upgraded(client)
        await client.send(frame(b"hello", 9))
        await client.read_until(b"\x8a\x05hello")


async def test_an_idle_one_is_closed_and_one_that_works_is_not(make_house: Make) -> None:
    house: House = await make_house(
        info=LONG, step_s=0.01, websocket_limits=WebSocketLimits(idle_timeout_s=0.2)
    )
    house.say(text_ids("x" * 60))
    async with connected(house) as idle, connected(house) as busy:
        await busy.create()
        assert await idle.close_code() == 4408
        assert text_of(await busy.until("response.completed")) == "x" * 60
        assert await busy.close_code() == 4408


async def test_an_old_one_finishes_what_runs(make_house: Make) -> None:
    house: House = await make_house(step_s=0.01, websocket_limits=WebSocketLimits(max_age_s=0.1))
    house.say(text_ids("x" * 40))
    async with connected(house) as client:
        await client.create()
        await asyncio.sleep(0.2)
        await client.create(stream_id="late")
        events = await client.until("response.completed")
        (error,) = [event for event in events if event["type"] == "error"]
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        assert text_of(events) == "x" * 40
        assert await client.close_code() == 1001


async def test_a_message_that_is_too_long_closes_with_1009(make_house: Make) -> None:
    house: House = await make_house(max_body_bytes=1000)
    async with connected(house) as client:
        await client.create(input="x" * 2000)
        assert await client.close_code() == 1009
    await no_sockets(house)


async def test_a_message_of_the_full_length_is_read(make_house: Make) -> None:
    house: House = await make_house(max_body_bytes=1000)
    async with connected(house) as client:
        await client.ws.send_str("x" * 1000)
        assert (await client.event())["error"]["code"] == "invalid_value"
        await client.ws.send_str("x" * 1001)
        assert await client.close_code() == 1009


async def test_what_arrives_is_counted_with_all_bodies(make_house: Make) -> None:
    house: House = await make_house(max_body_bytes=200_000, max_total_body_bytes=250_000)
    async with raw_client(house) as one, raw_client(house) as other:
        for client in (one, other):
            await upgraded(client)
            await client.send(b"\x01\xff" + (150_000).to_bytes(8) + bytes(4) + b"x" * 140_000)
        closed = asyncio.gather(one.read_to_end(), other.read_to_end())
        await until(lambda: len(house.gateway.sockets) == 1)
        assert 0 < house.gateway.bodies.total_bytes <= 250_000
        one.sock.shutdown(1)
        other.sock.shutdown(1)
        assert sum(data.count(b"\x03\xf5") for data in await closed) == 1, "1013, once"
    await no_sockets(house)


@pytest.mark.case("E13")
async def test_draining_lets_running_responses_finish(make_house: Make) -> None:
    house: House = await make_house(step_s=0.005)
    house.say(text_ids("x" * 40))
    async with connected(house) as idle, connected(house) as busy:
        await busy.create(stream_id="a")
        await busy.until("response.output_text.delta")
        drained = asyncio.create_task(house.gateway.drain(10))
        assert await idle.close_code() == 1001
        await busy.create(stream_id="b")
        events = await busy.until("response.completed")
        assert [e["status"] for e in events if e["type"] == "error"] == [503]
        assert await busy.close_code() == 1001
        await drained
        assert len(house.gateway.sockets) == 0
    assert await refusal(house) == 503


async def test_what_does_not_finish_in_time_ends_in_band(make_house: Make) -> None:
    house: House = await make_house(info=LONG)
    house.script(ENDLESS)
    async with connected(house) as client:
        await client.create()
        await client.until("response.output_text.delta")
        drained = asyncio.create_task(house.gateway.drain(0.05))
        ended = (await client.until("response.failed"))[-1]
        assert ended["response"]["error"]["code"] == "server_error"
        assert await client.close_code() == 1001
        await drained


async def test_a_fault_of_ours_closes_with_1011_and_is_logged(
    make_house: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house: House = await make_house()
    async with connected(house) as client, connected(house) as other:
        with monkeypatch.context() as patch:
            patch.setattr(WsSession, "take", lambda *_: 1 / 0)
            await client.create()
            assert await client.close_code() == 1011
        assert (await other.answer())[0] == "ok"
    assert "ZeroDivisionError" in caplog.text
    await no_sockets(house)


async def test_compression_is_off_unless_asked_for(make_house: Make) -> None:
    for deflates in (False, True):
        house: House = await make_house(websocket_limits=WebSocketLimits(deflates=deflates))
        async with connected(house, compress=15) as client:
            assert bool(client.ws.compress) == deflates
            assert (await client.answer())[0] == "ok"


async def test_the_engine_dies_and_the_connection_lives(make_house: Make) -> None:
    house: House = await make_house(info=LONG)
    house.script(ENDLESS)
    async with connected(house) as client:
        await client.create()
        await client.until("response.output_text.delta")
        house.engine.die("test")
        assert (await client.until("response.failed"))[-1]["response"]["status"] == "failed"
        await client.send("nothing")
        assert (await client.event())["type"] == "error"
