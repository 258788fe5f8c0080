"""Sequences of one group that share the beginning of another, which has yet to be computed.

Runs on: step thread, sole owner. Such a branch has its own blocks from the start, so that nothing can keep it
from being born once its parent has come far enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tiering.block_pool import BlockPool
from tiering.tables import BlockTable, Member, PendingBranch
from tiering.types import BlockHash


class Branches:
    """Branches that wait for their parents, by sequence."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._branches: dict[str, PendingBranch] = {}

    def waiting(self) -> Mapping[str, PendingBranch]:
        """All of them, for recounts and reports."""
        return self._branches

    def plan(self, members: Sequence[Member]) -> Iterator[tuple[Member, str, int]]:
        """For each member but the first: whose beginning it best shares, and how many blocks of it.

        At least one token is left to it that it computes itself.
        """
        for position, member in enumerate(members[1:], start=1):
            limit = (member.num_tokens - 1) // self._block_size
            shared = [_num_common(member.names[:limit], other.names) for other in members[:position]]
            num_shared = max(shared)
            yield member, members[shared.index(num_shared)].sequence_id, num_shared

    def num_blocks(self, members: Sequence[Member]) -> int:
        """Blocks that all members but the first need for themselves."""
        return sum(
            -(-member.capacity_tokens // self._block_size) - shared
            for member, _, shared in self.plan(members)
        )

    def reserve(self, members: Sequence[Member]) -> None:
        """Give all members but the first their own blocks. There must be room."""
        for member, parent_id, shared in self.plan(members):
            blocks = self._pool.try_allocate(-(-member.capacity_tokens // self._block_size) - shared)
            assert blocks is not None
            self._branches[member.sequence_id] = PendingBranch(parent_id, shared * self._block_size, blocks)

    def bear(self, sequence_id: str, parent: BlockTable) -> BlockTable:
        """A table for a branch whose parent has computed what they share."""
        branch = self._branches.pop(sequence_id)
        shared = parent.blocks[: branch.num_shared_tokens // self._block_size]
        for block in shared:
            self._pool.share(block)
        return BlockTable([*shared, *branch.blocks], min(parent.num_published, len(shared)))

    def release(self, sequence_id: str) -> None:
        """Give a branch up, if there is one."""
        branch = self._branches.pop(sequence_id, None)
        if branch is not None:
            self._pool.release(reversed(branch.blocks))


def _num_common(some: Sequence[BlockHash], others: Sequence[BlockHash]) -> int:
    """How many names both begin with. A name stands for all before it, so the last equal one can be
    bisected.
    """
    low, high = 0, min(len(some), len(others))
    while low < high:
        middle = (low + high + 1) // 2
        if some[middle - 1] == others[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
