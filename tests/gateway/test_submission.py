"""What the engine is told of a request: whose it is, how urgent, and of which session."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from engine.messages import Retention, SamplingParams
from gateway.openai.cache_hints import CacheHints
from gateway.openai.service import Service, ServiceTier
from gateway.openai.validated import GenerationRequest, Prompt
from gateway.submission import engine_requests, service_for, session_name, session_of_key
from gateway.tenants import Tenant

SAMPLING = SamplingParams(max_tokens=4, seed=0)
REQUEST = GenerationRequest(model="tiny", prompts=(Prompt((1, 2), SAMPLING),))
ACME = Tenant("acme", b"salt", weight=2.0)


def test_every_prompt_is_a_request_of_the_tenant() -> None:
    request = replace(REQUEST, prompts=(Prompt((1, 2), SAMPLING), Prompt((3,), SAMPLING)))
    made = engine_requests(request, "cmpl-1", ACME, "s", 0.25)
    assert [one.request_id for one in made] == ["cmpl-1", "cmpl-1.1"]
    assert [one.prompt_token_ids for one in made] == [(1, 2), (3,)]
    for one in made:
        assert (one.tenant, one.cache_salt, one.weight) == ("acme", b"salt", 2.0)
        assert (one.session, one.kv_quota, one.retention) == ("s", 0.25, None)


def test_hints_become_a_retention() -> None:
    for hints, retention in (
        (CacheHints(), None),
        (CacheHints(key="k"), None),
        (CacheHints(60.0), Retention(keep_s=60.0, lowest="disk")),
        (CacheHints(may_reach_disk=False), Retention(keep_s=0.0, lowest="host")),
    ):
        (made,) = engine_requests(replace(REQUEST, cache=hints), "r", ACME, "", 1.0)
        assert made.retention == retention


def test_priority_is_for_tenants_that_may_have_it() -> None:
    urgent = replace(REQUEST, service=Service(ServiceTier.PRIORITY, 0))
    allowed, other = ACME, replace(ACME, allows_priority=False)
    assert service_for(allowed, urgent).tier is ServiceTier.PRIORITY
    assert service_for(other, urgent).tier is ServiceTier.DEFAULT
    (first,), (second,) = (engine_requests(urgent, "r", tenant, "", 1.0) for tenant in (allowed, other))
    assert first.priority < second.priority == 0


def test_sessions_of_tenants_and_kinds_never_meet() -> None:
    names = [
        session_name(Tenant(tenant, b""), kind, name)
        for tenant in ("", "a", "a.key")
        for kind in ("key", "response", "conversation")
        for name in ("", "x", "key\0x", "\ud800")
    ]
    assert all(first != second for first, second in combinations(names, 2))
    assert all(name.isascii() and len(name) == 32 for name in names)
    assert session_name(ACME, "key", "x") == session_name(Tenant("acme", b"other"), "key", "x")


def test_a_key_that_gets_the_number_of_another_does_not_get_its_sessions() -> None:
    """Their numbers are an order that another start may change, and sessions are stored by name."""
    first, second = (Tenant("api-key-1", salt) for salt in (b"a", b"b"))
    assert session_name(first, "key", "x") != session_name(second, "key", "x")
    assert session_name(first, "key", "x") == session_name(Tenant("api-key-2", b"a"), "key", "x")


def test_a_key_is_a_session_and_no_key_is_none() -> None:
    assert session_of_key(ACME, REQUEST) == ""
    keyed = replace(REQUEST, cache=CacheHints(key="k"))
    assert session_of_key(ACME, keyed) == session_of_key(ACME, keyed) != ""
    assert session_of_key(ACME, keyed) != session_of_key(Tenant("guest", b""), keyed)
