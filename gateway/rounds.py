"""Calls each stream that has news once, after all steps that wait have been read.

Runs on the event loop. The steps that a late loop finds waiting, in its sockets and in the engine, are so
taken together, and each stream writes once for all of them: else it would be as late with each. It is one
callback for everybody: to wake a task for each token of each stream costs more than all else that is done
with a token. Bounds: one entry for each stream, and ``patience_s`` of an engine that stays ahead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

_LOOK_AGAIN_S = 0.001

log = logging.getLogger(__name__)


class Rounds:
    """Of one event loop, and of the engine that ``is_behind`` is asked about."""

    def __init__(self, is_behind: Callable[[], bool] = lambda: False, patience_s: float = 0.25) -> None:
        self._is_behind = is_behind
        self._patience_s = patience_s
        self._due: list[Callable[[], None]] = []
        self._until_s = 0.0
        self._look: asyncio.Handle | None = None

    def add(self, on_news: Callable[[], None]) -> None:
        """Have it called, once, after what the loop is at now and what the engine has got ahead."""
        if self._look is None:
            loop = asyncio.get_running_loop()
            self._until_s = loop.time() + self._patience_s
            self._look = loop.call_soon(self._run_unless_behind)
        self._due.append(on_news)

    def run(self) -> None:
        """Call all who are due now: the engine has been caught up with."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        due, self._due = self._due, []
        for on_news in due:
            try:
                on_news()
            except Exception:  # one of many, who are not to suffer for it
                log.exception("a stream failed to take what came")

    def _run_unless_behind(self) -> None:
        loop = asyncio.get_running_loop()
        if self._is_behind() and loop.time() < self._until_s:
            self._look = loop.call_later(_LOOK_AGAIN_S, self._run_unless_behind)
        else:
            self.run()
