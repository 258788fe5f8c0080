"""``client.responses.connect()`` against ``tidegate serve`` with the real model, greedy and deterministic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.types.websocket_reconnection import ReconnectingEvent, ReconnectingOverrides

from tests.support.cutting_proxy import cutting_proxy
from tests.support.kv_room import kv_mib
from tests.support.server import Server, running_server

STORY = "Tell me, in as many words as you like, what the tide does on a long and windy day. " * 4
GREEDY: Any = {"model": "SmolLM2-135M-Instruct", "temperature": 0, "max_output_tokens": 24}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server("--deterministic", "--device-kv", kv_mib(64), "--max-model-len", "2048") as server:
        yield server
        report = server.wait_idle()
        assert report["problems"] == []
        assert report["stats"]["blocks_in_use"] == 0
        assert "Traceback" not in server.log
        assert server.stop() == 0, server.log


@pytest.fixture
async def client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def ends(connection: Any, number: int) -> dict[str | None, Any]:
    """So many responses, by the lane in which they ended."""
    ended: dict[str | None, Any] = {}
    while len(ended) < number:
        event = await connection.recv()
        assert event.type != "error", event
        if event.type in ("response.completed", "response.incomplete", "response.failed"):
            ended[event.stream_id] = event.response
    return ended


async def test_prewarmed_forked_and_steered(client: openai.AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(**GREEDY, input=STORY, generate=False, store=False)
        root = (await ends(connection, 1))[None]
        for lane in ("a", "b"):
            await connection.response.create(
                **GREEDY, input="Go on.", previous_response_id=root.id, stream_id=lane, store=False
            )
        forks = await ends(connection, 2)
        assert forks["a"].output_text == forks["b"].output_text != ""
        for fork in forks.values():
            assert fork.usage.input_tokens_details.cached_tokens >= 48
        long = {**GREEDY, "max_output_tokens": 1000}
        await connection.response.create(**long, input="Count to a thousand.", stream_id="a")
        while (event := await connection.recv()).type != "response.output_text.delta":
            if event.type == "response.created":
                parent = event.response.id
        await connection.response.steer(previous_response_id=parent, input="Stop, and say goodbye.")
        steered = (await ends(connection, 1))["a"]
        assert steered.incomplete_details.reason == "steered"
        created = await connection.recv()
        assert (created.type, created.response.previous_response_id) == ("response.created", parent)
        await connection.send({"type": "response.cancel", "response_id": created.response.id})  # type: ignore[typeddict-item,misc]
        assert (await ends(connection, 1))["a"].status in ("cancelled", "completed")


async def test_what_was_cut_is_told_to_its_end(server: Server, client: openai.AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(**GREEDY, input=STORY)
        uncut = (await ends(connection, 1))[None].output_text
    seen: dict[str, Any] = {"text": ""}

    def on_reconnecting(event: ReconnectingEvent) -> ReconnectingOverrides:
        return {"extra_query": {"response_id": seen["id"], "starting_after": seen["number"]}}

    async with (
        cutting_proxy(server.port) as proxy,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="none") as through,
    ):
        proxy.cuts = [5, 3, 4]
        async with through.responses.connect(
            on_reconnecting=on_reconnecting, initial_delay=0.001
        ) as connection:
            await connection.response.create(**GREEDY, input=STORY)
            async for event in connection:
                assert event.type != "error", event
                seen["number"] = event.sequence_number
                if event.type == "response.created":
                    seen["id"] = event.response.id
                if event.type == "response.output_text.delta":
                    seen["text"] += event.delta
                if event.type in ("response.completed", "response.incomplete"):
                    break
        assert proxy.num_connections == 4
    assert seen["text"] == uncut != ""
