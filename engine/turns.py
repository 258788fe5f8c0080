"""Whose turn it is within one step: the tenant that was served least, by what the step has given out so far.

Runs on: step thread, sole owner. Pure. With one tenant these are its prefills that go on, in line, and then
who may be admitted.
"""

from __future__ import annotations

from collections import abc, deque

from engine.fairness import Share
from engine.queues import RequestQueues
from engine.request import SequenceGroup


class Turns:
    """Deals out one step. ``in_line``: those that hold blocks, first in line first.

    ``limit``: how many that never ran are looked at in a class. To be ended by ``end``.
    """

    def __init__(
        self, queues: RequestQueues, in_line: abc.Iterable[SequenceGroup], limit: int, now: float
    ) -> None:
        self._queues = queues
        self._shares = queues.shares
        self._limit = limit
        self._now = now
        self._admits = True
        self._lines: dict[str, abc.Iterator[SequenceGroup]] = {}
        self._prefills: dict[str, deque[SequenceGroup]] = {}
        for group in in_line:
            if group.is_prefilling:
                self._prefills.setdefault(group.tenant, deque()).append(group)

    def next(self) -> SequenceGroup | None:
        """Whose prefill goes on, or who may be admitted; None: there is nobody else."""
        while (share := self._least()) is not None:
            self._shares.take_turn(share)
            group = self._next_of(share.tenant)
            if group is not None:
                return group
            self._shares.pass_over(share)
        return None

    def stop_admitting(self) -> None:
        """There is no room for others than those that run."""
        self._admits = False

    def end(self) -> None:
        self._shares.end_round()

    def _least(self) -> Share | None:
        shares = (self._shares.of(tenant) for tenant in self._prefills)
        running = min(shares, key=lambda share: share.served, default=None)
        waiting = self._shares.least() if self._admits else None
        if running is None or waiting is None:
            return running or waiting
        return running if running.served <= waiting.served else waiting

    def _next_of(self, tenant: str) -> SequenceGroup | None:
        prefills = self._prefills.get(tenant)
        if prefills is None:
            if tenant not in self._lines:
                self._lines[tenant] = self._queues.candidates(tenant, self._limit, self._now)
            return next(self._lines[tenant], None)
        group = prefills.popleft()
        if not prefills:
            del self._prefills[tenant]
        return group
