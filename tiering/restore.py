"""One sequence's KV on its way back to the device: what has arrived, what is coming, what may be computed.

Only here may a table have holes: its front is computed, its tail loaded, and both ends move toward each
other. Pure bookkeeping by logical block index.
"""

from __future__ import annotations

from collections import Counter

from tiering.types import Tier, TransferId


class Restore:
    """Logical blocks ``[first, end)``. When all are there the sequence has ``num_tokens`` computed tokens.

    ``moves`` maps the index of each block that is coming to the move under way for it. ``origin`` says
    from which tier the blocks that arrived came. ``predicted_s``: how long loading all of it was expected to
    take, None if nobody knew. ``progress_at``: when it last got further, in seconds on the engine's clock.
    """

    __slots__ = (
        "begun_at",
        "block_size",
        "end",
        "failed",
        "first",
        "moves",
        "num_tokens",
        "origin",
        "overlaps",
        "predicted_s",
        "progress_at",
    )

    def __init__(
        self,
        first: int,
        num_tokens: int,
        block_size: int,
        *,
        overlaps: bool,
        begun_at: float = 0.0,
        predicted_s: float | None = None,
    ) -> None:
        self.first = first
        self.end = -(-num_tokens // block_size)
        self.num_tokens = num_tokens
        self.block_size = block_size
        self.overlaps = overlaps
        self.begun_at = begun_at
        self.progress_at = begun_at
        self.predicted_s = predicted_s
        self.failed = False
        self.moves: dict[int, TransferId] = {}
        self.origin: dict[int, Tier] = {}

    def front(self, num_computed_tokens: int) -> int:
        """Position up to which everything is there: what was computed, and what arrived next to it."""
        if num_computed_tokens % self.block_size:
            return num_computed_tokens
        index = num_computed_tokens // self.block_size
        while index in self.origin:
            index += 1
        return max(num_computed_tokens, min(index * self.block_size, self.num_tokens))

    def compute_limit(self, num_computed_tokens: int) -> int:
        """Position up to which may be computed now: not into a block that is coming or here."""
        if not self.overlaps and self.moves:
            return num_computed_tokens
        for index in range(num_computed_tokens // self.block_size, self.end):
            if index in self.moves or index in self.origin:
                return index * self.block_size
        return self.num_tokens

    def claimable(self, num_computed_tokens: int) -> list[int]:
        """Blocks that are coming and come next for the computed front, first first."""
        found = []
        for index in range(-(-num_computed_tokens // self.block_size), self.end):
            if index in self.origin:
                break
            if index in self.moves:
                found.append(index)
        return found

    def tokens_from(self, tier: Tier) -> int:
        """Tokens that came from ``tier``."""
        count = Counter(self.origin.values())[tier]
        has_tail = self.origin.get(self.end - 1) is tier
        return count * self.block_size - (self.end * self.block_size - self.num_tokens if has_tail else 0)
