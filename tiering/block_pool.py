"""A fixed pool of equal KV blocks: who refers to which, which are free, which are named.

Runs on: step thread, sole owner. Blocks: never. Invariants: every block is in exactly one of free
list, eviction order, or use (``ref_count`` > 0); a name leaves the index before its block is reused;
only READY blocks have names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tiering.policies.eviction import EvictionPolicy
from tiering.residency import next_state
from tiering.types import BlockEvent, BlockHash, BlockId, BlockState, PoolUsage


class BlockPool:
    """Reference-counted blocks of one tier, with an index from name to block."""

    def __init__(self, num_blocks: int, eviction: EvictionPolicy) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self.evictions_total = 0
        self._eviction = eviction
        self._free = [BlockId(i) for i in reversed(range(num_blocks))]
        self._state = [BlockState.FREE] * num_blocks
        self._ref_count = [0] * num_blocks
        self._name: dict[BlockId, BlockHash] = {}
        self._index: dict[BlockHash, BlockId] = {}

    def usage(self) -> PoolUsage:
        free, cached = len(self._free), len(self._eviction)
        return PoolUsage(free=free, cached=cached, in_use=self.num_blocks - free - cached)

    def num_available(self) -> int:
        """Blocks that ``try_allocate`` could hand out now."""
        return len(self._free) + len(self._eviction)

    def state(self, block: BlockId) -> BlockState:
        return self._state[block]

    def ref_count(self, block: BlockId) -> int:
        return self._ref_count[block]

    def name_of(self, block: BlockId) -> BlockHash | None:
        """Name of a READY block; None for one that has no name."""
        return self._name.get(block)

    def try_allocate(self, count: int) -> list[BlockId] | None:
        """``count`` FILLING blocks with one reference each, evicting cached ones if need be.

        All or nothing: None, with nothing changed, if there are not that many.
        """
        if count > self.num_available():
            return None
        self._evict(self._eviction.victims(count - len(self._free)) if count > len(self._free) else ())
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._move(block, BlockEvent.ALLOCATE)
            self._ref_count[block] = 1
        return taken

    def lookup(self, name: BlockHash) -> BlockId | None:
        """The READY block with this name, or None."""
        return self._index.get(name)

    def acquire(self, block: BlockId) -> None:
        """Add a reference to a READY block, which also keeps it from being evicted."""
        assert self._state[block] is BlockState.READY
        if self._ref_count[block] == 0:
            self._eviction.remove(block)
        self._ref_count[block] += 1

    def publish(self, block: BlockId, name: BlockHash) -> None:
        """Name a full FILLING block, so that others may find it. No other block may have the name."""
        assert name not in self._index
        self._move(block, BlockEvent.PUBLISH)
        self._name[block] = name
        self._index[name] = block

    def release(self, blocks: Iterable[BlockId]) -> None:
        """Drop one reference from each block, in the given order (pass the last block first).

        Named blocks whose count reaches zero stay cached; unnamed ones become free.
        """
        for block in blocks:
            assert self._ref_count[block] > 0, f"block {block} was released twice"
            self._ref_count[block] -= 1
            if self._ref_count[block] > 0:
                continue
            if self._state[block] is BlockState.READY:
                self._eviction.add(block)
            else:
                self._move(block, BlockEvent.DISCARD)
                self._free.append(block)

    def drop(self, blocks: Iterable[BlockId]) -> None:
        """Forget cached blocks whose content is not to be trusted; those still referenced are kept."""
        self._free_cached(
            block
            for block in blocks
            if self._ref_count[block] == 0 and self._state[block] is BlockState.READY
        )

    def free_blocks(self) -> Sequence[BlockId]:
        """The free list, for recounts."""
        return tuple(self._free)

    def evictable_blocks(self) -> Sequence[BlockId]:
        """READY blocks that nobody refers to, first victim first; for recounts."""
        return tuple(self._eviction)

    def named_blocks(self) -> Iterator[tuple[BlockHash, BlockId]]:
        """The index from name to block, for recounts."""
        return iter(self._index.items())

    def _evict(self, blocks: Sequence[BlockId]) -> None:
        self._free_cached(blocks)
        self.evictions_total += len(blocks)

    def _free_cached(self, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            assert self._ref_count[block] == 0
            del self._index[self._name.pop(block)]
            self._eviction.remove(block)
            self._move(block, BlockEvent.EVICT)
            self._free.append(block)

    def _move(self, block: BlockId, event: BlockEvent) -> None:
        self._state[block] = next_state(self._state[block], event)
