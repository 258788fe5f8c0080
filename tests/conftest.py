"""What all tests share: the event loop that ships, the machine, and time for random examples."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping

import hypothesis
import pytest
import uvloop

from tests.support.interpreter import interpret_kernels
from tests.support.workers import share_processors

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and theirs
share_processors()
interpret_kernels()
hypothesis.settings.register_profile(  # how long an example takes, the load on the machine decides
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on the loop that ships."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole servers and real models first, which are the files here: two workers then end together."""
    items.sort(key=lambda item: item.path.parent != item.config.rootpath / "tests")
