"""Errors as HTTP answers: the headers that go with a cause, refusals that are not ours, and their count."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, BadStatusLine, InvalidHeader, LineTooLong

from gateway.error_answers import bare_response, error_response, from_parser, from_refusal
from gateway.errors import ApiError, ErrorKind
from tests.gateway.house import House, raw_client

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LineTooLong(b"secret", 100), ErrorKind.URL_TOO_LONG),
        (LineTooLong(b"secret", 200), ErrorKind.HEADERS_TOO_LARGE),
        (BadHttpMessage("Too many headers received"), ErrorKind.HEADERS_TOO_LARGE),
        (BadHttpMessage("secret"), ErrorKind.BAD_HTTP),
        (InvalidHeader(b"secret"), ErrorKind.BAD_HTTP),
        (BadStatusLine("secret"), ErrorKind.BAD_HTTP),
    ],
)
def test_what_the_parser_says_is_not_passed_on(error: BadHttpMessage, kind: ErrorKind) -> None:
    made = from_parser(error, max_url_bytes=100)
    assert made.kind is kind
    assert "secret" not in made.message


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (web.HTTPNotFound(text="secret"), 404),
        (web.HTTPMethodNotAllowed("secret", ["GET"]), 405),
        (web.HTTPExpectationFailed(text="secret"), 417),
        (web.HTTPRequestEntityTooLarge(1, 2), 413),
        (web.HTTPBadRequest(text="secret", reason="secret"), 400),
        (web.HTTPFound("/secret"), 400),
    ],
)
def test_what_aiohttp_refuses_gets_our_words(refusal: web.HTTPException, status: int) -> None:
    made = from_refusal(refusal)
    assert made.status == status
    assert "secret" not in made.message


@pytest.mark.parametrize("kind", ErrorKind)
async def test_a_bare_answer_is_a_whole_one(make_house: Make, kind: ErrorKind) -> None:
    house: House = await make_house()
    error = ApiError(kind, "Something is wrong.", retry_after_s=3)
    head, _, body = bare_response(house.gateway.metrics, error).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ") for line in lines)
    assert first.startswith(f"HTTP/1.1 {error.status} ")
    assert int(headers["Content-Length"]) == len(body)
    assert (headers["Connection"], headers["Retry-After"]) == ("close", "3")
    assert json.loads(body) == json.loads(error_response(house.gateway.metrics, error).body or b"")


async def test_errors_are_counted_by_cause_wherever_they_arise(make_house: Make) -> None:
    house: House = await make_house(api_keys=("key",))
    await house.request("GET", "/nowhere")
    await house.request("POST", "/health")
    await house.request("POST", "/v1/completions")
    await house.request("POST", "/health", headers={"Expect": "wonders"})
    async with raw_client(house) as client:
        await client.send(b"junk\r\n\r\n")
        await client.read_to_end()
    page = (await house.request("GET", "/metrics")).body.decode()
    for cause in ("not_found", "method_not_allowed", "unauthorized", "expectation_failed", "bad_http"):
        assert f'tidegate_error_answers_total{{cause="{cause}"}} 1.0' in page
