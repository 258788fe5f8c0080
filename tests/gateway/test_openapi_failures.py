"""Failures that no request by itself can cause: each is answered as the document says for its path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from engine.scripted import Script
from gateway.tenants import hash_key
from tests.gateway.house import House, Reply, text_ids, until

Make = Callable[..., Any]
COMPLETIONS = "/v1/completions"
BODY = {"prompt": "Hi", "max_tokens": 5}


async def conforms(house: House, path: str, reply: Reply, method: str = "post") -> Reply:
    """Status, content type, headers and body are among those that the document gives."""
    document = (await house.request("GET", "/openapi.json")).json
    told = document["paths"][path][method]["responses"][str(reply.status)]
    content = told["content"][reply.headers["content-type"].partition(";")[0]]
    assert is_valid(document, content["schema"], reply.json), reply.body
    for name, reference in told["headers"].items():
        header = document["components"]["headers"][reference["$ref"].rpartition("/")[2]]
        value: Any = reply.headers.get(name.lower())
        assert value is not None or not header.get("required", False), name
        if value is not None:
            value = int(value) if header["schema"].get("type") == "integer" else value
            assert is_valid(document, header["schema"], value), (name, value)
    untold = {name for name in reply.headers if name.startswith(("x-tidegate", "x-ratelimit", "retry-after"))}
    assert untold <= {name.lower() for name in told["headers"]}
    return reply


def is_valid(document: Any, schema: Any, value: Any) -> bool:
    return jsonschema_rs.is_valid({**schema, "components": document["components"]}, value)


async def test_a_draining_server(make_house: Make) -> None:
    house: House = await make_house()
    house.gateway.draining = True
    reply = await conforms(house, COMPLETIONS, await house.complete())
    assert (reply.status, reply.headers["retry-after"]) == (503, "10")
    health = await conforms(house, "/health", await house.request("GET", "/health"), "get")
    assert health.status == 503


async def test_a_dead_engine(make_house: Make) -> None:
    house: House = await make_house()
    house.engine.die("gone")
    reply = await conforms(house, COMPLETIONS, await house.complete())
    assert (reply.status, reply.error["code"]) == (503, "engine_dead")


async def test_a_request_that_fails(make_house: Make) -> None:
    house: House = await make_house()
    house.script(Script(token_ids=text_ids("abc"), fail_after=0))
    reply = await conforms(house, COMPLETIONS, await house.complete())
    assert (reply.status, reply.error["code"]) == (500, "request_failed")


async def test_a_failure_in_a_stream_is_an_event_that_the_document_has(make_house: Make) -> None:
    house: House = await make_house()
    house.script(Script(token_ids=text_ids("abc"), fail_after=2))
    reply = await house.complete(stream=True)
    document = (await house.request("GET", "/openapi.json")).json
    answer = document["paths"][COMPLETIONS]["post"]["responses"]["200"]
    event = answer["content"]["text/event-stream"]["schema"]
    payload = event["properties"]["data"]["anyOf"][1]["contentSchema"]
    assert "error" in reply.events[-1]
    assert all(is_valid(document, payload, event) for event in reply.events)


async def test_a_fault_of_ours(make_house: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    house: House = await make_house()

    def fail(body: bytes) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(house.gateway.completions, "parse", fail)
    assert (await conforms(house, COMPLETIONS, await house.complete())).status == 500


async def test_a_body_that_is_too_large(make_house: Make) -> None:
    house: House = await make_house(max_body_bytes=100)
    reply = await house.request("POST", "/tokenize", json={"prompt": "x" * 200})
    assert (await conforms(house, "/tokenize", reply)).status == 413


async def test_a_body_that_does_not_arrive(make_house: Make) -> None:
    house: House = await make_house(body_timeout_s=0.05)

    async def nothing() -> Any:
        yield b"{"
        await asyncio.sleep(10)

    headers = {"Content-Type": "application/json"}
    reply = await house.request("POST", "/detokenize", data=nothing(), headers=headers)
    assert (await conforms(house, "/detokenize", reply)).status == 408


async def test_a_full_house(make_house: Make) -> None:
    house: House = await make_house(max_num_seqs=1, max_waiting=0, engine_seqs=1)
    house.script(Script(token_ids=text_ids("a"), endless=True, prefill_steps=10_000))
    running = asyncio.create_task(house.complete())
    await until(lambda: house.gateway.admission.in_flight == 1)
    reply = await conforms(house, COMPLETIONS, await house.complete())
    assert (reply.status, reply.error["code"]) == (429, "server_busy")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await house.idle()


@pytest.mark.parametrize(
    ("limits", "status", "code"),
    [
        ("requests_per_minute = 1", 429, "rate_limit_exceeded"),
        ("tokens_per_minute = 12", 429, "rate_limit_exceeded"),
        ("tokens_per_minute = 3", 400, "above_rate_limit"),
    ],
)
async def test_a_limit_of_a_key(
    make_house: Make, tmp_path: Path, limits: str, status: int, code: str
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f'[tenants.acme]\nkeys = ["{hash_key("key")}"]\n{limits}\n')
    path.chmod(0o600)
    house: House = await make_house(keys_file=path)
    headers = {"Authorization": "Bearer key"}
    for _ in range(5):  # what an answer left of its reservation is given back
        reply = await conforms(house, COMPLETIONS, await house.complete(**BODY, headers=headers))
        if reply.status != 200:
            break
    assert (reply.status, reply.error["code"]) == (status, code)
    assert any(name.startswith("x-ratelimit-") for name in reply.headers)
    told = await house.request("POST", "/tokenize", json={"prompt": "Hi"}, headers=headers)
    await conforms(house, "/tokenize", told)
