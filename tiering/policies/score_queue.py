"""Blocks in the order of a score. Pure; what eviction orders are made of."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import NamedTuple

from tiering.types import BlockId


class Entry(NamedTuple):
    """Sorts by score, the deeper block of equal ones first, then by age."""

    score: float
    negated_depth: int
    age: int
    block: BlockId


class ScoreQueue:
    """A heap of blocks by score with lazy deletion. O(log n) per block."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._age: dict[BlockId, int] = {}
        self._num_added = 0

    def add(self, block: BlockId, score: float, depth: int = 0) -> None:
        assert block not in self._age and not math.isnan(score)
        self._num_added += 1
        self._age[block] = self._num_added
        heapq.heappush(self._heap, Entry(score, -depth, self._num_added, block))

    def remove(self, block: BlockId) -> None:
        del self._age[block]
        if len(self._heap) > 2 * len(self._age) + 64:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapq.heapify(self._heap)

    def lowest(self, count: int) -> list[Entry]:
        """The ``count`` entries of lowest score, which stay in the queue."""
        found: list[Entry] = []
        while self._heap and len(found) < count:
            entry = heapq.heappop(self._heap)
            if self._is_live(entry):
                found.append(entry)
        for entry in found:
            heapq.heappush(self._heap, entry)
        return found

    def first(self) -> Entry | None:
        """The entry of lowest score, None if there are none."""
        while self._heap and not self._is_live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def __len__(self) -> int:
        return len(self._age)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._age

    def __iter__(self) -> Iterator[BlockId]:
        return iter(self._age)

    def _is_live(self, entry: Entry) -> bool:
        return self._age.get(entry.block) == entry.age
