"""Where a request stands: running, restoring, parked or waiting; and who is next in line.

Runs on: step thread, sole owner. Pure bookkeeping; every request is in exactly one place. What waits
costs nothing per step, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from engine.decoding import Decoding
from engine.fairness import FairShares
from engine.line import TenantLine
from engine.request import SequenceGroup
from tiering.types import BlockId


class RequestQueues:
    """All live requests of a scheduler, and the share that each tenant had.

    ``parked`` ones were preempted (swapped out or not), or their clients stopped reading before they ran. Of
    those that run ``decoding`` has the ones that are known to decode and do nothing else, ``unsettled`` the
    others.
    """

    def __init__(self) -> None:
        self.num_paused = 0
        self.shares = FairShares()
        self.running: dict[str, SequenceGroup] = {}
        self.restoring: dict[str, SequenceGroup] = {}
        self.parked: dict[str, SequenceGroup] = {}
        self.decoding = Decoding()
        self.unsettled: dict[str, SequenceGroup] = {}
        self._in_line: list[SequenceGroup] = []
        self._lines: dict[str, TenantLine] = {}
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

    @property
    def num_tenants(self) -> int:
        """Tenants with requests in the house."""
        return len(self._lines)

    # ---- moves ---------------------------------------------------------------------------------

    def add(self, group: SequenceGroup) -> None:
        """Let a new request wait."""
        assert group.request_id not in self._all
        self._all[group.request_id] = group
        share = self.shares.enter(group.tenant, group.weight)
        line = self._lines.setdefault(group.tenant, TenantLine(share))
        line.enter(group)
        self._note_line(line)

    def run(self, group: SequenceGroup) -> None:
        self._take(group)
        self.running[group.request_id] = self.unsettled[group.request_id] = group

    def settle(self, group: SequenceGroup, block_tables: Iterable[Sequence[BlockId]]) -> None:
        """An unsettled request only decodes, and will until ``unsettle``; so ``Decoding.enter``."""
        del self.unsettled[group.request_id]
        self.decoding.enter(group, block_tables)

    def unsettle(self, group: SequenceGroup) -> None:
        """Something is about to change of a request, which may run or not."""
        self.decoding.leave(group)
        if group.request_id in self.running:
            self.unsettled[group.request_id] = group

    def restore(self, group: SequenceGroup) -> None:
        self._take(group)
        self.restoring[group.request_id] = group

    def park(self, group: SequenceGroup) -> None:
        line = self._lines[group.tenant]
        self._pop(group)
        self.parked[group.request_id] = group
        line.park(group)
        self._note_line(line)

    def set_paused(self, group: SequenceGroup, paused: bool, now: float) -> None:
        """Whether its client reads. What was in line is parked from then on."""
        self.unsettle(group)
        line = self._lines[group.tenant]
        self.num_paused += paused - group.paused
        is_in_line = line.take(group)
        group.paused = paused
        group.idle_since = now
        if is_in_line:
            self.parked[group.request_id] = group
            line.park(group)
            self._note_line(line)

    def remove(self, group: SequenceGroup) -> None:
        self._take(group)
        self.num_paused -= group.paused
        del self._all[group.request_id]
        line = self._lines[group.tenant]
        line.leave(group)
        if line.is_empty:
            del self._lines[group.tenant]
            self.shares.leave(line.share)

    def _take(self, group: SequenceGroup) -> None:
        self._pop(group)
        self._note_line(self._lines[group.tenant])

    def _pop(self, group: SequenceGroup) -> None:
        for place in (self.running, self.unsettled, self.restoring, self.parked):
            place.pop(group.request_id, None)
        self.decoding.leave(group)
        self._lines[group.tenant].take(group)

    def _note_line(self, line: TenantLine) -> None:
        self.shares.set_in_line(line.share, line.num_ready > 0)

    # ---- order ---------------------------------------------------------------------------------

    def rank(self, group: SequenceGroup) -> tuple[bool, float, int, int]:
        """A place in the line of all: the lower goes first.

        Those that were promised their blocks, by arrival; then by tenants, the least served first; then by
        class and arrival.
        """
        if group.has_whole_length:
            return (False, 0.0, 0, group.arrival_index)
        line = self._lines[group.tenant]
        return (True, line.share.served, *line.order(group))

    def note_contention(self) -> None:
        """Whether anybody has to wait for others, in line or for the tokens of a step."""
        in_line = self.shares.num_in_line > 0
        self.shares.set_contended(in_line or any(r.is_prefilling and not r.paused for r in self.others()))

    def line_up(self) -> list[SequenceGroup]:
        """Running and restoring requests whose clients read, first in line first.

        That order holds until the next call, whatever is charged meanwhile.
        """
        self._in_line = sorted((r for r in self.holding() if not r.paused), key=self.rank)
        return self._in_line

    def others_in_line(self) -> list[SequenceGroup]:
        """Of those that ``line_up`` gives, the ones that do not only decode."""
        return sorted((r for r in self.others() if not r.paused), key=self.rank)

    def last_paused(self) -> SequenceGroup | None:
        """Of those that hold device blocks and whose clients do not read, the last in line."""
        return max((r for r in self.others() if r.paused), key=self.rank, default=None)

    def victim_for(self, group: SequenceGroup) -> SequenceGroup:
        """Who gives way to ``group``: slow readers first, then the last of those lined up; maybe itself."""
        others = (r for r in reversed(self._in_line) if self._holds(r))
        return self.last_paused() or next(others, group)

    def holding(self) -> Iterator[SequenceGroup]:
        """Those that have device blocks."""
        yield from self.running.values()
        yield from self.restoring.values()

    def others(self) -> Iterator[SequenceGroup]:
        """Those that have device blocks and are not known to decode only: nobody else is paused."""
        yield from self.unsettled.values()
        yield from self.restoring.values()

    def num_active(self) -> int:
        """Sequences that may take part in a step."""
        return self.decoding.num_seqs + sum(group.num_active for group in self.others())

    def _holds(self, group: SequenceGroup) -> bool:
        return group.request_id in self.running or group.request_id in self.restoring

    def candidates(self, tenant: str, limit: int, now: float) -> Iterator[SequenceGroup]:
        """Who of a tenant may be admitted, first in line first: by class, in it the parked before the
        waiting.

        Of each class at most ``limit`` waiting ones. The caller may move what it is given.
        """
        return self._lines[tenant].candidates(limit, now)

    def first_candidate(self, now: float) -> SequenceGroup | None:
        """Whose turn to be admitted it is."""
        share = self.shares.least()
        return None if share is None else next(self.candidates(share.tenant, 1, now), None)

    # ---- recount -------------------------------------------------------------------------------

    def is_in_one_place(self, group: SequenceGroup) -> bool:
        """Whether exactly one queue holds the request."""
        places = [self.running, self.restoring]
        for line in self._lines.values():
            places += line.places()
        is_parked = group.request_id in self._lines[group.tenant].parked
        is_once = sum(group.request_id in place for place in places) == 1
        is_settled = group in self.decoding
        is_once &= is_settled + (group.request_id in self.unsettled) == (group.request_id in self.running)
        return is_once and is_parked == (group.request_id in self.parked)

    def lines_add_up(self) -> bool:
        """Whether each tenant has as many requests in line as it counts, and stands in line if any."""
        return (
            all(
                line.adds_up()
                and line.num_ready == sum(not r.paused for place in line.places() for r in place.values())
                and (line.num_ready > 0) == (line.share.ticket is not None)
                for line in self._lines.values()
            )
            and {group.tenant for group in self} == self._lines.keys()
        )
