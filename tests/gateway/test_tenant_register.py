"""Tenants through the house: limits, headers, salts, reloads, and what is given back when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.scripted import Script
from gateway import tenant_register
from gateway.tenants import hash_key
from tests.gateway.house import House, Reply, raw_client, text_ids, until
from tests.gateway.test_metrics import samples

Make = Callable[..., Any]
ENDLESS = Script(token_ids=text_ids("abcdefgh"), endless=True)
LONG = {"max_model_len": 1_000_000}
RATE_HEADERS = {
    f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")
}


class Keys:
    """A keys file in the making. ``tenant`` adds one whose key is its name and ``-key``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch(0o600)

    def write(self, **tenants: str) -> None:
        """A table for each tenant; its key is its name and ``-key`` unless it says otherwise."""
        tables = []
        for name, fields in tenants.items():
            keys = "" if "keys" in fields else f'keys = ["{hash_key(name + "-key")}"]\n'
            tables.append(f"[tenants.{name}]\n{keys}{fields}\n")
        self.path.write_text("\n".join(tables))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys.toml")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time, in milliseconds, that tenants are counted by."""
    now = [5_000_000]
    monkeypatch.setattr(tenant_register, "_now_ms", lambda: now[0])
    return now


def by(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {tenant}-key"}


def remaining(reply: Reply) -> tuple[str, str]:
    return tuple(reply.headers[f"x-ratelimit-remaining-{of}"] for of in ("requests", "tokens"))  # type: ignore


# ---- identity ------------------------------------------------------------------------------------


async def test_what_the_engine_is_told_comes_from_the_tenant(make_house: Make, keys: Keys) -> None:
    both = f'keys = ["{hash_key("a-key")}", "{hash_key("second-key")}"]\nweight = 2.5'
    keys.write(a=both, b="", c='cache_group = "g"', d='cache_group = "g"')
    house: House = await make_house(keys_file=keys.path, api_keys=("single-key",))
    for name in ("a", "second", "b", "c", "d", "single"):
        assert (await house.complete(headers=by(name), prompt_cache_key="b")).status == 200
    a, second, b, c, d, single = house.engine.record.submitted
    assert (a.tenant, a.weight) == (second.tenant, second.weight) == ("a", 2.5)
    assert (b.tenant, b.weight, single.tenant) == ("b", 1.0, "api-key-1")
    assert a.cache_salt == second.cache_salt
    assert c.cache_salt == d.cache_salt
    assert len({a.cache_salt, b.cache_salt, c.cache_salt, single.cache_salt, b""}) == 5


async def test_a_caller_cannot_choose_its_salt(make_house: Make, keys: Keys) -> None:
    """F20"""
    keys.write(a="", b="")
    house: House = await make_house(keys_file=keys.path)
    reply = await house.complete(headers=by("b"), cache_salt="a")
    assert (reply.status, reply.error["param"]) == (400, "cache_salt")
    for fields in ({"user": "a"}, {"prompt_cache_key": "a"}, {"safety_identifier": "a"}):
        await house.complete(headers=by("b"), **fields)
    assert len({request.cache_salt for request in house.engine.record.submitted}) == 1


async def test_a_keys_file_closes_the_door_to_everybody_else(make_house: Make, keys: Keys) -> None:
    keys.write(a="", shut="keys = []")
    house: House = await make_house(keys_file=keys.path)
    for header in (None, "Bearer", "Bearer shut-key", f"Bearer {hash_key('a-key')}", "Basic a-key"):
        headers = {} if header is None else {"Authorization": header}
        assert (await house.complete(headers=headers)).status == 401
    assert (await house.complete(headers=by("a"))).status == 200
    for path in ("/health", "/metrics"):
        assert (await house.request("GET", path)).status == 200


async def test_without_keys_everybody_is_one_tenant_without_limits(make_house: Make) -> None:
    house: House = await make_house()
    for headers in ({}, by("any")):
        reply = await house.complete(headers=headers)
        assert reply.status == 200
        assert not RATE_HEADERS & reply.headers.keys()
    assert {(r.tenant, r.cache_salt, r.weight) for r in house.engine.record.submitted} == {("", b"", 1.0)}


async def test_keys_appear_nowhere(
    make_house: Make, keys: Keys, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    keys.write(acme="requests_per_minute = 1")
    house: House = await make_house(keys_file=keys.path, api_keys=("single-key",), admin_key="boss-key")
    replies = [await house.complete(headers=by(name)) for name in ("acme", "acme", "wrong", "single", "boss")]
    assert [reply.status for reply in replies] == [200, 429, 401, 200, 401]
    keys.path.write_text("[tenants.acme]\nkeys = ['acme-key']")
    await house.gateway.tenants.reload()
    shown = [caplog.text, *capsys.readouterr(), (await house.request("GET", "/metrics")).body.decode()]
    shown += [repr(house.gateway.settings), *(str(reply) for reply in replies)]
    for text in shown:
        for key in ("acme-key", "single-key", "wrong-key", "boss-key"):
            assert key not in text


async def test_a_tenant_that_floods_leaves_room_for_others(make_house: Make, keys: Keys) -> None:
    keys.write(flood="", quiet="")
    house: House = await make_house(keys_file=keys.path, max_num_seqs=4, max_waiting=16)
    house.engine.freeze()
    asks = [asyncio.create_task(house.complete(headers=by("flood"), max_tokens=2)) for _ in range(60)]
    await until(lambda: sum(task.done() for task in asks) == 60 - 16)
    quiet = asyncio.create_task(house.complete(headers=by("quiet"), max_tokens=2))
    await until(lambda: len(house.engine.record.submitted) == 17)
    house.engine.thaw()
    assert (await quiet).status == 200
    statuses = [reply.status for reply in await asyncio.gather(*asks)]
    assert (statuses.count(200), statuses.count(429)) == (16, 44)


# ---- limits --------------------------------------------------------------------------------------


async def test_requests_per_minute(make_house: Make, keys: Keys, clock: list[int]) -> None:
    keys.write(a="requests_per_minute = 3", b="requests_per_minute = 3")
    house: House = await make_house(keys_file=keys.path)
    first = await house.complete(headers=by("a"))
    assert first.headers["x-ratelimit-limit-requests"] == "3"
    assert first.headers["x-ratelimit-remaining-requests"] == "2"
    assert first.headers["x-ratelimit-reset-requests"] == "1m0.25s"
    assert "x-ratelimit-limit-tokens" not in first.headers
    clock[0] += 30_000
    await house.chat(headers=by("a"), stream=True)
    await house.request("POST", "/tokenize", json={"prompt": "x"}, headers=by("a"))
    assert (await house.request("GET", "/v1/models", headers=by("a"))).status == 200  # costs nothing
    refused = await house.complete(headers=by("a"))
    assert refused.status == 429
    assert (refused.error["type"], refused.error["code"]) == ("requests", "rate_limit_exceeded")
    assert refused.headers["retry-after"] == "31"
    assert refused.headers["retry-after-ms"] == "30250"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert (await house.complete(headers=by("b"))).status == 200
    clock[0] += 30_249
    assert (await house.complete(headers=by("a"))).status == 429
    clock[0] += 1
    assert (await house.complete(headers=by("a"))).status == 200
    found = await samples(house)
    assert found["tidegate_requests_limited_total{limit=requests,tenant=a}"] == 2
    assert found["tidegate_requests_total{outcome=request_limit}"] == 2


async def test_tokens_are_reserved_and_what_is_left_comes_back(
    make_house: Make, keys: Keys, clock: list[int]
) -> None:
    keys.write(a="tokens_per_minute = 1000\nrequests_per_minute = 100")
    house: House = await make_house(keys_file=keys.path)
    house.script(Script(token_ids=text_ids("abcd"), endless=True))
    house.engine.freeze()
    ask = asyncio.create_task(house.complete(headers=by("a"), prompt="12345", max_tokens=195, n=2, seed=1))
    await until(lambda: bool(house.engine.request_ids))
    models = await house.request("GET", "/v1/models", headers=by("a"))
    assert remaining(models) == ("99", str(1000 - 5 - 2 * 195))
    refused = await house.complete(headers=by("a"), prompt="12345", max_tokens=200, n=4)
    assert (refused.status, refused.error["type"]) == (429, "tokens")
    assert refused.headers["retry-after-ms"] == "60250"
    house.engine.thaw()
    assert (await ask).status == 200
    house.say(text_ids("abc"))
    reply = await house.complete(headers=by("a"), prompt="1", max_tokens=20)
    assert remaining(reply) == ("97", str(1000 - (5 + 2 * 195) - (1 + 4)))
    found = await samples(house)
    assert found["tidegate_tenant_tokens_total{kind=prompt,tenant=a}"] == 6
    assert found["tidegate_tenant_tokens_total{kind=generated,tenant=a}"] == 2 * 195 + 4
    assert found["tidegate_requests_limited_total{limit=tokens,tenant=a}"] == 1


async def test_an_open_ended_answer_is_reckoned_with_a_share_and_charged_in_full(
    make_house: Make, keys: Keys, clock: list[int]
) -> None:
    keys.write(a="tokens_per_minute = 4000")
    house: House = await make_house(keys_file=keys.path, info={"max_model_len": 3000, "num_blocks": 300})
    house.script(Script(token_ids=text_ids("abcdefgh"), endless=True, per_step=50))
    reply = await house.chat(headers=by("a"))
    used = reply.json["usage"]["total_tokens"]
    assert used == 3000  # far beyond the 1,024 that it was let in with
    models = await house.request("GET", "/v1/models", headers=by("a"))
    assert models.headers["x-ratelimit-remaining-tokens"] == str(4000 - used)


@pytest.mark.parametrize(
    ("limits", "body"),
    [
        ("tokens_per_minute = 100", {"max_tokens": 100}),
        ("tokens_per_minute = 100", {"max_tokens": 60, "n": 2}),
        ("max_concurrent = 3", {"max_tokens": 1, "n": 4}),
    ],
)
async def test_what_can_never_pass_is_refused_for_good(
    make_house: Make, keys: Keys, limits: str, body: dict[str, Any]
) -> None:
    keys.write(a=limits)
    house: House = await make_house(keys_file=keys.path)
    reply = await house.complete(headers=by("a"), **body)
    assert (reply.status, reply.error["code"]) == (400, "above_rate_limit")
    assert not {"retry-after", "retry-after-ms"} & reply.headers.keys()
    assert not house.engine.record.submitted
    if "x-ratelimit-limit-tokens" in reply.headers:
        assert reply.headers["x-ratelimit-remaining-tokens"] == "100"


async def test_places_are_given_back_when_a_client_goes(make_house: Make, keys: Keys) -> None:
    keys.write(a="max_concurrent = 3\ntokens_per_minute = 100000", b="")
    house: House = await make_house(keys_file=keys.path, info=LONG, step_s=0.002)
    house.script(ENDLESS, ENDLESS)
    body = {"prompt": "Hi", "stream": True, "max_tokens": 50_000}
    async with raw_client(house) as client:
        await client.send_json("/v1/completions", {**body, "max_tokens": 10_000, "n": 2}, **by("a"))
        await client.read_until(b"data: ")
        async with raw_client(house) as second:
            await second.send_json("/v1/completions", body, **by("a"))
            await second.read_until(b"data: ")
            refused = await house.complete(headers=by("a"), max_tokens=1)
            assert (refused.status, refused.error["type"]) == (429, "requests")
            assert refused.error["code"] == "rate_limit_exceeded"
            assert int(refused.headers["retry-after"]) >= 1
            assert (await house.complete(headers=by("b"))).status == 200
    await house.idle()
    reply = await house.complete(headers=by("a"), max_tokens=90_000, n=1)
    assert reply.status == 200  # neither a place nor the tokens of those who went are held
    found = await samples(house)
    assert found["tidegate_requests_limited_total{limit=concurrency,tenant=a}"] == 1


BEAMS = {"use_beam_search": True, "n": 2, "best_of": 4, "max_tokens": 50, "prompt": "Hi"}


async def test_a_beam_search_is_charged_for_all_its_beams(make_house: Make, keys: Keys) -> None:
    keys.write(a="tokens_per_minute = 1000")
    house: House = await make_house(keys_file=keys.path)
    house.say(text_ids("abcd"))
    reply = await house.complete(headers=by("a"), **BEAMS)
    assert reply.status == 200
    told = reply.json["usage"]["completion_tokens"]
    assert reply.headers["x-ratelimit-remaining-tokens"] == str(1000 - 2 - 2 * told)


async def test_a_beam_search_that_is_given_up_is_charged_in_full(make_house: Make, keys: Keys) -> None:
    """How far it had come, nobody knows."""
    keys.write(a="tokens_per_minute = 1000")
    house: House = await make_house(keys_file=keys.path)
    house.engine.freeze()
    async with raw_client(house) as client:
        await client.send_json("/v1/completions", BEAMS, **by("a"))
        await until(lambda: len(house.engine.record.submitted) == 1)
    await house.idle()
    house.engine.thaw()
    models = await house.request("GET", "/v1/models", headers=by("a"))
    assert models.headers["x-ratelimit-remaining-tokens"] == str(1000 - 2 - 4 * 50)


@pytest.mark.parametrize("end", ["bad_request", "engine_fails", "dead_engine"])
async def test_whatever_ends_a_request_its_place_and_its_tokens_come_back(
    make_house: Make, keys: Keys, end: str
) -> None:
    keys.write(a="max_concurrent = 1\ntokens_per_minute = 1000")
    house: House = await make_house(keys_file=keys.path)
    if end == "engine_fails":
        house.script(Script(token_ids=text_ids("abc"), fail_after=2))
    if end == "dead_engine":
        house.engine.die("test")
    temperature = 9 if end == "bad_request" else 1
    reply = await house.complete(headers=by("a"), max_tokens=200, temperature=temperature)
    assert reply.status == {"bad_request": 400, "engine_fails": 500, "dead_engine": 503}[end]
    account = house.gateway.tenants._accounts["a"]
    assert account.in_flight == 0
    assert int(reply.headers["x-ratelimit-remaining-tokens"]) >= 1000 - 2 - 2


# ---- reload --------------------------------------------------------------------------------------


async def test_a_new_key_keeps_cache_and_counts(make_house: Make, keys: Keys) -> None:
    keys.write(a="requests_per_minute = 10", gone="")
    house: House = await make_house(keys_file=keys.path)
    await house.complete(headers=by("a"))
    keys.write(a=f'keys = ["{hash_key("next-key")}"]\nrequests_per_minute = 5')
    await house.gateway.tenants.reload()
    assert (await house.complete(headers=by("a"))).status == 401
    assert (await house.complete(headers=by("gone"))).status == 401
    reply = await house.complete(headers=by("next"))
    assert reply.headers["x-ratelimit-limit-requests"] == "5"
    assert reply.headers["x-ratelimit-remaining-requests"] == "3"
    before, after = house.engine.record.submitted
    assert before.cache_salt == after.cache_salt
    assert before.tenant == after.tenant == "a"


@pytest.mark.parametrize("broken", ["[tenants.a", "[tenants.a]\nkeys = 1", "", None])
async def test_a_broken_file_changes_nothing(
    make_house: Make, keys: Keys, caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    keys.write(a="")
    house: House = await make_house(keys_file=keys.path)
    keys.path.unlink() if broken is None else keys.path.write_text(broken)
    await house.gateway.tenants.reload()
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "was not reloaded" in line.getMessage()
    assert str(keys.path) in line.getMessage()
    assert (await house.complete(headers=by("a"))).status == 200


async def test_what_runs_ends_under_its_old_identity(make_house: Make, keys: Keys) -> None:
    keys.write(a="max_concurrent = 1", b="")
    house: House = await make_house(keys_file=keys.path, info=LONG)
    house.script(ENDLESS)
    async with raw_client(house) as client:
        body = {"prompt": "Hi", "stream": True, "max_tokens": 3000}
        await client.send_json("/v1/completions", body, **by("a"))
        await client.read_until(b"data: ")
        keys.write(b="", a=f'keys = ["{hash_key("next-key")}"]\nmax_concurrent = 1')
        await house.gateway.tenants.reload()
        refused = await house.complete(headers=by("next"))
        assert refused.status == 429  # the old key's answer still holds the tenant's place
        await client.read_until(b"[DONE]")
    await house.idle()
    assert (await house.complete(headers=by("next"))).status == 200


# ---- the whole house -----------------------------------------------------------------------------


async def test_the_house_is_bounded_in_tokens(make_house: Make) -> None:
    house: House = await make_house(max_waiting_tokens=0, info={"max_model_len": 256, "num_blocks": 16})
    house.engine.freeze()
    ask = asyncio.create_task(house.complete(max_tokens=200))
    await until(lambda: bool(house.engine.request_ids))
    refused = await house.complete(max_tokens=100)
    assert (refused.status, refused.error["code"]) == (429, "server_busy")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    for body in ({"max_tokens": 100, "prompt": ["Hi"] * 3}, {"max_tokens": 200, "prompt": ["Hi"] * 2}):
        too_much = await house.complete(**body)
        assert (too_much.status, "retry-after" in too_much.headers) == (400, False)
    house.engine.thaw()
    assert (await ask).status == 200
    assert (await house.complete(max_tokens=100)).status == 200
    await house.check_alive()
    assert house.gateway.admission.tokens == 0


async def test_what_a_tenant_may_keep_is_its_own_or_that_of_the_house(make_house: Make, keys: Keys) -> None:
    keys.write(acme="kv_quota = 0.25", guest="")
    house: House = await make_house(keys_file=keys.path, kv_quota=0.125)
    for tenant in ("acme", "guest"):
        await house.complete(headers=by(tenant))
    assert [request.kv_quota for request in house.engine.record.submitted] == [0.25, 0.125]
