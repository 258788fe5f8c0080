"""The names that dashboards rely on, and what feeds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.scripted import Script
from tests.gateway.house import House, raw_client, text_ids, until

Make = Callable[..., Any]


async def samples(house: House) -> dict[str, float]:
    reply = await house.request("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(reply.body.decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


async def test_every_name_is_there(make_house: Make) -> None:
    house: House = await make_house()
    house.say(text_ids("abc"))
    await house.complete()
    found = await samples(house)
    for name in (
        "tidegate_kv_blocks{state=free,tier=device}",
        "tidegate_kv_blocks{state=cached,tier=device}",
        "tidegate_kv_blocks{state=in_use,tier=device}",
        "tidegate_kv_blocks_kept{tier=device}",
        "tidegate_kv_hit_tokens_total{tier=device}",
        "tidegate_recomputed_tokens_total{}",
        "tidegate_kv_block_copies_total{}",
        "tidegate_preemptions_total{cause=pressure,kind=recompute}",
        "tidegate_preemptions_total{cause=share,kind=recompute}",
        "tidegate_preemptions_total{cause=slow_reader,kind=swap}",
        "tidegate_kv_transfer_bytes_total{kind=swap_out}",
        "tidegate_kv_transfer_seconds_count{kind=swap_in}",
        "tidegate_kv_transfer_seconds_bucket{kind=demote,le=0.001}",
        "tidegate_kv_transfer_queue_seconds_total{kind=promote}",
        "tidegate_kv_transfer_cpu_seconds_total{kind=promote}",
        "tidegate_kv_transfer_failures_total{kind=promote}",
        "tidegate_kv_checksum_failures_total{}",
        "tidegate_requests_swapped{}",
        "tidegate_requests_restoring{}",
        "tidegate_evictions_total{policy=lru,tier=device}",
        "tidegate_requests_running{}",
        "tidegate_requests_waiting{}",
        "tidegate_requests_total{outcome=stop}",
        "tidegate_ttft_seconds_count{}",
        "tidegate_inter_token_seconds_count{}",
        "tidegate_step_seconds_count{stage=execute}",
        "tidegate_generated_tokens_total{}",
        "tidegate_prompt_tokens_total{}",
    ):
        assert name in found, name
    assert found["tidegate_generated_tokens_total{}"] == 4
    assert found["tidegate_ttft_seconds_count{}"] == 1
    assert found["tidegate_inter_token_seconds_count{}"] == 3
    assert found["tidegate_kv_blocks{state=free,tier=device}"] == 64


async def test_requests_are_counted_by_how_they_ended(make_house: Make) -> None:
    house: House = await make_house(max_num_seqs=1, max_waiting=0, info={"max_model_len": 10**6})
    house.say(text_ids("a"))
    await house.complete(stream=True)
    house.script(Script(token_ids=text_ids("a"), endless=True))
    await house.complete(max_tokens=2)
    await house.complete(temperature=9)
    await house.complete(model="x")
    house.script(Script(token_ids=text_ids("abc"), fail_after=1))
    await house.complete(stream=True)
    house.script(Script(token_ids=text_ids("a"), endless=True))
    async with raw_client(house) as client:
        await client.send_json("/v1/completions", {"prompt": "Hi", "stream": True, "max_tokens": 5000})
        await client.read_until(b"data: ")
        await house.complete()
    await house.idle()
    found = await samples(house)
    for outcome in (
        "stop",
        "length",
        "bad_request",
        "model_not_found",
        "request_failed",
        "busy",
        "cancelled",
    ):
        assert found[f"tidegate_requests_total{{outcome={outcome}}}"] == 1, outcome


async def test_two_gateways_share_no_number(make_house: Make) -> None:
    one, two = await asyncio.gather(make_house(), make_house())
    await one.complete()
    assert "tidegate_requests_total{outcome=stop}" in await samples(one)
    assert "tidegate_requests_total{outcome=stop}" not in await samples(two)


@pytest.mark.parametrize("per_step", [1, 5])
async def test_gaps_are_counted_per_token(make_house: Make, per_step: int) -> None:
    house: House = await make_house()
    house.say(text_ids("x" * 19), per_step=per_step)
    await house.complete()
    await until(lambda: not house.engine.request_ids)
    assert (await samples(house))["tidegate_inter_token_seconds_count{}"] == 20 - per_step
