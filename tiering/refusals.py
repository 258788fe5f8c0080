"""Who was last refused for want of room, and whether that holds still, without matching its blocks anew.

Runs on: step thread, sole owner. Pure queries. The head of the line asks at every step, and matching costs as
much as its context is long. What it lacks gets less only by blocks that become available or get names, by one
each; and what it finds gets more only by the name that was not found, or by loads, for which it might wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiering.intake import Intake
from tiering.planner import RestorePlanner
from tiering.tables import Member, ParkedTable
from tiering.tiers import Tiers
from tiering.types import BlockLabel, Tier, TransferKind


@dataclass(frozen=True, slots=True)
class Question:
    """What an answer depends on beside the pools. ``parked``: the sequence's own slots, if any."""

    member: Member
    keep_available: int
    may_load: bool
    parked: ParkedTable | None

    def is_as(self, other: Question) -> bool:
        """Whether it is the same once more."""
        return (
            self.member.sequence_id == other.member.sequence_id
            and self.member.num_tokens == other.member.num_tokens
            and self.member.capacity_tokens == other.member.capacity_tokens
            and len(self.member.names) == len(other.member.names)
            and self.keep_available == other.keep_available
            and self.may_load == other.may_load
            and self.parked is other.parked
        )


@dataclass(frozen=True, slots=True)
class _Refused:
    """``next_label``: of the first block that was not found, None if all were that may be."""

    question: Question
    num_missing: int
    num_gains: int
    num_loads: int
    num_forgets: int
    next_label: BlockLabel | None


class LastRefusal:
    """Remembers one refusal of a single sequence."""

    def __init__(self, tiers: Tiers, planner: RestorePlanner, block_size: int) -> None:
        self._tiers = tiers
        self._planner = planner
        self._block_size = block_size
        self._last: _Refused | None = None

    def note(self, question: Question, intake: Intake, num_missing: int) -> None:
        """It was refused: so many blocks were missing.

        Not remembered where the restore policy has a say in how many blocks it takes, or while loads are
        under way, for which it might have to wait.
        """
        self._last = None
        (plan,) = intake.plans
        is_mixed = any(source.tier is Tier.DEVICE for source in plan.sources[plan.num_front :])
        has_loads = any(self._tiers.num_moves_of(kind) for kind in TransferKind if kind.is_load)
        if is_mixed or plan.num_forgone_tokens or has_loads:
            return
        self._last = _Refused(
            question,
            num_missing,
            self._tiers.device.num_gains,
            self._tiers.num_loads_begun,
            self._tiers.device.num_forgets,
            None if intake.is_parked else self._next_label(question.member, len(plan.sources)),
        )

    def holds(self, question: Question) -> bool:
        """Whether the answer would be the same as last time."""
        last = self._last
        return (
            last is not None
            and last.question.is_as(question)
            and self._tiers.device.num_gains - last.num_gains < last.num_missing
            and self._tiers.num_loads_begun == last.num_loads
            and self._tiers.device.num_forgets == last.num_forgets  # a copy to host may bring it back
            and (last.next_label is None or not self._planner.finds(last.next_label, question.may_load))
        )

    def _next_label(self, member: Member, num_found: int) -> BlockLabel | None:
        limit = min((member.num_tokens - 1) // self._block_size, len(member.names))
        return BlockLabel(member.names[num_found], num_found) if num_found < limit else None
