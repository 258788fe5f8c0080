"""Where a request stands: running, restoring, parked or waiting; and who is next in line.

Runs on: step thread, sole owner. Pure bookkeeping; every request is in exactly one place. What waits
costs nothing per step, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from engine.request import Request


class RequestQueues:
    """All live requests of a scheduler.

    ``parked`` ones were preempted (swapped out or not), or their clients stopped reading before they ran.
    """

    def __init__(self) -> None:
        self.running: dict[str, Request] = {}
        self.restoring: dict[str, Request] = {}
        self.parked: dict[str, Request] = {}
        self._waiting: dict[int, dict[str, Request]] = {}
        self._all: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._all.values())

    def get(self, request_id: str) -> Request | None:
        return self._all.get(request_id)

    @property
    def num_waiting(self) -> int:
        return len(self._all) - len(self.running) - len(self.restoring) - len(self.parked)

    def add(self, request: Request) -> None:
        """Let a new request wait."""
        assert request.request_id not in self._all
        self._all[request.request_id] = request
        self._waiting.setdefault(request.priority, {})[request.request_id] = request

    def run(self, request: Request) -> None:
        self._take(request)
        self.running[request.request_id] = request

    def restore(self, request: Request) -> None:
        self._take(request)
        self.restoring[request.request_id] = request

    def park(self, request: Request) -> None:
        self._take(request)
        self.parked[request.request_id] = request

    def remove(self, request: Request) -> None:
        self._take(request)
        del self._all[request.request_id]

    def by_order(self) -> list[Request]:
        """Running and restoring requests whose clients read, first in line first."""
        return sorted((r for r in self._holding() if not r.paused), key=lambda request: request.order)

    def last_paused(self) -> Request | None:
        """Of those that hold device blocks and whose clients do not read, the last in line."""
        return max((r for r in self._holding() if r.paused), key=lambda request: request.order, default=None)

    def victim_for(self, request: Request, may_be_preempted: Callable[[Request], bool]) -> Request:
        """Who gives way to ``request``: slow readers first, then the last in line; maybe itself."""
        paused = self.last_paused()
        if paused is not None:
            return paused
        behind = (r for r in self._holding() if r.order > request.order and may_be_preempted(r))
        return max(behind, key=lambda other: other.order, default=request)

    def _holding(self) -> Iterator[Request]:
        yield from self.running.values()
        yield from self.restoring.values()

    def candidates(self, limit: int) -> Iterator[Request]:
        """Who may be admitted, first in line first: by priority class, in it the parked before the waiting.

        Of each class at most ``limit`` waiting ones. The caller may move what it is given.
        """
        parked = sorted((r for r in self.parked.values() if not r.paused), key=lambda request: request.order)
        classes = {request.priority for request in parked} | self._waiting.keys()
        for priority in sorted(classes):
            yield from (request for request in parked if request.priority == priority)
            yield from tuple(islice(self._waiting.get(priority, {}).values(), limit))

    def is_in_one_place(self, request: Request) -> bool:
        """Recount: whether exactly one queue holds the request."""
        places = (self.running, self.restoring, self.parked, *self._waiting.values())
        return sum(request.request_id in place for place in places) == 1

    def _take(self, request: Request) -> None:
        for place in (self.running, self.restoring, self.parked):
            place.pop(request.request_id, None)
        waiting = self._waiting.get(request.priority, {})
        waiting.pop(request.request_id, None)
        if not waiting:
            self._waiting.pop(request.priority, None)
