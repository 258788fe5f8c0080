"""Which unreferenced cached block goes first when a tier needs room.

A policy only ranks. It is told when a block becomes evictable, is taken back into use, or is gone;
freeing is the pool's business. Most policies are a score, and subclass ``ScoredEviction``. Of blocks with
one score the deeper ones leave first, then those that lost their last reference first. That is leaf first: a
table that refers to a block refers to all blocks before it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

from tiering.policies.score_queue import ScoreQueue
from tiering.types import BlockHash, BlockId


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """What a policy may know of a READY block that nobody refers to.

    Times are seconds on the engine's clock. ``depth`` counts the blocks before it in its history.
    ``recompute_s`` is what computing a block again would take where the history with which it was last used
    ends; so it is one number for a whole history, and does not set its beginning against its end.
    ``expected_return_at`` is when its session is expected to be back, None if nobody knows.
    """

    block: BlockId
    name: BlockHash
    depth: int
    num_hits: int
    last_used: float
    recompute_s: float
    expected_return_at: float | None


class EvictionPolicy(Protocol):
    """Order over the evictable blocks of one tier. Made without arguments.

    A tier has one, and where there is a tier below, another for the blocks to be copied down.
    """

    @property
    def name(self) -> str:
        """Label for metrics and settings."""
        ...

    def add(self, cached: CachedBlock) -> None:
        """The block has just lost its last reference."""
        ...

    def take(self, block: BlockId) -> None:
        """The block is referenced again."""
        ...

    def forget(self, block: BlockId) -> None:
        """The block was evicted: what it held is gone."""
        ...

    def victims(self, count: int, now: float) -> list[BlockId]:
        """The ``count`` blocks to evict first (fewer if fewer are evictable). All of them stay evictable."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[BlockId]:
        """The evictable blocks, in any order."""
        ...


class ScoredEviction(ABC):
    """Evicts the lowest score first. A subclass gives ``name`` and ``score``, and nothing else."""

    name: str

    def __init__(self) -> None:
        self._queue = ScoreQueue()

    @abstractmethod
    def score(self, cached: CachedBlock) -> float:
        """Worth of keeping the block, taken when it becomes evictable. Not NaN."""

    def add(self, cached: CachedBlock) -> None:
        self._queue.add(cached.block, self.score(cached), cached.depth)

    def take(self, block: BlockId) -> None:
        self._queue.remove(block)

    def forget(self, block: BlockId) -> None:
        self._queue.remove(block)

    def victims(self, count: int, now: float) -> list[BlockId]:
        return [entry.block for entry in self._queue.lowest(count)]

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[BlockId]:
        return iter(self._queue)


class LruEviction(ScoredEviction):
    """Least recently used first; of one history, which is used as a whole, the end first."""

    name = "lru"

    def score(self, cached: CachedBlock) -> float:
        return cached.last_used


class FifoEviction(ScoredEviction):
    """First in, first out: the order in which blocks first became evictable; hits change nothing."""

    name = "fifo"

    def __init__(self) -> None:
        super().__init__()
        self._ticket: dict[BlockId, int] = {}
        self._num_tickets = 0

    def score(self, cached: CachedBlock) -> float:
        if cached.block not in self._ticket:
            self._num_tickets += 1
            self._ticket[cached.block] = self._num_tickets
        return self._ticket[cached.block]

    def forget(self, block: BlockId) -> None:
        super().forget(block)
        del self._ticket[block]


class LfuEviction(ScoredEviction):
    """Least often hit first. A child has at most as many hits as its parent, so this too is leaf first."""

    name = "lfu"

    def score(self, cached: CachedBlock) -> float:
        return cached.num_hits


class CostAwareEviction(ScoredEviction):
    """Least expected saving first: probability of reuse x time to recompute, per byte.

    All blocks of a tier have equal bytes. The probability of reuse falls as exp(-age / tau), tau the
    half-life below over ln 2 (exponential reuse times, as measured for LLM serving in arXiv 2506.02634),
    and grows with the hits so far. In logarithms the age of all blocks falls alike, so the score of a
    block need not be taken anew as time passes.
    """

    name = "cost_aware"
    half_life_s = 600.0

    def score(self, cached: CachedBlock) -> float:
        saving = (1 + cached.num_hits) * max(cached.recompute_s, 1e-12)
        return math.log(saving) + cached.last_used * math.log(2) / self.half_life_s


class SessionAwareEviction:
    """Who is expected back last goes first (Belady's rule, on what sessions say or have done so far).

    A block without a hint is expected to stay away for as long again as it has been unused: among such
    blocks that is leaf-first LRU. One that is overdue by ``grace_s`` is not expected any more, and goes
    before all others, the longest overdue first.
    """

    name = "session_aware"
    grace_s = 300.0

    def __init__(self) -> None:
        self._unhinted = ScoreQueue()  # by last use
        self._farthest = ScoreQueue()  # by expected return, the last first
        self._overdue = ScoreQueue()  # by expected return, the first first

    def add(self, cached: CachedBlock) -> None:
        expected = cached.expected_return_at
        if expected is None:
            self._unhinted.add(cached.block, cached.last_used, cached.depth)
        else:
            self._farthest.add(cached.block, -expected, cached.depth)
            self._overdue.add(cached.block, expected, cached.depth)

    def take(self, block: BlockId) -> None:
        for queue in (self._unhinted, self._farthest, self._overdue):
            if block in queue:
                queue.remove(block)

    forget = take

    def victims(self, count: int, now: float) -> list[BlockId]:
        overdue = [e for e in self._overdue.lowest(count) if e.score + self.grace_s < now]
        gone = {entry.block for entry in overdue}
        waits = [entry._replace(score=entry.score - now) for entry in self._unhinted.lowest(count)]
        waits += [
            entry._replace(score=now + entry.score)
            for entry in self._farthest.lowest(count + len(gone))
            if entry.block not in gone
        ]
        return [entry.block for entry in islice(chain(overdue, sorted(waits)), count)]

    def __len__(self) -> int:
        return len(self._unhinted) + len(self._farthest)

    def __iter__(self) -> Iterator[BlockId]:
        return chain(self._unhinted, self._farthest)


@dataclass(slots=True)
class _S3Entry:
    """Place of a block in its queue, kept while the block is in use."""

    name: BlockHash
    ticket: int
    in_main: bool
    num_hits: int = 0


class S3FifoEviction:
    """S3-FIFO (Yang et al., SOSP'23): a small queue for newcomers, a main queue for what was used again.

    The small queue gets about a tenth of the blocks. A block that leaves it without a hit is evicted and
    its name remembered for a while: if it comes back it enters the main queue, where each hit (up to three)
    earns another round. O(log n) per block.
    """

    name = "s3fifo"
    small_share = 0.1

    def __init__(self) -> None:
        self._small = ScoreQueue()
        self._main = ScoreQueue()
        self._entries: dict[BlockId, _S3Entry] = {}
        self._ghosts: dict[BlockHash, None] = {}
        self._num_tickets = 0

    def add(self, cached: CachedBlock) -> None:
        entry = self._entries.get(cached.block)
        if entry is None:
            was_ghost = cached.name in self._ghosts
            self._ghosts.pop(cached.name, None)
            entry = _S3Entry(cached.name, self._next_ticket(), in_main=was_ghost)
            self._entries[cached.block] = entry
        self._queue(entry).add(cached.block, entry.ticket)

    def take(self, block: BlockId) -> None:
        entry = self._entries[block]
        self._queue(entry).remove(block)
        entry.num_hits = min(3, entry.num_hits + 1)

    def forget(self, block: BlockId) -> None:
        entry = self._entries.pop(block)
        self._queue(entry).remove(block)
        if not entry.in_main:
            self._ghosts[entry.name] = None
            while len(self._ghosts) > max(16, len(self._entries)):
                del self._ghosts[next(iter(self._ghosts))]

    def victims(self, count: int, now: float) -> list[BlockId]:
        """Moves blocks between and inside the queues on the way, as the algorithm has it; evicts none."""
        chosen: list[BlockId] = []
        while len(chosen) < count and len(self):
            block = self._next_candidate()
            entry = self._entries[block]
            self._queue(entry).remove(block)
            if entry.num_hits == 0:
                chosen.append(block)
                continue
            entry.num_hits = entry.num_hits - 1 if entry.in_main else 0
            entry.in_main, entry.ticket = True, self._next_ticket()
            self._main.add(block, entry.ticket)
        for block in chosen:
            self._queue(self._entries[block]).add(block, self._entries[block].ticket)
        return chosen

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def __iter__(self) -> Iterator[BlockId]:
        return chain(self._small, self._main)

    def _next_candidate(self) -> BlockId:
        from_small = not len(self._main) or len(self._small) > self.small_share * len(self)
        queue = self._small if from_small else self._main
        return queue.lowest(1)[0].block

    def _queue(self, entry: _S3Entry) -> ScoreQueue:
        return self._main if entry.in_main else self._small

    def _next_ticket(self) -> int:
        self._num_tickets += 1
        return self._num_tickets
