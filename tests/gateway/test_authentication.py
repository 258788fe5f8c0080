"""Which key opens which path, and that nothing else does. See ``test_app`` too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.house import House, raw_client

Make = Callable[..., Any]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/x", "/tokenize", "/detokenize", "/debug/kv", "/debug/x"])
@pytest.mark.parametrize("key", ["tenant", "admin", "", "é", "\t", "tenant admin"])
async def test_each_key_opens_its_own_paths_only(make_house: Make, path: str, key: str) -> None:
    house: House = await make_house(api_keys=("tenant",), admin_key="admin")
    reply = await house.request("GET", path, headers={"Authorization": f"Bearer {key}"})
    fits = key == ("admin" if path.startswith("/debug/") else "tenant")
    assert (reply.status != 401) == fits


@pytest.mark.parametrize("scheme", ["", "Basic ", "Bearer", "Bearer\t", "Token "])
async def test_a_key_counts_as_a_bearer_token_only(make_house: Make, scheme: str) -> None:
    house: House = await make_house(api_keys=("tenant",))
    reply = await house.request("GET", "/v1/models", headers={"Authorization": f"{scheme}tenant"})
    assert reply.status == 401


def test_a_key_that_comes_as_a_subprotocol_is_not_logged() -> None:
    """aiohttp warns of subprotocols that the server does not choose, and shows them."""
    set_up = "from gateway.cli import _set_up_logging; _set_up_logging('debug'); import aiohttp, logging; "
    ask = "print(logging.getLogger('aiohttp.websocket').isEnabledFor(logging.WARNING))"
    assert subprocess.check_output([sys.executable, "-c", set_up + ask]) == b"False\n"


async def test_a_key_need_not_be_utf_8(make_house: Make) -> None:
    house: House = await make_house(api_keys=("k\udcff",), admin_key="a\udcff")
    for path, key in ((b"/v1/models", b"k\xff"), (b"/debug/integrity", b"a\xff")):
        async with raw_client(house) as client:
            await client.send(b"GET %b HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer %b\r\n\r\n" % (path, key))
            assert (await client.read_until(b"\r\n")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", ["/health", "/metrics", "/version", "/openapi.json"])
async def test_what_tells_about_the_server_is_open(make_house: Make, path: str) -> None:
    house: House = await make_house(api_keys=("tenant",), admin_key="admin")
    assert (await house.request("GET", path)).status == 200
