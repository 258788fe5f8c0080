"""Block tables of sequences over the device pool: admission with prefix hits, growth, release.

Runs on: step thread, sole owner. Blocks: never; owns no tensor. Every call either succeeds whole or
changes nothing. A sequence's table covers its logical blocks from the first on, without holes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiering.block_pool import BlockPool
from tiering.policies.eviction import EvictionPolicy
from tiering.types import Admission, BlockHash, BlockId, PoolUsage


class BlockTable:
    """Logical to device blocks of one sequence. The first ``num_published`` are full and settled."""

    __slots__ = ("blocks", "num_published")

    def __init__(self, blocks: list[BlockId], num_published: int) -> None:
        self.blocks = blocks
        self.num_published = num_published


class BlockManager:
    """Hands device blocks to sequences and finds shared prefixes by name."""

    def __init__(
        self, num_blocks: int, block_size: int, eviction: EvictionPolicy, *, prefix_caching: bool = True
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, eviction)
        self.prefix_caching = prefix_caching
        self._tables: dict[str, BlockTable] = {}

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    def usage(self) -> PoolUsage:
        return self.pool.usage()

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def block_table(self, sequence_id: str) -> Sequence[BlockId]:
        """Live view of a sequence's table; do not keep it beyond the step."""
        return self._tables[sequence_id].blocks

    def tables(self) -> dict[str, BlockTable]:
        """All tables, for recounts."""
        return self._tables

    def try_admit(
        self,
        sequence_id: str,
        names: Sequence[BlockHash],
        *,
        num_tokens: int,
        capacity_tokens: int,
        keep_available: int,
    ) -> Admission | None:
        """Give a new sequence blocks for ``capacity_tokens``, sharing the longest named prefix.

        ``num_tokens`` is its known length: the hit is capped at the last full block before its last
        token, so that there is always something to compute and no shared block is ever written.
        None, with nothing changed, unless ``keep_available`` blocks would remain available.
        """
        assert sequence_id not in self._tables
        assert 0 < num_tokens <= capacity_tokens
        hits = self._match(names, (num_tokens - 1) // self.block_size)
        fresh = self.blocks_for(capacity_tokens) - len(hits)
        revived = sum(self.pool.ref_count(block) == 0 for block in hits)
        if fresh + keep_available > self.pool.num_available() - revived:
            return None
        for block in hits:
            self.pool.acquire(block)
        allocated = self.pool.try_allocate(fresh)
        assert allocated is not None
        self._tables[sequence_id] = BlockTable(hits + allocated, num_published=len(hits))
        return Admission(num_cached_tokens=len(hits) * self.block_size)

    def try_grow(self, sequence_id: str, num_tokens: int) -> bool:
        """Make the table cover ``num_tokens``. False, with nothing changed, if the pool is too full."""
        table = self._tables[sequence_id]
        missing = self.blocks_for(num_tokens) - len(table.blocks)
        if missing <= 0:
            return True
        allocated = self.pool.try_allocate(missing)
        if allocated is None:
            return False
        table.blocks += allocated
        return True

    def publish(self, sequence_id: str, names: Sequence[BlockHash], num_full: int) -> None:
        """Name the sequence's first ``num_full`` blocks, which the compute has now filled.

        Blocks named before are skipped. Where another block has the name already, the sequence takes
        that one and gives up its own: they hold the same content.
        """
        table = self._tables[sequence_id]
        if self.prefix_caching:
            for index in range(table.num_published, num_full):
                table.blocks[index] = self._settle(table.blocks[index], names[index])
        table.num_published = max(table.num_published, num_full)

    def release(self, sequence_id: str) -> None:
        """Give up a sequence's blocks, the last one first. Named ones stay cached."""
        self.pool.release(reversed(self._tables.pop(sequence_id).blocks))

    def discard(self, sequence_id: str) -> None:
        """Give up a sequence's blocks whose content is not to be trusted: nobody shall find them."""
        blocks = self._tables.pop(sequence_id).blocks
        self.pool.release(reversed(blocks))
        self.pool.drop(reversed(blocks))

    def _settle(self, block: BlockId, name: BlockHash) -> BlockId:
        """The one block with this name from now on, referenced by the sequence that filled ``block``."""
        named = self.pool.lookup(name)
        if named is None:
            self.pool.publish(block, name)
            return block
        self.pool.acquire(named)
        self.pool.release((block,))
        return named

    def _match(self, names: Sequence[BlockHash], limit: int) -> list[BlockId]:
        hits: list[BlockId] = []
        for name in names[:limit]:
            block = self.pool.lookup(name)
            if block is None:
                break
            hits.append(block)
        return hits
