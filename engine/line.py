"""One tenant's requests that wait for a place: by class, in it the parked before the waiting, then by
arrival.

Runs on: step thread, sole owner. Pure. What waits costs nothing, however many there are: only the heads of
the classes are looked at. A request that got nothing for ``OVERDUE_S`` is from then on treated as of the best
class that its tenant has in the house, so that no class waits for ever.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice, takewhile

from engine.fairness import Share
from engine.parked_line import OVERDUE_S, ParkedLine
from engine.request import SequenceGroup


class TenantLine:
    """``parked`` ones were preempted, or their clients stopped reading before they ran.

    ``num_ready``: those in line whose clients read.
    """

    def __init__(self, share: Share) -> None:
        self.share = share
        self.num_ready = 0
        self.parked: dict[str, SequenceGroup] = {}
        self._returning = ParkedLine()
        self._waiting: dict[int, dict[str, SequenceGroup]] = {}
        self._overdue: dict[str, SequenceGroup] = {}
        self._classes: Counter[int] = Counter()  # of all requests in the house

    @property
    def is_empty(self) -> bool:
        """Whether the tenant has no request in the house."""
        return not self._classes

    def enter(self, group: SequenceGroup) -> None:
        """Let a new request wait."""
        self._classes[group.priority] += 1
        self._waiting.setdefault(group.priority, {})[group.request_id] = group
        self.num_ready += 1

    def leave(self, group: SequenceGroup) -> None:
        """A request is over, which is not in line."""
        self._classes[group.priority] -= 1
        if not self._classes[group.priority]:
            del self._classes[group.priority]

    def park(self, group: SequenceGroup) -> None:
        self.parked[group.request_id] = group
        if not group.paused:
            self._returning.add(group)
            self.num_ready += 1

    def take(self, group: SequenceGroup) -> bool:
        """Out of the line, if it is there."""
        waiting = self._waiting.get(group.priority, {})
        for place in (self.parked, self._overdue, waiting):
            if place.pop(group.request_id, None) is not None:
                self.num_ready -= not group.paused
                if place is self.parked and not group.paused:
                    self._returning.remove(group)
                if place is waiting and not waiting:
                    del self._waiting[group.priority]
                return True
        return False

    def order(self, group: SequenceGroup) -> tuple[int, int]:
        """Who comes first: the lower class, then the earlier arrival."""
        return (self._class_of(group), group.arrival_index)

    def candidates(self, limit: int, now: float) -> Iterator[SequenceGroup]:
        """Who may be admitted, first in line first; of each class at most ``limit`` that never ran.

        The caller may move what it is given.
        """
        self._note_overdue(now)
        best = min(self._classes)
        has_overdue = bool(self._overdue or self._returning.overdue)
        classes = self._returning.classes() | self._waiting.keys()
        for priority in sorted(classes | {best} if has_overdue else classes):
            yield from self._returning.candidates(priority, with_overdue=priority == best)
            waiting = tuple(islice(self._waiting.get(priority, {}).values(), limit))
            overdue = tuple(islice(self._overdue.values(), limit)) if priority == best else ()
            yield from heapq.merge(waiting, overdue, key=lambda group: group.arrival_index)

    def places(self) -> Iterable[dict[str, SequenceGroup]]:
        """For a recount: where requests in line are."""
        return (self.parked, self._overdue, *self._waiting.values())

    def adds_up(self) -> bool:
        """For a recount: whether the order of the parked has those whose clients read."""
        return self._returning.holds([group for group in self.parked.values() if not group.paused])

    def _class_of(self, group: SequenceGroup) -> int:
        return min(self._classes) if group.is_overdue else group.priority

    def _note_overdue(self, now: float) -> None:
        """Those that never ran wait in the order of arrival, so the overdue are the first of a class."""
        self._returning.note_overdue(now)
        heads = (
            takewhile(lambda group: now - group.idle_since > OVERDUE_S, waiting.values())
            for waiting in self._waiting.values()
        )
        for group in sorted(chain.from_iterable(heads), key=lambda group: group.arrival_index):
            group.is_overdue = True
            waiting = self._waiting[group.priority]
            self._overdue[group.request_id] = waiting.pop(group.request_id)
            if not waiting:
                del self._waiting[group.priority]
