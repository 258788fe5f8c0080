"""Room that several share: however much one takes, there is some left for another who comes.

Pure. After "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches" (Choudhury and Hahne, 1998):
whoever wants more may then hold no more than so many times what is free. One alone fills four fifths of it,
two fill four ninths each; as others come, those who hold much get no more until some of it was given back.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

PORTION = 4.0


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds room: up to ``portion`` times what is free."""

    name: str = ""
    portion: float = math.inf


def portion_of(weight: float, heaviest: float) -> float:
    """Of one who shares with others; at least 1, so that whoever holds nothing may take all that is free."""
    return max(1.0, PORTION * weight / heaviest)


class SharedRoom:
    """So many of something."""

    def __init__(self, capacity: int) -> None:
        assert capacity > 0
        self.capacity = capacity
        self.used = 0
        self._held: Counter[str] = Counter()

    def held(self, holder: Holder) -> int:
        return self._held[holder.name]

    def lacking(self, holder: Holder, amount: int) -> int:
        """How much has to be given back until ``amount`` more can be taken; 0: nothing has to.

        Who holds too much because others came keeps it.
        """
        if not amount:
            return 0
        free = self.capacity - self.used
        of_all, of_its_own = amount - free, 0
        if math.isfinite(holder.portion):  # what it gives back is free too
            excess = self._held[holder.name] + amount - holder.portion * free
            of_its_own = math.ceil(excess / (1 + holder.portion))
        return max(0, of_all, of_its_own)

    def take(self, holder: Holder, amount: int) -> None:
        self.used += amount
        self._held[holder.name] += amount

    def give_back(self, holder: Holder, amount: int) -> None:
        self.used -= amount
        self._held[holder.name] -= amount
        if not self._held[holder.name]:
            del self._held[holder.name]
