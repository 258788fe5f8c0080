"""When a request that runs gives way to one that waits: its tenant is ahead, and the other's is kept out.

Runs on: step thread, sole owner. Pure. A tenant is ahead if it was charged more than a quantum beyond its
share beside the other. Who gives way has run for ``PATIENCE`` times as many steps as it takes to compute what
it came with, and will not end by itself within as many as it takes to compute again what it has. After that
nobody else does for so many steps, nor until another quantum was served. So there are no more such
preemptions than quanta that are served, and they cost at most one step in ``PATIENCE`` + 1.
"""

from __future__ import annotations

from collections import abc

from engine.fairness import FairShares
from engine.request import SequenceGroup

PATIENCE = 4


class Claims:
    """Bounds how often somebody gives way.

    ``quantum``: in costs, as ``engine.fairness`` counts them; ``step_tokens``: the most that a step computes.
    """

    def __init__(self, shares: FairShares, quantum: float, step_tokens: int) -> None:
        self.quantum = quantum
        self._step_tokens = step_tokens
        self._shares = shares
        self._next_total = 0.0
        self._next_step = 0

    def are_open(self, step: int) -> bool:
        """Whether enough was served since somebody gave way. ``step``: the number of this one."""
        return step >= self._next_step and self._shares.total >= self._next_total

    def victim_for(
        self, claimant: SequenceGroup, in_line: abc.Sequence[SequenceGroup], step: int
    ) -> SequenceGroup | None:
        """Of those that run, first in line first, the last one that is to give way to ``claimant``.

        Not one that has given way so often that it was promised its blocks.
        """
        share = self._shares.of(claimant.tenant)
        for group in reversed(in_line):
            is_ahead = self._shares.of(group.tenant).lead(share) > self.quantum
            if is_ahead and self._may_go(group, step) and not group.has_whole_length:
                return group
        return None

    def _may_go(self, group: SequenceGroup, step: int) -> bool:
        num_steps_left = group.max_total_tokens - group.first.num_tokens
        return step >= group.stays_until_step and num_steps_left > self._loss(group)

    def note_admission(self, group: SequenceGroup, step: int) -> None:
        """It begins to run, or to be loaded."""
        group.stays_until_step = step + self._worth(sum(sequence.num_tokens for sequence in group.sequences))

    def note_victim(self, group: SequenceGroup, step: int) -> None:
        """It is about to give way."""
        self._next_total = self._shares.total + self.quantum
        self._next_step = step + self._loss(group)

    def _loss(self, group: SequenceGroup) -> int:
        return self._worth(sum(sequence.num_computed_tokens for sequence in group.sequences))

    def _worth(self, num_tokens: int) -> int:
        """Steps after which computing so many tokens was worth while."""
        return PATIENCE * -(-num_tokens // self._step_tokens)
