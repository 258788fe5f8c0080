"""What all tests share: the event loop that ships, and the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.support.workers import share_processors

share_processors()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on the loop that ships."""
    return {"uvloop": uvloop.new_event_loop}
