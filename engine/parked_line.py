"""One tenant's parked requests whose clients read, in the order in which they come back.

Runs on: step thread, sole owner. Pure. A request that got nothing for ``OVERDUE_S`` is overdue from then on,
and of no class. Looking costs nothing for those that are not given out, however many there are; a change is a
search and a shift of pointers.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Set
from itertools import count

from engine.request import SequenceGroup

OVERDUE_S = 60.0


class ParkedLine:
    """By class, each by arrival. ``overdue``: those of no class, by arrival."""

    def __init__(self) -> None:
        self.overdue: list[SequenceGroup] = []
        self._rows: dict[int, list[SequenceGroup]] = {}
        self._tickets: dict[str, int] = {}  # of all that have a class
        self._idle: list[tuple[float, int, SequenceGroup]] = []  # a heap; entries may be out of date
        self._next_ticket = count()

    def classes(self) -> Set[int]:
        """Those that somebody has."""
        return self._rows.keys()

    def add(self, group: SequenceGroup) -> None:
        if group.is_overdue:
            insort(self.overdue, group, key=_arrival)
            return
        insort(self._rows.setdefault(group.priority, []), group, key=_arrival)
        ticket = self._tickets[group.request_id] = next(self._next_ticket)
        if len(self._idle) > 2 * len(self._tickets) + 64:
            self._idle = [entry for entry in self._idle if self._is_valid(entry)]
            heapq.heapify(self._idle)
        heapq.heappush(self._idle, (group.idle_since, ticket, group))

    def remove(self, group: SequenceGroup) -> None:
        """Of those that are here."""
        row = self.overdue if group.is_overdue else self._rows[group.priority]
        del row[bisect_left(row, group.arrival_index, key=_arrival)]
        if not group.is_overdue:
            del self._tickets[group.request_id]
            if not row:
                del self._rows[group.priority]

    def note_overdue(self, now: float) -> None:
        """``now``: seconds."""
        while self._idle and now - self._idle[0][0] > OVERDUE_S:
            entry = heapq.heappop(self._idle)
            if self._is_valid(entry):
                group = entry[2]
                self.remove(group)
                group.is_overdue = True
                self.add(group)

    def candidates(self, priority: int, *, with_overdue: bool) -> Iterator[SequenceGroup]:
        """Those of a class, by arrival. The caller may take out what it is given."""
        if not with_overdue:
            return self._walk(priority)
        return heapq.merge(self._walk(priority), self._walk(None), key=_arrival)

    def _walk(self, priority: int | None) -> Iterator[SequenceGroup]:
        """Of one class; None: the overdue."""
        position = 0
        while position < len(row := self.overdue if priority is None else self._rows.get(priority, [])):
            group = row[position]
            yield group
            position = bisect_right(row, group.arrival_index, key=_arrival)

    def _is_valid(self, entry: tuple[float, int, SequenceGroup]) -> bool:
        return self._tickets.get(entry[2].request_id) == entry[1]

    # ---- recount -------------------------------------------------------------------------------

    def holds(self, groups: list[SequenceGroup]) -> bool:
        """Whether exactly these are here, each in its place."""
        rows = [*self._rows.items(), *([(None, self.overdue)] if self.overdue else [])]
        found = [group for _, row in rows for group in row]
        return (
            {id(group) for group in found} == {id(group) for group in groups}
            and len(found) == len(groups)
            and all(row == sorted(row, key=_arrival) and row for _, row in rows)
            and all(
                (None if group.is_overdue else group.priority) == key for key, row in rows for group in row
            )
            and self._tickets.keys() == {group.request_id for group in found if not group.is_overdue}
        )


def _arrival(group: SequenceGroup) -> int:
    return group.arrival_index
