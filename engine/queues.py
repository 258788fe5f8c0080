"""Where a request stands: running, restoring, parked or waiting; and who is next in line.

Runs on: step thread, sole owner. Pure bookkeeping; every request is in exactly one place. What waits
costs nothing per step, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from engine.request import SequenceGroup


class RequestQueues:
    """All live requests of a scheduler.

    ``parked`` ones were preempted (swapped out or not), or their clients stopped reading before they ran.
    """

    def __init__(self) -> None:
        self.num_paused = 0
        self.running: dict[str, SequenceGroup] = {}
        self.restoring: dict[str, SequenceGroup] = {}
        self.parked: dict[str, SequenceGroup] = {}
        self._waiting: dict[int, dict[str, SequenceGroup]] = {}
        self._all: dict[str, SequenceGroup] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[SequenceGroup]:
        return iter(self._all.values())

    def get(self, request_id: str) -> SequenceGroup | None:
        return self._all.get(request_id)

    def group_of(self, sequence_id: str) -> SequenceGroup | None:
        """The request that a sequence belongs to; the first one of a request has its name."""
        return self._all.get(sequence_id) or self._all.get(sequence_id.rpartition("#")[0])

    @property
    def num_waiting(self) -> int:
        return len(self._all) - len(self.running) - len(self.restoring) - len(self.parked)

    def add(self, group: SequenceGroup) -> None:
        """Let a new request wait."""
        assert group.request_id not in self._all
        self._all[group.request_id] = group
        self._waiting.setdefault(group.priority, {})[group.request_id] = group

    def run(self, group: SequenceGroup) -> None:
        self._take(group)
        self.running[group.request_id] = group

    def restore(self, group: SequenceGroup) -> None:
        self._take(group)
        self.restoring[group.request_id] = group

    def park(self, group: SequenceGroup) -> None:
        self._take(group)
        self.parked[group.request_id] = group

    def set_paused(self, group: SequenceGroup, paused: bool) -> None:
        self.num_paused += paused - group.paused
        group.paused = paused

    def remove(self, group: SequenceGroup) -> None:
        self._take(group)
        self.num_paused -= group.paused
        del self._all[group.request_id]

    def by_order(self) -> list[SequenceGroup]:
        """Running and restoring requests whose clients read, first in line first."""
        return sorted((r for r in self.holding() if not r.paused), key=lambda group: group.order)

    def last_paused(self) -> SequenceGroup | None:
        """Of those that hold device blocks and whose clients do not read, the last in line."""
        return max((r for r in self.holding() if r.paused), key=lambda group: group.order, default=None)

    def victim_for(
        self, group: SequenceGroup, may_be_preempted: Callable[[SequenceGroup], bool]
    ) -> SequenceGroup:
        """Who gives way to ``group``: slow readers first, then the last in line; maybe itself."""
        paused = self.last_paused()
        if paused is not None:
            return paused
        behind = (r for r in self.holding() if r.order > group.order and may_be_preempted(r))
        return max(behind, key=lambda other: other.order, default=group)

    def holding(self) -> Iterator[SequenceGroup]:
        """Those that have device blocks."""
        yield from self.running.values()
        yield from self.restoring.values()

    def candidates(self, limit: int) -> Iterator[SequenceGroup]:
        """Who may be admitted, first in line first: by priority class, in it the parked before the waiting.

        Of each class at most ``limit`` waiting ones. The caller may move what it is given.
        """
        parked = sorted((r for r in self.parked.values() if not r.paused), key=lambda group: group.order)
        classes = {group.priority for group in parked} | self._waiting.keys()
        for priority in sorted(classes):
            yield from (group for group in parked if group.priority == priority)
            yield from tuple(islice(self._waiting.get(priority, {}).values(), limit))

    def is_in_one_place(self, group: SequenceGroup) -> bool:
        """Recount: whether exactly one queue holds the request."""
        places = (self.running, self.restoring, self.parked, *self._waiting.values())
        return sum(group.request_id in place for place in places) == 1

    def _take(self, group: SequenceGroup) -> None:
        for place in (self.running, self.restoring, self.parked):
            place.pop(group.request_id, None)
        waiting = self._waiting.get(group.priority, {})
        waiting.pop(group.request_id, None)
        if not waiting:
            self._waiting.pop(group.priority, None)
