"""What clients meet when the engine dies and another takes its place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.client import EngineDeadError, EngineHealth
from engine.scripted import Script
from gateway.tenants import hash_key
from tests.gateway.house import House, Reply, raw_client, text_ids, until
from tests.gateway.test_openapi_failures import conforms

Make = Callable[..., Any]
ENDLESS = Script(token_ids=text_ids("a"), endless=True)
LONG = {"max_model_len": 10**6, "num_blocks": 10**5}


async def health(house: House) -> tuple[int, str]:
    reply = await house.request("GET", "/health")
    return reply.status, reply.json["status"]


async def metric(house: House, name: str) -> float:
    text = (await house.request("GET", "/metrics")).body.decode()
    return next(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    )


async def bring_back(house: House) -> None:
    """Let another engine start, and wait until it serves."""
    num_restarts = house.gateway.engine.num_restarts
    house.may_start.set()
    await until(lambda: house.gateway.engine.num_restarts > num_restarts)


async def running(house: House, count: int, **body: Any) -> list[asyncio.Task[Reply]]:
    """So many answers without end, all of which the engine is at."""
    before = house.engine.num_running
    house.script(*[ENDLESS] * count)
    tasks = [asyncio.create_task(house.complete(**body)) for _ in range(count)]
    await until(lambda: house.engine.num_running == before + count)
    return tasks


async def test_the_server_goes_on_with_another_engine(make_house: Make) -> None:
    house: House = await make_house(engine_restarts=1, step_s=0.002, info=LONG)
    house.may_start.clear()
    streams = await running(house, 20, stream=True, max_tokens=10**5)
    house.engine.die("out of luck")
    for reply in await asyncio.gather(*streams):
        assert reply.events[-1]["error"]["code"] == "engine_dead"
    assert await health(house) == (503, "restarting")
    await house.idle()
    await bring_back(house)
    assert len(house.engines) == 2
    assert await health(house) == (200, "ok")
    await house.check_alive()
    assert await metric(house, "tidegate_engine_restarts_total") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_what_comes_meanwhile_is_told_when_to_come_back(make_house: Make, stream: bool) -> None:
    house: House = await make_house(engine_restarts=1)
    house.may_start.clear()
    house.engine.die("out of luck")
    for reply in (await house.complete(stream=stream), await house.chat(stream=stream)):
        await conforms(house, "/v1/completions", reply)
        assert (reply.status, reply.error["code"]) == (503, "engine_dead")
        assert int(reply.headers["retry-after"]) == 1  # the first one had started at once
    assert not house.engine.record.submitted
    await bring_back(house)
    await house.check_alive()


async def test_an_answer_that_was_lost_is_told_so_too(make_house: Make) -> None:
    house: House = await make_house(engine_restarts=1, step_s=0.002, info=LONG)
    [whole] = await running(house, 1, max_tokens=10**5)
    house.may_start.clear()
    house.engine.die("out of luck")
    reply = await whole
    assert (reply.status, reply.error["code"]) == (503, "engine_dead")
    assert "retry-after" in reply.headers


async def test_a_response_that_was_lost_is_kept_as_failed_and_new_ones_are_refused(make_house: Make) -> None:
    house: House = await make_house(engine_restarts=1, step_s=0.002, info=LONG)
    house.script(ENDLESS)
    body = {"input": "Hi", "max_output_tokens": 10**5}
    lost = asyncio.create_task(house.request("POST", "/v1/responses", json={**body, "stream": True}))
    await until(lambda: house.engine.num_running == 1)
    house.may_start.clear()
    house.engine.die("out of luck")
    failed = json.loads((await lost).body.decode().rstrip().rpartition("data: ")[2])
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    refused = await house.request("POST", "/v1/responses", json=body)
    assert (refused.status, refused.error["code"]) == (503, "engine_dead")
    assert "retry-after" in refused.headers
    await bring_back(house)
    kept = await house.request("GET", f"/v1/responses/{failed['response']['id']}")
    assert kept.json["status"] == "failed"
    assert (await house.request("POST", "/v1/responses", json={"input": "Hi"})).json["status"] == "completed"


async def test_one_that_is_not_replaced_gives_no_hope(make_house: Make) -> None:
    house: House = await make_house()
    house.engine.die("out of luck")
    reply = await house.complete()
    assert reply.status == 503
    assert "retry-after" not in reply.headers
    assert await health(house) == (503, "dead")


async def test_debug_paths_are_503_and_metrics_and_models_go_on(make_house: Make) -> None:
    house: House = await make_house(engine_restarts=1, admin_key="k", step_s=0.002)
    house.say(text_ids("abc"))
    await house.complete()
    house.may_start.clear()
    house.engine.die("out of luck")
    for path in ("/debug/integrity", "/debug/kv"):
        reply = await house.request("GET", path, headers={"Authorization": "Bearer k"})
        assert (reply.status, reply.error["code"]) == (503, "engine_dead")
        assert "retry-after" in reply.headers
    assert await metric(house, "tidegate_generated_tokens_total") == 4
    for path in ("/v1/models", "/version", "/openapi.json"):
        assert (await house.request("GET", path)).status == 200
    tokenized = await house.request("POST", "/tokenize", json={"prompt": "Hi"})
    assert tokenized.status == 200
    await bring_back(house)
    for path in ("/debug/integrity", "/debug/kv"):
        assert (await house.request("GET", path, headers={"Authorization": "Bearer k"})).status == 200


async def test_all_that_was_held_is_given_back(make_house: Make, tmp_path: Path) -> None:
    """Places, tokens, reservations, mailboxes: of whole answers, streams, several sequences, slow readers."""
    keys = tmp_path / "keys.toml"
    keys.write_text(
        f'[tenants.a]\nkeys = ["{hash_key("one")}"]\n'
        "max_concurrent = 8\nrequests_per_minute = 100\ntokens_per_minute = 1000000\n"
    )
    keys.chmod(0o600)
    house: House = await make_house(
        engine_restarts=1, keys_file=keys, step_s=0.002, info=LONG, send_buffer_bytes=4096
    )
    house.may_start.clear()
    key = {"Authorization": "Bearer one"}
    tasks = await running(house, 2, max_tokens=10**5, headers=key)
    tasks += await running(house, 2, max_tokens=10**4, headers=key, stream=True, n=2)
    house.script(Script(token_ids=text_ids("a" * 64), endless=True, per_step=64))
    async with raw_client(house, receive_buffer=4096) as slow:
        body = {"prompt": "Hi", "stream": True, "max_tokens": 10**5}
        await slow.send_json("/v1/completions", body, **key)
        await until(lambda: bool(house.engine.record.paused))
        account = house.gateway.tenants._accounts["a"]
        assert account.in_flight == 7
        assert (await house.complete(n=2, headers=key)).status == 429
        house.engine.die("out of luck")
        for reply in await asyncio.gather(*tasks):
            assert reply.status == 503 or reply.events[-1]["error"]["code"] == "engine_dead"
        assert b"engine_dead" in await slow.read_until(b"[DONE]")
    await house.idle()
    assert account.in_flight == 0
    assert house.gateway.admission.tokens == 0
    assert not house.engine.record.aborted  # there is nobody to tell
    await bring_back(house)
    replies = await asyncio.gather(*(house.complete(headers=key) for _ in range(8)))
    assert [reply.status for reply in replies] == [200] * 8
    assert int(replies[-1].headers["x-ratelimit-remaining-tokens"]) > 1_000_000 - 200_000


async def test_refusals_meanwhile_cost_a_tenant_no_tokens(make_house: Make, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[tenants.a]\nkeys = ["{hash_key("one")}"]\ntokens_per_minute = 10000\n')
    house: House = await make_house(engine_restarts=1, keys_file=keys)
    house.may_start.clear()
    house.engine.die("out of luck")
    key = {"Authorization": "Bearer one"}
    replies = [await house.complete(headers=key, max_tokens=100) for _ in range(5)]
    assert {reply.status for reply in replies} == {503}
    assert replies[-1].headers["x-ratelimit-remaining-tokens"] == "10000"


async def test_the_rate_of_service_outlives_the_engine(make_house: Make) -> None:
    house: House = await make_house(engine_restarts=1, step_s=0.001, info=LONG)
    house.script(ENDLESS)
    await house.complete(max_tokens=300)
    rate = house.gateway._rate
    assert rate.tokens_per_s > 0
    house.engine.die("out of luck")
    await bring_back(house)
    for _ in range(5):
        house.script(ENDLESS)
        await house.complete(max_tokens=20)
        assert rate.tokens_per_s > 0
    assert await metric(house, "tidegate_generated_tokens_total") == 100  # of the present engine


async def test_a_server_that_stops_meanwhile_waits_for_nobody(make_house: Make) -> None:
    house: House = await make_house(engine_restarts=1, step_s=0.002, info=LONG)
    house.may_start.clear()
    [stream] = await running(house, 1, stream=True, max_tokens=10**5)
    house.engine.die("out of luck")
    await asyncio.wait_for(house.gateway.drain(60), 10)
    assert (await stream).events[-1]["error"]["code"] == "engine_dead"
    reply = await house.complete()
    assert (reply.status, reply.error["code"]) == (503, "shutting_down")


async def test_what_is_to_be_forgotten_is_forgotten_by_the_next_one(make_house: Make) -> None:
    """Asked before the death, since, and once there is another, which is asked in that order."""
    house: House = await make_house(engine_restarts=2)
    engine = house.gateway.engine
    engine.forget_kv((1, 2), 0, b"salt")
    house.may_start.clear()
    house.engine.die("out of luck")
    engine.forget_kv((3, 4), 1, b"salt")
    await bring_back(house)
    engine.forget_kv((5,), 0, b"")
    asked = [(told.token_ids, told.from_token, told.cache_salt) for told in house.engine.record.forgotten]
    assert asked == [((1, 2), 0, b"salt"), ((3, 4), 1, b"salt"), ((5,), 0, b"")]
    house.engine.die("again")
    await bring_back(house)
    assert [told.token_ids for told in house.engine.record.forgotten] == [(1, 2), (3, 4), (5,)]


async def test_with_no_engine_to_come_nothing_can_be_forgotten(make_house: Make) -> None:
    house: House = await make_house()
    house.engine.die("out of luck")
    await until(lambda: house.gateway.engine.health() is EngineHealth.DEAD)
    with pytest.raises(EngineDeadError):
        house.gateway.engine.forget_kv((1,), 0, b"")
