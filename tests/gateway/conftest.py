"""Fixtures of the gateway tests: a detector of blocking calls, and a gateway per test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

from tests.gateway.house import House, open_house
from tests.support.tiny_tokenizers import byte_level, save


@pytest.fixture(autouse=True)
def no_blocking_calls() -> Iterator[None]:
    """Any blocking call under ``gateway`` on the event loop raises."""
    with blockbuster_ctx("gateway"):
        yield


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(byte_level(), tmp_path_factory.mktemp("byte_level"))


@pytest.fixture
async def make_house(tokenizer_dir: str) -> AsyncIterator[Callable[..., Any]]:
    """Starts gateways; at the end checks that nothing is left of any of them."""
    houses: list[House] = []

    async def make(**options: Any) -> House:
        house = await open_house(options.pop("tokenizer_dir", tokenizer_dir), **options)
        houses.append(house)
        return house

    yield make
    for house in houses:
        await house.close()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"tasks left over: {left}"
