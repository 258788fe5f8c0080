"""Web pages of other origins: none unless named; then everywhere, errors and streams included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.config import ConfigError
from gateway.cors import CorsPolicy, is_preflight, is_same_host, parse_origin
from tests.gateway.house import House

Make = Callable[..., Any]
PAGE = "https://chat.example"
ORIGIN = {"Origin": PAGE}
ASKING = {
    **ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization",
}
EVERYWHERE = [
    ("GET", "/health", 200), ("GET", "/metrics", 200), ("GET", "/v1/models", 401), ("GET", "/nowhere", 404),
    ("DELETE", "/health", 405), ("POST", "/v1/completions", 401),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("*", "*"), ("null", "null"), (PAGE, PAGE), ("HTTPS://Chat.Example/", PAGE),
        ("http://localhost:3000", "http://localhost:3000"), ("http://[::1]:80", "http://[::1]:80"),
        ("chrome-extension://abc", "chrome-extension://abc"),
    ],
)  # fmt: skip
def test_origins_are_read_as_browsers_write_them(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize("text", ["", "chat.example", "https://a/path", "https://*.example", "a b", "//a"])
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_origin(text)


def test_only_what_asks_for_a_method_of_another_origin_is_a_preflight() -> None:
    assert is_preflight("OPTIONS", ASKING)
    assert not is_preflight("OPTIONS", ORIGIN)
    assert not is_preflight("POST", ASKING)


@pytest.mark.parametrize(
    ("origin", "host", "is_same"),
    [
        ("http://a", "a", True), ("http://A:80", "a", True), ("https://a", "a:443", True),
        ("https://a", "a", True), ("http://a:8000", "a:8000", True), ("http://[::1]:8", "[::1]:8", True),
        ("http://a:8000", "a", False), ("http://a", "b", False), ("http://a.b", "b", False),
        ("http://b.evil", "b", False), ("null", "null", False), ("", "", False), ("http://", "", False),
        ("file://", "", False), ("chrome-extension://a", "a", False),
    ],
)  # fmt: skip
def test_a_page_is_of_the_same_host_if_its_origin_is(origin: str, host: str, is_same: bool) -> None:
    assert is_same_host(origin, host) == is_same


def test_an_answer_depends_on_the_origin_unless_all_are_allowed() -> None:
    some = CorsPolicy([PAGE, "http://localhost:3000"])
    assert some.headers(ORIGIN)["Access-Control-Allow-Origin"] == PAGE
    for other in (
        {},
        {"Origin": "https://evil.example"},
        {"Origin": PAGE + ".evil.example"},
        {"Origin": "*"},
    ):
        assert some.headers(other) == {"Vary": "Origin"}
    everybody = CorsPolicy(["*", PAGE])
    assert everybody.headers({})["Access-Control-Allow-Origin"] == "*"
    assert "Vary" not in everybody.headers(ORIGIN)


@pytest.mark.parametrize(("method", "path", "status"), [*EVERYWHERE, ("OPTIONS", "/v1/models", 401)])
async def test_it_is_off_by_default(make_house: Make, method: str, path: str, status: int) -> None:
    house: House = await make_house(api_keys=("key",))
    reply = await house.request(method, path, headers=ASKING)
    assert reply.status == status
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize(("method", "path", "status"), EVERYWHERE)
async def test_an_allowed_page_may_read_everything_errors_included(
    make_house: Make, method: str, path: str, status: int
) -> None:
    house: House = await make_house(api_keys=("key",), cors_origins=(PAGE,))
    reply = await house.request(method, path, headers=ORIGIN)
    assert reply.status == status
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert reply.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in reply.headers
    exposed = reply.headers["access-control-expose-headers"]
    for name in (
        "x-request-id",
        "retry-after",
        "x-ratelimit-remaining-tokens",
        "x-tidegate-max-tokens-clamped",
    ):
        assert name in exposed
    other = await house.request(method, path, headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    assert other.headers["vary"] == "Origin"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_allowed_page_may_read_answers_and_streams(make_house: Make, stream: bool) -> None:
    house: House = await make_house(cors_origins=(PAGE,))
    reply = await house.complete(stream=stream, headers=ORIGIN)
    assert reply.text == "ok"
    assert reply.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/tokenize", "/health"])
@pytest.mark.parametrize("allowed", [(PAGE,), ("*",)])
async def test_a_preflight_needs_no_key(make_house: Make, path: str, allowed: tuple[str, ...]) -> None:
    house: House = await make_house(api_keys=("key",), cors_origins=allowed)
    reply = await house.request("OPTIONS", path, headers=ASKING)
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == allowed[0]
    assert "POST" in reply.headers["access-control-allow-methods"]
    asked_for = reply.headers["access-control-allow-headers"].lower()
    assert all(name in asked_for for name in ("authorization", "content-type", "*"))
    assert int(reply.headers["access-control-max-age"]) > 0


async def test_a_preflight_of_another_page_is_not_allowed(make_house: Make) -> None:
    house: House = await make_house(cors_origins=(PAGE,))
    reply = await house.request("OPTIONS", "/v1/models", headers={**ASKING, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in reply.headers
    plain = await house.request("OPTIONS", "/v1/models", headers=ORIGIN)
    assert plain.status == 405
