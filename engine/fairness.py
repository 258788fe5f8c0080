"""What each tenant has been served, by weight, and which of those that wait was served least.

Runs on: step thread, sole owner. Pure. After "Fairness in Serving Large Language Models" (Sheng et al., OSDI
2024): a virtual counter for each tenant grows by what it is served, divided by its weight, and whoever has
the lowest goes next. The costs are the paper's: 1 for a token of a prompt that is computed, 2 for a token
that is generated, because a decoding sequence keeps a place in every step and reads all its K/V for one
token. What a cache holds is not computed and costs nothing; nor does computing again what was lost to others.

A tenant that begins to wait is lifted to the least served of those that wait: idleness is not saved up. What
it was behind them when it last had to wait it keeps, while it has requests in the house. While nobody waits
and no prompt is being computed, everybody gets all that it wants, at nobody's cost: when somebody begins to
wait after such a time, all start anew.
"""

from __future__ import annotations

import heapq
from itertools import count

PROMPT_TOKEN_COST = 1.0
GENERATED_TOKEN_COST = 2.0
MAX_DEBTORS = 1024


class Share:
    """One tenant with requests in the house. ``served``: costs charged ÷ ``weight``.

    ``ticket`` is that of its entry in the line of tenants, None if none of its requests waits; ``behind``:
    how much less it had been served than others in line when it left that.
    """

    __slots__ = ("behind", "served", "tenant", "ticket", "weight")

    def __init__(self, tenant: str, weight: float, served: float) -> None:
        self.tenant = tenant
        self.weight = weight
        self.served = served
        self.behind = 0.0
        self.ticket: int | None = None

    def lead(self, other: Share) -> float:
        """Costs that this tenant was charged beyond its share beside ``other``."""
        return (self.served - other.served) * self.weight


class FairShares:
    """The counters of all tenants that are in the house, and the line of those that wait.

    A tenant that leaves with more than its share is remembered as such until the others have caught up;
    bound: ``MAX_DEBTORS``, the oldest are forgotten first. ``total``: costs charged to all.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.num_in_line = 0
        self._shares: dict[str, Share] = {}
        self._debtors: dict[str, float] = {}
        self._line: list[tuple[float, int, Share]] = []  # a heap; entries may be out of date
        self._passed_over: list[Share] = []
        self._tickets = count()
        self._level = 0.0  # of the tenant whose turn it was last
        self._is_contended = False

    def of(self, tenant: str) -> Share:
        return self._shares[tenant]

    def enter(self, tenant: str, weight: float) -> Share:
        """A request of this tenant is in the house; the latest one says what weight it has."""
        share = self._shares.get(tenant)
        if share is None:
            share = self._shares[tenant] = Share(tenant, weight, self._debtors.pop(tenant, 0.0))
        share.weight = weight
        return share

    def leave(self, share: Share) -> None:
        """Nothing of this tenant is in the house any more."""
        assert share.ticket is None
        del self._shares[share.tenant]
        if share.served > self._level:
            self._debtors[share.tenant] = share.served
            if len(self._debtors) > MAX_DEBTORS:
                del self._debtors[next(iter(self._debtors))]

    def set_contended(self, contended: bool) -> None:
        """Whether anybody has to wait for others."""
        if contended and not self._is_contended:
            self._start_anew()
        self._is_contended = contended

    def _start_anew(self) -> None:
        self._debtors.clear()
        self._line.clear()
        self._level = 0.0
        for share in self._shares.values():
            share.served = share.behind = 0.0
            if share.ticket is not None:
                self._push(share)

    def charge(self, tenant: str, cost: float) -> None:
        """A tenant was served."""
        share = self._shares[tenant]
        share.served += cost / share.weight
        self.total += cost

    # ---- the line ------------------------------------------------------------------------------

    def set_in_line(self, share: Share, in_line: bool) -> None:
        """Whether any request of this tenant waits, whose client reads."""
        if in_line == (share.ticket is not None):
            return
        if in_line:
            least = self.least()
            level = self._level if least is None else least.served
            share.served = max(share.served, level - share.behind)
            self._push(share)
            self.num_in_line += 1
        else:
            share.ticket = None
            self.num_in_line -= 1
            least = self.least()
            share.behind = 0.0 if least is None else max(0.0, least.served - share.served)

    def least(self) -> Share | None:
        """Of the tenants in line, and not passed over, the one that was served least."""
        while self._line:
            served, ticket, share = self._line[0]
            if share.ticket == ticket and share.served == served:
                return share
            heapq.heappop(self._line)
            if share.ticket == ticket:
                self._push(share)
        return None

    def take_turn(self, share: Share) -> None:
        """It is served next."""
        self._level = max(self._level, share.served)

    def pass_over(self, share: Share) -> None:
        """It has nobody to send: leave it out until ``end_round``."""
        entry = heapq.heappop(self._line)
        assert entry[2] is share
        self._passed_over.append(share)

    def end_round(self) -> None:
        for share in self._passed_over:
            if share.ticket is not None:
                self._push(share)
        self._passed_over.clear()

    def _push(self, share: Share) -> None:
        """Behind those that were served as much."""
        share.ticket = next(self._tickets)
        if len(self._line) > 2 * self.num_in_line + 64:
            self._line = [entry for entry in self._line if entry[2].ticket == entry[1]]
            heapq.heapify(self._line)
        heapq.heappush(self._line, (share.served, share.ticket, share))
