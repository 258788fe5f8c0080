"""Far more requests at once than there is room for. Some are served whole, the rest is told at once."""

from __future__ import annotations

import asyncio
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.scripted import Script
from tests.gateway.house import House, Reply, text_ids, until

Make = Callable[..., Any]
COUNT = 10_000 if os.environ.get("TIDEGATE_SLOW") == "1" else 1_000
AT_ONCE = 1_000  # more connections than a listener's backlog the kernel may reset before we know of them
SEQS, WAITING = 8, 92


@pytest.fixture(autouse=True)
def open_files() -> Iterator[None]:
    """Both ends of every connection are files of this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def ask(house: House, index: int) -> tuple[int, Reply]:
    """Every tenth asks for three answers, every other one streams."""
    n = 3 if index % 10 == 0 else 1
    return n, await house.complete(prompt="x" * 50, max_tokens=20, n=n, stream=bool(index % 2))


@pytest.mark.case("E15")
async def test_thousands_at_once(make_house: Make) -> None:
    house: House = await make_house(max_num_seqs=SEQS, max_waiting=WAITING, engine_seqs=SEQS)
    usual = house.engine.scripts
    house.engine.scripts = lambda request: Script(token_ids=text_ids("answer"), per_step=2)
    house.engine.freeze()
    asks: list[asyncio.Task[tuple[int, Reply]]] = []
    for first in range(0, COUNT, AT_ONCE):
        asks.extend(asyncio.create_task(ask(house, first + index)) for index in range(AT_ONCE))
        await until(lambda: sum(task.done() for task in asks) >= len(asks) - SEQS - WAITING, timeout_s=120)
    inside = house.gateway.admission.in_flight
    assert SEQS + WAITING - 3 < inside <= SEQS + WAITING
    assert inside == sum(request.sampling.n for request in house.engine.record.submitted)
    assert house.gateway.admission.tokens == sum(
        50 + 20 * request.sampling.n for request in house.engine.record.submitted
    )
    house.engine.thaw()
    replies = await asyncio.gather(*asks)
    for n, reply in replies:
        if reply.status == 200:
            assert sorted(reply.text) == sorted("answer" * n)
        else:
            assert (reply.status, reply.error["code"]) == (429, "server_busy")
            assert 1 <= int(reply.headers["retry-after"]) <= 60
    served = Counter(reply.status for _, reply in replies)
    assert served[200] == len(house.engine.record.submitted)
    assert served[200] + served[429] == COUNT
    house.engine.scripts = usual
    await house.check_alive()
