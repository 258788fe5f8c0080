"""Error bodies: one shape, short, valid JSON whatever is in them."""

from __future__ import annotations

import json

import pytest

from gateway.errors import ApiError, ErrorKind, bad_request, clip, from_failure, unsupported
from gateway.mailbox import FailureKind, StreamFailure


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_cause_has_a_status_and_the_openai_shape(kind: ErrorKind) -> None:
    error = ApiError(kind, "Something is wrong.", param="field")
    assert 400 <= error.status < 600
    body = json.loads(error.body())
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["param"] == "field"


@pytest.mark.parametrize("kind", FailureKind)
def test_every_failure_of_a_stream_has_a_cause(kind: FailureKind) -> None:
    error = from_failure(StreamFailure(kind, "It ended.", "secret detail"))
    assert b"secret" not in error.body()


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "x" * 10_000, '"quoted"\n', "é" * 500])
def test_any_text_makes_a_short_valid_body(text: str) -> None:
    body = bad_request(text, text).body()
    assert len(json.loads(body)["error"]["message"]) <= 400
    assert len(body) < 3000


def test_clip_keeps_short_texts() -> None:
    assert clip("short") == "short"
    assert clip("abcdef", 4) == "abc…"


def test_an_unsupported_parameter_is_a_400_with_its_name() -> None:
    error = unsupported("tools", "No tools here.")
    assert (error.status, error.param, error.kind) == (400, "tools", ErrorKind.UNSUPPORTED)
