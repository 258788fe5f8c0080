"""Which unreferenced cached block goes first when a tier needs room.

A policy only ranks. It is told when a block becomes evictable and when it is taken back into use;
freeing is the pool's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from tiering.types import BlockId


class EvictionPolicy(Protocol):
    """Order over the evictable blocks of one tier."""

    @property
    def name(self) -> str:
        """Label for metrics and settings."""
        ...

    def add(self, block: BlockId) -> None:
        """``block`` is READY and has just lost its last reference."""
        ...

    def remove(self, block: BlockId) -> None:
        """``block`` is referenced again, or was evicted."""
        ...

    def victims(self, count: int) -> list[BlockId]:
        """The ``count`` blocks to evict first (fewer if fewer are evictable). Changes nothing."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[BlockId]: ...


class LruEviction:
    """Least recently used, leaf first.

    A table that refers to a block refers to all named blocks before it, and tables are released from
    their end, so the order in which blocks lose their last reference is already leaf first: a child
    never outlives its parent in the queue. All operations are O(1) per block.
    """

    name = "lru"

    def __init__(self) -> None:
        self._queue: dict[BlockId, None] = {}

    def add(self, block: BlockId) -> None:
        assert block not in self._queue
        self._queue[block] = None

    def remove(self, block: BlockId) -> None:
        del self._queue[block]

    def victims(self, count: int) -> list[BlockId]:
        return list(islice(self._queue, count))

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[BlockId]:
        return iter(self._queue)
