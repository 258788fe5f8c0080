"""What the load test itself can take, in small; ``benchmarks.load_tool`` is the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.load_tool import Streams, measure
from loadtest.drivers.target import TransportName


@pytest.mark.parametrize("transport", ["sse", "ws"])
async def test_every_token_is_read_and_none_before_it_was_written(transport: TransportName) -> None:
    found = await measure(transport, Streams(5, gap_s=0.01, length_s=0.3))
    assert found.asked_tokens_s == 500
    assert 0 < found.tokens_s <= 500 * 1.1
    assert 0 <= found.delivery_p50 <= found.delivery_p99
    assert 0 < found.core_share < 1
    quick = replace(found, faults=[], tokens_s=500.0)
    assert quick.has_kept_up
    assert not replace(quick, tokens_s=490.0).has_kept_up
    assert not replace(quick, faults=["late"]).has_kept_up
