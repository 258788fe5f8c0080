"""What clients do before a request and while its answer comes: think, return, leave, read slowly. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtest.drafts import Draft
from loadtest.plan import READ_ALL, Reading
from loadtest.spreads import Spread


@dataclass(frozen=True, slots=True)
class Beginning:
    """When a turn begins: fields of ``PlannedRequest``."""

    at_s: float | None
    think_s: float


@dataclass(frozen=True, slots=True)
class Habits:
    """``thinking`` is from an answer to the next request, ``returns`` from start to start of turns."""

    thinking: Spread
    returns: Spread | None
    leave_share: float
    slow_share: float
    slow_pause_s: float
    seed: int

    def beginnings(
        self, conversations: Sequence[Sequence[Draft]], starts: Sequence[float] | None, scale: float
    ) -> list[list[Beginning]]:
        """Of all turns. Later ones come when the spread says, else at the trace's times, else after thinking.

        Without ``starts`` the load is closed, and users think before first turns too. ``scale``: times the
        trace's times.
        """
        thinking, returning = self._random("thinking"), self._random("returns")
        found = []
        for number, turns in enumerate(conversations):
            start_s = at_s = None if starts is None else starts[number]
            beginnings = []
            for turn, draft in enumerate(turns):
                think_s = self.thinking.draw_seconds(thinking) if turn or starts is None else 0.0
                if turn and start_s is not None and at_s is not None and self.returns is not None:
                    at_s += self.returns.draw_seconds(returning)
                elif turn and start_s is not None:
                    at_s = _by_trace(turns[0], draft, start_s, scale)
                beginnings.append(Beginning(at_s, think_s))
            found.append(beginnings)
        return found

    def readings(self, conversations: Sequence[Sequence[Draft]]) -> list[list[Reading]]:
        """Of all turns. Those who leave are exactly their share of the conversations, if as many answers are
        long enough to be left, and so are those who are slow: a client is one or the other.
        """
        rng = self._random("readings")
        readings = [[READ_ALL] * len(turns) for turns in conversations]
        leavable = [number for number, turns in enumerate(conversations) if turns[-1].output_len > 1]
        num_leaving = min(round(self.leave_share * len(conversations)), len(leavable))
        leaving = set(rng.sample(leavable, num_leaving))
        for number in sorted(leaving):
            most = conversations[number][-1].output_len - 1
            readings[number][-1] = replace(READ_ALL, leave_after=rng.randint(1, most))
        staying = [number for number in range(len(conversations)) if number not in leaving]
        num_slow = min(round(self.slow_share * len(conversations)), len(staying))
        for number in rng.sample(staying, num_slow):
            readings[number] = [replace(READ_ALL, pause_s=self.slow_pause_s)] * len(conversations[number])
        return readings

    def _random(self, what: str) -> random.Random:
        return random.Random(f"{self.seed} {what}")


def _by_trace(first: Draft, later: Draft, start_s: float, scale: float) -> float | None:
    if first.at_s is None or later.at_s is None:
        return None
    return start_s + (later.at_s - first.at_s) * scale
