"""What the load test itself can take, in small; ``benchmarks.load_tool`` is the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.load_tool import ClientName, Streams, measure
from loadtest.drivers.target import TransportName


@pytest.mark.parametrize(
    ("client", "transport"), [("tideload", "sse"), ("tideload", "ws"), ("aiohttp", "sse")]
)
async def test_every_token_is_read_and_none_before_it_was_written(
    client: ClientName, transport: TransportName
) -> None:
    found = await measure(client, transport, Streams(5, gap_s=0.01, length_s=0.3))
    assert found.asked_tokens_s == 500
    assert 0 < found.tokens_s <= 500 * 1.1
    assert 0 <= found.delivery_p50 <= found.delivery_p99
    assert 0 < found.core_share < 1
    quick = replace(found, faults=[], tokens_s=500.0)
    assert quick.has_kept_up
    assert not replace(quick, tokens_s=490.0).has_kept_up
    assert not replace(quick, faults=["late"]).has_kept_up
