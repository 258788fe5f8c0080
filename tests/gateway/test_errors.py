"""Error bodies: one shape, short, valid JSON whatever is in them."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from pathlib import Path

import pytest

from gateway.errors import TABLE, ApiError, ErrorKind, bad_request, clip, from_failure, unsupported
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


# ---- the table -----------------------------------------------------------------------------------

PAGE = Path(__file__).parent.parent.parent / "docs" / "errors.md"
HTTP_STATUSES_BY_TYPE = {
    "invalid_request_error": range(400, 500),
    **dict.fromkeys(("rate_limit_error", "requests", "tokens"), range(429, 430)),
    "server_error": (408, *range(500, 600)),
}


def test_the_table_is_complete_and_sane() -> None:
    assert set(TABLE) == set(ErrorKind)
    for kind, shape in TABLE.items():
        assert re.fullmatch("[a-z_]+", kind.value) and re.fullmatch("[a-z_]+", shape.code)
        assert shape.status in HTTP_STATUSES_BY_TYPE[shape.type], kind
        HTTPStatus(shape.status)


def test_close_codes_may_be_sent_by_a_server() -> None:
    """RFC 6455: some registered ones, and 4000 to 4999 as one likes; 1004 to 1006 and 1015 never."""
    for kind, shape in TABLE.items():
        assert (
            shape.close_code in (1001, 1003, 1009, 1011, 1013) or shape.close_code == 4000 + shape.status
        ), kind


def test_the_page_shows_the_table_and_says_when_each_cause_is_met() -> None:
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    shown = {row[0].strip(): [cell.strip() for cell in row[1:5]] for row in rows}
    assert shown == {
        f"`{kind.value}`": [str(shape.status), shape.type, shape.code, str(shape.close_code)]
        for kind, shape in TABLE.items()
    }
    assert all(len(row[5].strip()) > 10 for row in rows)
