"""``client.responses.connect()`` of the official client against the scripted engine: sync and async."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import openai
import pytest
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketAccumulator,
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
    ResponsesWebSocketSession,
)
from openai.types.websocket_reconnection import ReconnectingEvent, ReconnectingOverrides
from websockets.exceptions import ConnectionClosed, InvalidStatus

from engine.scripted import Script
from tests.gateway import families
from tests.gateway.house import IM_END, House, text_ids, until
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy

Make = Callable[..., Any]
TEXT = "Hello, you."
HELLO = Script(token_ids=text_ids(TEXT), stop_token_id=IM_END)
ENDLESS = Script(token_ids=text_ids("abcdefgh"), endless=True)
SESSION_LIMITS = ResponsesWebSocketLimits(
    max_lanes=4, max_events_per_lane=1000, max_events=4000, max_bytes_per_lane=2**24, max_bytes=2**26
)


@pytest.fixture
async def house(make_house: Make) -> AsyncIterator[House]:
    made: House = await make_house(api_keys=("key",), info={"max_model_len": 100_000})
    yield made
    await until(lambda: not len(made.gateway.sockets))
    await made.idle()


@pytest.fixture
async def client(house: House) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="key", max_retries=0) as client:
        yield client


def prompts(house: House) -> list[str]:
    return [
        bytes(i for i in request.prompt_token_ids if i < 256).decode()
        for request in house.engine.record.submitted
    ]


def typed(event: Any, kind: str) -> Any:
    """The event, which must be of this type, and known to the client as such."""
    assert event.type == kind, event
    assert not event.model_extra, event
    return event


async def until_type(connection: Any, *kinds: str) -> list[Any]:
    """Events up to the first of these types."""
    events = [await connection.recv()]
    while events[-1].type not in kinds:
        events.append(await connection.recv())
    return events


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


# ---- turns ---------------------------------------------------------------------------------------


async def test_turns_one_after_the_other(house: House, client: openai.AsyncOpenAI) -> None:
    house.script(HELLO, HELLO)
    async with client.responses.connect() as connection:
        await connection.response.create(model="tiny", input="Hi", instructions="Be kind.")
        events = await until_type(connection, "response.completed")
        assert text_of(events) == events[-1].response.output_text == TEXT
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert all(event.stream_id is None for event in events)
        await connection.response.create(
            model="tiny", input="And?", previous_response_id=events[-1].response.id, store=False
        )
        assert text_of(await until_type(connection, "response.completed")) == TEXT
    first, second = prompts(house)
    assert first.index("Be kind.") < first.index("Hi")
    assert second.index("Hi") < second.index(TEXT) < second.index("And?")


async def test_the_synchronous_client(house: House) -> None:
    house.script(HELLO, HELLO)

    def talk() -> list[str]:
        texts = []
        with (
            openai.OpenAI(base_url=f"{house.url}/v1", api_key="key") as client,
            client.responses.connect() as connection,
        ):
            for lane in ("a", "b"):
                connection.response.create(model="tiny", input="Hi", stream_id=lane)
                text = ""
                for event in connection:
                    assert cast(Any, event).stream_id == lane
                    if event.type == "response.output_text.delta":
                        text += event.delta
                    if event.type == "response.completed":
                        break
                texts.append(text)
        return texts

    assert await asyncio.to_thread(talk) == [TEXT, TEXT]


async def test_two_lanes_run_at_once_and_a_fork_shares_what_was_said(
    house: House, client: openai.AsyncOpenAI
) -> None:
    house.engine.step_s = 0.005
    house.script(HELLO)
    async with client.responses.connect() as connection:
        await connection.response.create(model="tiny", input="root", stream_id="a", store=False)
        root = (await until_type(connection, "response.completed"))[-1].response.id
        house.script(HELLO, HELLO)
        for lane in ("a", "b"):
            await connection.response.create(
                model="tiny", input=f"branch {lane}", stream_id=lane, previous_response_id=root, store=False
            )
        events = await until_type(connection, "response.completed")
        events += await until_type(connection, "response.completed")
    lanes = [event.stream_id for event in events if event.type == "response.output_text.delta"]
    assert lanes not in (sorted(lanes), sorted(lanes, reverse=True)), "they took turns"
    for lane in ("a", "b"):
        own = [event for event in events if event.stream_id == lane]
        assert text_of(own) == TEXT
        assert [event.sequence_number for event in own] == list(range(len(own)))
    _, one, other = house.engine.record.submitted
    shared = prompts(house)[1].index("branch")
    assert one.prompt_token_ids[:shared] == other.prompt_token_ids[:shared]
    assert one.session == other.session


async def test_a_prewarmed_turn_says_nothing_and_is_gone_on_from(
    house: House, client: openai.AsyncOpenAI
) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(model="tiny", input="long story", generate=False, store=False)
        events = await until_type(connection, "response.completed")
        warm = events[-1].response
        assert (warm.output, house.engine.record.submitted[0].sampling.max_tokens) == ([], 0)
        house.script(HELLO)
        await connection.response.create(model="tiny", input="Go on", previous_response_id=warm.id)
        assert text_of(await until_type(connection, "response.completed")) == TEXT
    assert "long story" in prompts(house)[1]


# ---- steering ------------------------------------------------------------------------------------


async def test_steering_ends_a_response_and_goes_on(house: House, client: openai.AsyncOpenAI) -> None:
    house.script(ENDLESS, HELLO)
    async with client.responses.connect() as connection:
        await connection.response.create(
            model="tiny", input="Hi", stream_id="a", instructions="Be kind.", metadata={"k": "v"}
        )
        events = await until_type(connection, "response.output_text.delta")
        parent = events[0].response.id
        await connection.response.steer(
            previous_response_id=parent,
            input=[
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "briefly"}]}
            ],
        )
        events += await until_type(connection, "response.steer.accepted")
        accepted = typed(events[-1], "response.steer.accepted")
        assert (accepted.steer.previous_response_id, accepted.stream_id) == (parent, "a")
        events += await until_type(connection, "response.incomplete")
        assert events[-1].response.incomplete_details.reason == "steered"
        said = text_of(events)
        assert said == events[-1].response.output_text
        successor = typed(await connection.recv(), "response.created").response
        assert successor.previous_response_id == parent
        assert (successor.instructions, successor.metadata) == ("Be kind.", {"k": "v"})
        events = await until_type(connection, "response.completed")
        assert text_of(events) == TEXT
        assert events[-1].stream_id == "a"
        await connection.response.steer(previous_response_id=successor.id, input="late")
        failed = typed(await connection.recv(), "response.steer.failed")
        assert (failed.error.code, failed.steer.input) == ("response_already_completed", "late")
        assert failed.steer.id is None
    prompt = prompts(house)[1]
    assert prompt.index("Hi") < prompt.index(said) < prompt.index("briefly")


TOOL: Any = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


async def test_steering_waits_for_the_results_of_calls(make_house: Make) -> None:
    house: House = await make_house(
        info={"chat_template": families.THINKING, "max_model_len": 8192}, step_s=0.001
    )
    house.say(text_ids(families.ANSWERS["hermes"] + "y" * 4000))
    tools: Any = [{**TOOL, "name": name} for name in ("f", "g")]
    async with (
        openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="key") as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(model="tiny", input="Hi", tools=tools, stream_id="a", store=False)
        events = await until_type(connection, "response.created")
        parent, calls = events[0].response.id, list[Any]()
        while len(calls) < 2:
            done = (await until_type(connection, "response.output_item.done"))[-1]
            calls += [done.item] if done.item.type == "function_call" else []
        await connection.response.steer(previous_response_id=parent, input="briefly")
        await until_type(connection, "response.incomplete")
        pending = typed(await connection.recv(), "response.steer.pending")
        assert (pending.steer.previous_response_id, pending.stream_id) == (parent, "a")
        results = [{**stub.to_dict(), "output": "result"} for stub in pending.required_input]
        assert [result["name"] for result in results] == ["f", "g"]
        house.script(HELLO)
        await connection.response.create(
            model="tiny", input=cast(Any, results), previous_response_id=parent, stream_id="a", store=False
        )
        assert text_of(await until_type(connection, "response.completed")) == TEXT
    prompt = prompts(house)[1]
    assert prompt.index("Hi") < prompt.index("briefly") < prompt.index("result")


# ---- errors --------------------------------------------------------------------------------------


async def test_errors_are_those_that_the_client_knows(house: House, client: openai.AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        for fields, code in (
            ({"stream_id": "no spaces"}, "invalid_stream_id"),
            ({"stream_id": "a", "previous_response_id": "resp_none"}, "previous_response_not_found"),
            ({"stream_id": "a", "background": True}, "unsupported_parameter"),
        ):
            await connection.response.create(model="tiny", input="Hi", **cast(Any, fields))
            error = typed(await connection.recv(), "error")
            assert (error.error.code, error.error.type) == (code, "invalid_request_error")
            assert error.status in (400, 404)
            assert error.stream_id == (None if code == "invalid_stream_id" else "a")
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="other") as other:
        with pytest.raises(InvalidStatus, match="401"):
            await other.responses.connect().enter()


# ---- sessions of the client's library --------------------------------------------------------------


async def test_a_session_with_lanes(house: House, client: openai.AsyncOpenAI) -> None:
    house.script(HELLO, HELLO)
    async with (
        client.responses.connect(websocket_connection_options={"max_size": None}) as connection,
        AsyncResponsesWebSocketSession(connection, limits=SESSION_LIMITS) as session,
    ):
        lanes = [session.lane("a"), session.lane("b")]
        for lane in lanes:
            await lane.send({"type": "response.create", "model": "tiny", "input": "Hi"})
        accumulator = ResponsesWebSocketAccumulator()
        first = await lanes[0].get_final_response()
        assert first.output_text == TEXT
        while True:
            event = await lanes[1].recv()
            accumulator.add_event(event)
            if event.type == "response.completed":
                break
        assert accumulator.snapshot().output_text == TEXT
        assert accumulator.get_final_response().output_text == TEXT
        await lanes[0].send(
            {"type": "response.create", "model": "tiny", "input": "x", "previous_response_id": "resp_none"}
        )
        with pytest.raises(ResponsesWebSocketError):
            await lanes[0].get_final_response()


async def test_a_synchronous_session(house: House) -> None:
    house.script(HELLO, HELLO)

    def talk() -> list[str]:
        with (
            openai.OpenAI(base_url=f"{house.url}/v1", api_key="key") as client,
            client.responses.connect() as connection,
            ResponsesWebSocketSession(connection, limits=SESSION_LIMITS) as session,
        ):
            lanes = [session.default, session.lane("b")]
            for lane in lanes:
                lane.send({"type": "response.create", "model": "tiny", "input": "Hi"})
            return [lane.get_final_response(timeout=10).output_text for lane in lanes]

    assert await asyncio.to_thread(talk) == [TEXT, TEXT]


# ---- connections that break ----------------------------------------------------------------------


class Listener:
    """Takes one response through whatever happens to the connection, as the client's docs would have it."""

    def __init__(self) -> None:
        self.response_id: str | None = None
        self.numbers: list[int] = []
        self.text = ""
        self.is_over = False
        self.reconnected_with: list[Any] = []

    def overrides(self, event: ReconnectingEvent) -> ReconnectingOverrides | None:
        self.reconnected_with.append(event.close_code)
        if self.response_id is None:
            return None
        number = self.numbers[-1]
        return {"extra_query": {"response_id": self.response_id, "starting_after": number}}

    def take(self, event: Any) -> None:
        assert event.type != "error", event
        self.numbers.append(event.sequence_number)
        if event.type == "response.created":
            self.response_id = event.response.id
        if event.type == "response.output_text.delta":
            self.text += event.delta
        self.is_over = event.type == "response.completed"


def num_events() -> int:
    return 8 + len(TEXT)


async def heard(proxy: CuttingProxy, key: str) -> Listener:
    listener = Listener()

    def on_reconnecting(event: ReconnectingEvent) -> ReconnectingOverrides | None:
        if listener.response_id is None:  # nobody knows of it: ask again once there is a connection
            repeats.append(asyncio.create_task(connection.response.create(model="tiny", input="Hi")))
        return listener.overrides(event)

    repeats: list[asyncio.Task[None]] = []
    async with (
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key=key) as client,
        client.responses.connect(
            on_reconnecting=on_reconnecting, initial_delay=0.001, max_delay=0.002
        ) as connection,
    ):
        with contextlib.suppress(ConnectionClosed):  # cut before it could be said
            await connection.response.create(model="tiny", input="Hi")
        async for event in connection:
            listener.take(event)
            if listener.is_over:
                break
    await asyncio.gather(*repeats)
    return listener


async def test_a_socket_that_is_cut_at_every_event_loses_and_doubles_nothing(house: House) -> None:
    async with cutting_proxy(house.port) as proxy:
        for position in range(num_events()):
            house.scripts.clear()
            house.script(HELLO, HELLO)
            proxy.cuts = [position]
            listener = await heard(proxy, "key")
            assert listener.text == TEXT, position
            assert listener.numbers == list(range(num_events())), position
            assert listener.reconnected_with == [1006]
            assert len(proxy.cuts) == 0


async def test_a_socket_that_is_cut_again_and_again(house: House) -> None:
    house.script(HELLO)
    async with cutting_proxy(house.port) as proxy:
        proxy.cuts = [3, 1, 1, 4, 2]
        listener = await heard(proxy, "key")
    assert (listener.text, listener.numbers) == (TEXT, list(range(num_events())))
    assert len(house.engine.record.submitted) == 1


async def test_the_synchronous_client_is_cut_too(house: House) -> None:
    async with cutting_proxy(house.port) as proxy:

        def talk() -> Listener:
            listener = Listener()

            def on_reconnecting(event: ReconnectingEvent) -> ReconnectingOverrides | None:
                if listener.response_id is None:
                    connection.response.create(model="tiny", input="Hi")
                return listener.overrides(event)

            with (
                openai.OpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="key") as client,
                client.responses.connect(
                    on_reconnecting=on_reconnecting, initial_delay=0.001, max_delay=0.002
                ) as connection,
            ):
                with contextlib.suppress(ConnectionClosed):  # cut before it could be said
                    connection.response.create(model="tiny", input="Hi")
                for event in connection:
                    listener.take(event)
                    if listener.is_over:
                        break
            return listener

        for position in (0, 1, 6, num_events() - 1):
            house.scripts.clear()
            house.script(HELLO, HELLO)
            proxy.cuts = [position]
            listener = await asyncio.to_thread(talk)
            assert (listener.text, listener.numbers) == (TEXT, list(range(num_events()))), position


async def test_a_server_that_stops_is_come_back_to(house: House, client: openai.AsyncOpenAI) -> None:
    codes = []

    def on_reconnecting(event: ReconnectingEvent) -> ReconnectingOverrides:
        codes.append(event.close_code)
        return {"abort": True}

    async with client.responses.connect(on_reconnecting=on_reconnecting) as connection:
        draining = asyncio.create_task(house.gateway.drain(5))
        async for _ in connection:
            pass
        await draining
    assert codes == [1001], "a code that the client tries again after"
