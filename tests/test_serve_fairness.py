"""Two keys at a real server with the real model: one floods it, the other is served all the same.

What is compared is how far the flood has come when the quiet tenant's answers come, not how long they take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest

from tests.support.server import Server, running_server

pytestmark = pytest.mark.alone
NUM_FLOODING = 200
NUM_QUIET = 4


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Four sequences at a time: two hundred requests are fifty batches of them."""
    with running_server(
        "--max-model-len", "512", "--device-kv", "64MiB", "--max-num-seqs", "4", "--max-waiting", "400",
        "--max-num-batched-tokens", "32", "--api-key", "flooding", "--api-key", "quiet",
    ) as server:  # fmt: skip
        yield server


class Tenant:
    """Sends completions and counts the answers."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str) -> None:
        self.num_answered = 0
        self._session = session
        self._url = f"{url}/v1/completions"
        self._headers = {"Authorization": f"Bearer {key}"}

    async def complete(self, number: int, max_tokens: int, **fields: object) -> None:
        body = {"prompt": f"Number {number} is", "max_tokens": max_tokens, "ignore_eos": True, **fields}
        async with self._session.post(self._url, json=body, headers=self._headers) as response:
            assert response.status == 200, await response.text()
            assert (await response.json())["usage"]["completion_tokens"] == max_tokens
        self.num_answered += 1


async def test_a_flood_of_one_key_leaves_the_other_its_share(server: Server) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        flooding, quiet = (Tenant(session, server.url, key) for key in ("flooding", "quiet"))
        flood = [group.create_task(flooding.complete(number, 24)) for number in range(NUM_FLOODING)]
        while flooding.num_answered < 4:
            await asyncio.sleep(0.02)
        begun_at = flooding.num_answered
        for number in range(NUM_QUIET):
            await quiet.complete(number, 24)
        meanwhile = flooding.num_answered - begun_at
        assert quiet.num_answered == NUM_QUIET
        assert NUM_FLOODING - flooding.num_answered > NUM_FLOODING // 2
        # beside an answer come three others; for a place one waits until some others have ended
        print("answers of the flood meanwhile:", meanwhile)
        assert meanwhile <= 10 * NUM_QUIET
        for task in flood:
            task.cancel()


async def test_classes_of_one_key_overtake_each_other(server: Server) -> None:
    """Flex is answered after what came later, and priority before what came earlier."""
    ended: list[str] = []
    async with aiohttp.ClientSession() as session:
        tenant = Tenant(session, server.url, "quiet")

        async def ask(name: str, number: int, **fields: object) -> None:
            await tenant.complete(number, 16, **fields)
            ended.append(name)

        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(ask("before", number))
            while not ended:
                await asyncio.sleep(0.02)
            group.create_task(ask("flex", 20, service_tier="flex"))
            await asyncio.sleep(0.05)
            for number in range(8):
                group.create_task(ask("plain", 30 + number))
            await asyncio.sleep(0.05)
            group.create_task(ask("priority", 50, service_tier="priority"))
    assert ended[-1] == "flex"
    assert ended.index("priority") < len(ended) - 8
    assert server.integrity()["problems"] == []
