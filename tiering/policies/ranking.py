"""The order in which a tier gives up blocks, whatever its policy: what is kept goes last.

Runs on: step thread, sole owner; pure. A policy does not see a block while it is kept; it gets the block
when its time is over, when its owner keeps more than its quota, or when somebody uses it. Kept blocks go in
the order in which their time ends. A second policy of the same kind ranks the dirty blocks alike: those that
are lost if they are evicted. O(log n) for each block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain

from tiering.outlook import Keep
from tiering.policies.eviction import CachedBlock, EvictionPolicy
from tiering.policies.score_queue import ScoreQueue
from tiering.types import BlockId


@dataclass(frozen=True, slots=True)
class KeptBlock:
    """A cached block that is kept, and by whom."""

    cached: CachedBlock
    keep: Keep


class Ranking:
    """Evictable blocks of one tier. ``make_eviction`` makes its policies."""

    def __init__(self, make_eviction: Callable[[], EvictionPolicy]) -> None:
        self._policy = make_eviction()
        self._dirty_policy = make_eviction()
        self._dirty: set[BlockId] = set()
        self._kept: dict[BlockId, KeptBlock] = {}
        self._ending = ScoreQueue()  # what is kept, by the end of its time
        self._ending_dirty = ScoreQueue()
        self._owned: dict[str, ScoreQueue] = {}  # what each owner keeps, by last use

    @property
    def policy_name(self) -> str:
        return self._policy.name

    def add(self, cached: CachedBlock, keep: Keep | None, num_blocks: int, *, is_dirty: bool) -> None:
        """The block has lost its last reference, in a tier of ``num_blocks``."""
        if is_dirty:
            self._dirty.add(cached.block)
        if keep is None:
            self._show(cached)
            return
        self._keep(KeptBlock(cached, keep))
        owned = self._owned[keep.owner]
        while len(owned) > int(keep.quota * num_blocks):
            oldest = owned.first()
            assert oldest is not None
            self._end_keep(oldest.block)

    def take(self, block: BlockId) -> None:
        """The block is referenced again."""
        self._end_keep(block)
        self._policy.take(block)
        if block in self._dirty:
            self._dirty.remove(block)
            self._dirty_policy.take(block)

    def forget(self, block: BlockId) -> None:
        """The block is evicted, or what it holds is not to be found."""
        self._end_keep(block)
        self.note_clean(block)
        self._policy.forget(block)

    def note_clean(self, block: BlockId) -> None:
        """There is nothing to copy down any more."""
        if block not in self._dirty:
            return
        self._dirty.remove(block)
        if block in self._kept:
            self._ending_dirty.remove(block)
            self._dirty_policy.add(self._kept[block].cached)
        self._dirty_policy.forget(block)

    def victims(self, count: int, now: float) -> list[BlockId]:
        """The ``count`` blocks to evict first (fewer if fewer are evictable). All of them stay evictable."""
        self._end_keeps(now)
        return _filled_up(self._policy.victims(count, now), count, self._ending)

    def dirty_victims(self, count: int, now: float) -> list[BlockId]:
        """The same of the dirty blocks."""
        self._end_keeps(now)
        return _filled_up(self._dirty_policy.victims(count, now), count, self._ending_dirty)

    @property
    def num_dirty(self) -> int:
        return len(self._dirty)

    def num_kept(self, now: float) -> int:
        self._end_keeps(now)
        return len(self._kept)

    def __len__(self) -> int:
        return len(self._policy) + len(self._kept)

    def __iter__(self) -> Iterator[BlockId]:
        """The evictable blocks, in any order."""
        return chain(self._policy, self._kept)

    # ---- recounts ------------------------------------------------------------------------------

    def kept(self) -> Mapping[BlockId, KeptBlock]:
        """What is kept, or was when somebody last asked for victims."""
        return self._kept

    def dirty(self) -> Set[BlockId]:
        return self._dirty

    def adds_up(self) -> bool:
        """Whether the queues hold exactly what is kept, and the policies the rest."""
        owned = {block: owner for owner, queue in self._owned.items() for block in queue}
        return (
            owned == {block: kept.keep.owner for block, kept in self._kept.items()}
            and set(self._ending) == self._kept.keys()
            and set(self._ending_dirty) == self._kept.keys() & self._dirty
            and set(self._dirty_policy) == self._dirty - self._kept.keys()
            and self._kept.keys().isdisjoint(self._policy)
            and all(self._owned.values())
        )

    # ---- inside --------------------------------------------------------------------------------

    def _show(self, cached: CachedBlock) -> None:
        """Let the policies rank the block."""
        self._policy.add(cached)
        if cached.block in self._dirty:
            self._dirty_policy.add(cached)

    def _keep(self, kept: KeptBlock) -> None:
        cached, keep = kept.cached, kept.keep
        self._kept[cached.block] = kept
        ends_at = cached.last_used + keep.for_s
        self._ending.add(cached.block, ends_at, cached.depth)
        if cached.block in self._dirty:
            self._ending_dirty.add(cached.block, ends_at, cached.depth)
        owned = self._owned.setdefault(keep.owner, ScoreQueue())
        owned.add(cached.block, cached.last_used, cached.depth)

    def _end_keep(self, block: BlockId) -> None:
        """The block is like any other from now on."""
        kept = self._kept.pop(block, None)
        if kept is None:
            return
        self._ending.remove(block)
        if block in self._dirty:
            self._ending_dirty.remove(block)
        owned = self._owned[kept.keep.owner]
        owned.remove(block)
        if not owned:
            del self._owned[kept.keep.owner]
        self._show(kept.cached)

    def _end_keeps(self, now: float) -> None:
        """Keep no longer what has had its time."""
        while (first := self._ending.first()) is not None and first.score <= now:
            self._end_keep(first.block)


def _filled_up(chosen: list[BlockId], count: int, kept: ScoreQueue) -> list[BlockId]:
    if len(chosen) < count and len(kept):
        chosen += [entry.block for entry in kept.lowest(count - len(chosen))]
    return chosen
