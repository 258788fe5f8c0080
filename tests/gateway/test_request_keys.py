"""Request ids: the client's own if harmless, else a new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.house import House

Make = Callable[..., Any]


async def test_a_sane_request_id_comes_back(make_house: Make) -> None:
    house: House = await make_house()
    for path in ("/health", "/v1/models", "/nothing"):
        reply = await house.request("GET", path, headers={"x-request-id": "abc-1.2_3"})
        assert reply.headers["x-request-id"] == "abc-1.2_3"


@pytest.mark.parametrize("given", ["", "has space", "x" * 129, 'quote"', "é"])
async def test_any_other_is_replaced(make_house: Make, given: str) -> None:
    house: House = await make_house()
    replies = [await house.request("GET", "/health", headers={"x-request-id": given}) for _ in range(2)]
    ids = {reply.headers["x-request-id"] for reply in replies}
    assert len(ids) == 2
    assert given not in ids
