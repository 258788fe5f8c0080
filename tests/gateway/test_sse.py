"""Server-sent events as bytes."""

from __future__ import annotations

import pytest

from gateway.protocol import sse


def test_an_event_is_one_data_line_and_an_empty_line() -> None:
    assert sse.event(b'{"a":1}') == b'data: {"a":1}\n\n'


def test_the_end_marker_and_the_comment_are_whole_blocks() -> None:
    assert sse.DONE == b"data: [DONE]\n\n"
    assert sse.KEEP_ALIVE.startswith(b":")
    assert sse.KEEP_ALIVE.endswith(b"\n\n")


@pytest.mark.parametrize("payload", [b"a\nb", b"a\rb"])
def test_a_payload_with_a_line_break_would_break_the_stream(payload: bytes) -> None:
    with pytest.raises(AssertionError):
        sse.event(payload)
