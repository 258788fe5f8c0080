"""Sequences of one group that share the beginning of another, which has yet to be computed.

Runs on: step thread, sole owner. Such a branch has its own blocks from the start, so that nothing can keep it
from being born once its parent has come far enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiering.block_pool import BlockPool
from tiering.tables import BlockTable, Member, PendingBranch
from tiering.types import BlockHash


@dataclass(frozen=True, slots=True)
class BranchPlan:
    """A branch that is to share ``num_shared`` blocks of its parent, and to have ``num_own`` besides."""

    sequence_id: str
    parent_id: str
    num_shared: int
    num_own: int


class Branches:
    """Branches that wait for their parents, by sequence."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._branches: dict[str, PendingBranch] = {}

    def waiting(self) -> Mapping[str, PendingBranch]:
        """All of them, for recounts and reports."""
        return self._branches

    def plan(self, members: Sequence[Member]) -> list[BranchPlan]:
        """For each member but the first: whose beginning it best shares, and what it needs beyond.

        At least one token is left to it that it computes itself.
        """
        plans = []
        for position, member in enumerate(members[1:], start=1):
            limit = (member.num_tokens - 1) // self._block_size
            shared = [_num_common(member.names[:limit], other.names) for other in members[:position]]
            num_shared = max(shared)
            num_own = -(-member.capacity_tokens // self._block_size) - num_shared
            parent_id = members[shared.index(num_shared)].sequence_id
            plans.append(BranchPlan(member.sequence_id, parent_id, num_shared, num_own))
        return plans

    def reserve(self, plans: Sequence[BranchPlan]) -> None:
        """Give branches their own blocks. There must be room."""
        for plan in plans:
            blocks = self._pool.try_allocate(plan.num_own)
            assert blocks is not None
            num_shared_tokens = plan.num_shared * self._block_size
            self._branches[plan.sequence_id] = PendingBranch(plan.parent_id, num_shared_tokens, blocks)

    def bear(self, sequence_id: str, parent: BlockTable) -> BlockTable:
        """A table for a branch whose parent has computed what they share."""
        branch = self._branches.pop(sequence_id)
        shared = parent.blocks[: branch.num_shared_tokens // self._block_size]
        for block in shared:
            self._pool.share(block)
        num_published = min(parent.num_published, len(shared))
        return BlockTable([*shared, *branch.blocks], num_published, parent.outlook)

    def release(self, sequence_id: str) -> None:
        """Give a branch up, if there is one."""
        branch = self._branches.pop(sequence_id, None)
        if branch is not None:
            self._pool.release(reversed(branch.blocks))


def _num_common(some: Sequence[BlockHash], others: Sequence[BlockHash]) -> int:
    """How many names both begin with: a name stands for all before it, so bisection finds the last."""
    low, high = 0, min(len(some), len(others))
    while low < high:
        middle = (low + high + 1) // 2
        if some[middle - 1] == others[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
