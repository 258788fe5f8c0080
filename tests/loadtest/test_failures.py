"""Names of failures."""

from __future__ import annotations

import pytest

from loadtest.drivers.failures import http_failure


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"code": "rate_limit_exceeded", "type": "requests"}}', "http 429 rate_limit_exceeded"),
        (b'{"error": {"code": 429, "type": "overloaded_error"}}', "http 429 overloaded_error"),
        (b'{"object": "error", "type": "BadRequestError", "code": 400}', "http 429 BadRequestError"),
        (b'{"error": {"code": "in words, at length"}}', "http 429"),
        (b'{"detail": [1]}', "http 429"),
        (b"<html>", "http 429"),
        (b"", "http 429"),
    ],
)
def test_a_refusal_is_named_by_status_and_code(body: bytes, reason: str) -> None:
    assert http_failure(429, body) == reason
