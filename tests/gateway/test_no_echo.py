"""Junk with a mark in it, wherever a client can put something: the mark comes back nowhere."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.openai.chat import ChatWire
from gateway.openai.completions import CompletionWire
from gateway.openai.tokens import DetokenizeWire, TokenizeWire
from tests.gateway.house import House, Reply

Make = Callable[..., Any]
MARK = "c4nary"
SENTENCE = f"{MARK} <b>'\"{MARK}\"' \u2028"
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE")
PATHS = (
    "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/models", "/health",
    "/metrics", "/version", "/debug/kv", "/debug/integrity", "/openapi.json",
)  # fmt: skip
WIRES = {
    "/v1/completions": (CompletionWire, {"prompt": "Hi"}),
    "/v1/chat/completions": (ChatWire, {"messages": [{"role": "user", "content": "Hi"}]}),
    "/tokenize": (TokenizeWire, {}),
    "/detokenize": (DetokenizeWire, {}),
}
VALUES = (
    SENTENCE, [SENTENCE], {SENTENCE: SENTENCE}, [{"type": SENTENCE, SENTENCE: 1}], {"type": SENTENCE},
    [{"role": SENTENCE, "content": [{"type": SENTENCE, "text": 5}]}], [[SENTENCE]],
)  # fmt: skip
BODIES = (
    f'{{"prompt": "{MARK}'.encode(), MARK.encode(), f'"{MARK}"'.encode(), f'["{MARK}"]'.encode(),
    f'{{"{MARK} {MARK}": 1}}'.encode(), f'{{"prompt": "{MARK}", "{MARK}<script>": 1}}'.encode(),
    b'{"prompt": "' + MARK.encode() + b'\xff"}', f'{{"temperature": {MARK}}}'.encode(),
    b'{"messages": [' + f'{{"role": "{MARK}"}},'.encode() * 5000 + b"]}",
)  # fmt: skip


def check(reply: Reply) -> None:
    """The mark is nowhere, nor is anything of our insides."""
    shown = reply.body + repr(reply.headers).encode()
    assert MARK.encode() not in shown.lower(), shown
    for inside in (b"Traceback", b"msgspec", b"aiohttp", b".py", b"object at 0x"):
        assert inside not in reply.body, shown
    if reply.status >= 400 and reply.body:
        assert reply.error
    assert re.fullmatch("[0-9a-f]{32}", reply.headers["x-request-id"])


async def test_paths_queries_and_headers(make_house: Make, caplog: pytest.LogCaptureFixture) -> None:
    house: House = await make_house(
        api_keys=("key",), admin_key="admin", cors_origins=("https://chat.example",)
    )
    junk = {
        "x-request-id": SENTENCE.encode("ascii", "replace").decode(), "User-Agent": MARK, "X-Other": MARK,
        "Accept": f"text/{MARK}", "Origin": f"https://{MARK}.example", "Access-Control-Request-Method": MARK,
        "Access-Control-Request-Headers": MARK, "Cookie": f"{MARK}={MARK}", MARK: MARK,
    }  # fmt: skip
    with caplog.at_level(logging.DEBUG):
        for method in METHODS:
            for path in PATHS:
                for query in ("", f"?{MARK}={MARK}"):
                    for key in (MARK, "key", "admin"):
                        headers = {**junk, "Authorization": f"Bearer {key}"}
                        check(await house.request(method, path + query, headers=headers))
            for path in (f"/{MARK}", f"/v1/models/{MARK}", f"/v1/models/%0A{MARK}", f"/debug/{MARK}"):
                check(await house.request(method, path, headers={"Authorization": "Bearer key"}))
    assert MARK not in caplog.text


@pytest.mark.case("C17")
@pytest.mark.parametrize("path", WIRES)
async def test_every_field_of_every_body(
    make_house: Make, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    house: House = await make_house()
    with caplog.at_level(logging.INFO):
        for body in bodies(path):
            options = {"data": body} if isinstance(body, bytes) else {"json": body}
            reply = await house.request("POST", path, **options)
            if reply.status >= 400 or path.startswith("/v1/"):
                check(reply)
            assert reply.status < 500
    assert MARK not in caplog.text
    await house.check_alive()


def bodies(path: str) -> Iterator[bytes | dict[str, Any]]:
    wire, sound = WIRES[path]
    for name in wire.__struct_fields__:
        for value in VALUES:
            yield {**sound, name: value}
    yield from BODIES


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": f"text/{MARK}"}, {"Content-Type": MARK}, {"Content-Encoding": MARK},
        {"Content-Encoding": "gzip"}, {"Expect": MARK}, {"Content-Type": f"application/json; charset={MARK}"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", WIRES)
async def test_headers_of_bodies(make_house: Make, path: str, headers: dict[str, str]) -> None:
    house: House = await make_house()
    check(await house.request("POST", path, data=f'"{MARK}"'.encode(), headers=headers))


async def test_a_name_that_could_be_a_parameter_is_named_as_openai_does(make_house: Make) -> None:
    house: House = await make_house()
    reply = await house.complete(max_token=5)
    assert (reply.error["param"], reply.error["code"]) == ("max_token", "unsupported_parameter")
    assert "max_token" in reply.error["message"]


async def test_a_usable_request_id_is_the_only_thing_that_comes_back(make_house: Make) -> None:
    house: House = await make_house()
    reply = await house.request("GET", "/nowhere", headers={"x-request-id": "mine-1"})
    assert reply.headers["x-request-id"] == "mine-1"
    assert b"mine-1" not in reply.body
