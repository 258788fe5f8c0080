"""An event loop whose time is imagined: it stands still while anything can run, and jumps when all sleep.

What a test says happens at 3.5 s then happens at 3.5 s exactly, and takes no time. There is nothing outside
such a loop: no sockets, no threads.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(_JumpingSelector(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def jump(self) -> None:
        """To the time at which something has to be done. Fails if nothing ever has: all wait for ever."""
        times = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        assert times, "every task waits for another"
        self.now = max(self.now, min(times))


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout != 0:
            self._loop.jump()
        return super().select(0)


class VirtualClock:
    """Of the VirtualLoop that runs. Exact to the last bit if it is started at 0."""

    def __init__(self) -> None:
        self._started_at = 0.0

    def start(self) -> None:
        self._started_at = _loop().now

    def now(self) -> float:
        return _loop().now - self._started_at

    async def sleep_until(self, at_s: float) -> None:
        woken = _loop().create_future()
        timer = _loop().call_at(self._started_at + at_s, woken.set_result, None)
        try:
            await woken
        finally:
            timer.cancel()
        while self.now() < at_s:  # by a rounding, where the start was not at 0
            _loop().now = math.nextafter(_loop().now, math.inf)

    def spend(self, seconds: float) -> None:
        """Nothing else can run meanwhile: this is work that keeps the processor."""
        _loop().now += seconds


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def _loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop
