"""What the load test itself can take, in small; ``benchmarks.load_tool`` is the whole."""

from __future__ import annotations

import pytest

from benchmarks.load_tool import measure
from loadtest.drivers.target import TransportName


@pytest.mark.parametrize("transport", ["sse", "ws"])
async def test_every_token_is_read_and_none_before_it_was_written(transport: TransportName) -> None:
    found = await measure(transport, streams=5, gap_s=0.01, length_s=0.3)
    assert 0 < found.tokens_s <= 5 / 0.01 * 1.1
    assert 0 <= found.delivery_p50 <= found.delivery_p99
    assert 0 < found.core_share < 1
