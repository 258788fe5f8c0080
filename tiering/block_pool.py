"""A fixed pool of equal KV blocks: who refers to which, which are free, which are named, which move.

Runs on: step thread, sole owner. Blocks: never. Invariants: every block is in exactly one of free
list, eviction order, or use (``ref_count`` > 0, or the nameless source of a copy); nothing under a copy is
reused; a name leaves the index before its block is reused; only labelled blocks have names. Being copied
down is not a use: it leaves the eviction order as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tiering.outlook import NO_OUTLOOK, BlockUse, Outlook
from tiering.policies.eviction import CachedBlock, EvictionPolicy
from tiering.policies.ranking import Ranking
from tiering.residency import next_state
from tiering.types import BlockEvent, BlockHash, BlockId, BlockLabel, BlockState, PoolUsage, Tier


def _no_cost(depth: int) -> float:
    return 0.0


class BlockPool:
    """Reference-counted blocks of one tier, with an index from name to block.

    ``make_eviction`` makes the policy; a second one ranks the dirty blocks: cached ones that nobody has tried
    to copy to the tier below since their last use. ``below`` is that tier, None if there is none.
    ``needless_losses_total``: dirty blocks that were evicted although as many others were clean.
    ``num_gains``: times that a block became available or got a name, and maybe more; ``num_forgets``: that
    somebody asked to forget a name.
    ``recompute_s(depth)`` prices a block for the policy. ``now`` is the time of the present step; the owner
    sets it.
    """

    def __init__(
        self,
        num_blocks: int,
        make_eviction: Callable[[], EvictionPolicy],
        recompute_s: Callable[[int], float] = _no_cost,
        *,
        below: Tier | None = Tier.HOST,
    ) -> None:
        self.num_blocks = 0
        self.now = 0.0
        self.evictions_total = 0
        self.needless_losses_total = 0
        self.num_gains = 0
        self.num_forgets = 0
        self._ranking = Ranking(make_eviction)
        self._recompute_s = recompute_s
        self._below = below
        self._free: list[BlockId] = []
        self._state: list[BlockState] = []
        self._ref_count: list[int] = []
        self._label: dict[BlockId, BlockLabel] = {}
        self._use: dict[BlockId, BlockUse] = {}
        self._index: dict[BlockHash, BlockId] = {}
        self._arriving: dict[BlockHash, BlockId] = {}
        self._copies_out: dict[BlockId, int] = {}
        self._num_copying_in = 0
        self._num_held = 0
        self.extend(num_blocks)

    def extend(self, num_blocks: int) -> None:
        """Add ``num_blocks`` free blocks at the end."""
        first = self.num_blocks
        self.num_blocks += num_blocks
        self.num_gains += num_blocks
        self._free[:0] = [BlockId(i) for i in reversed(range(first, self.num_blocks))]
        self._state += [BlockState.FREE] * num_blocks
        self._ref_count += [0] * num_blocks

    @property
    def eviction_name(self) -> str:
        return self._ranking.policy_name

    def usage(self) -> PoolUsage:
        free, cached = len(self._free), len(self._ranking) - self._num_held
        copying = len(self._copies_out) + self._num_copying_in
        return PoolUsage(free, cached, self.num_blocks - free - cached - copying, copying)

    def num_available(self) -> int:
        """Blocks that ``try_allocate`` could hand out now."""
        return len(self._free) + len(self._ranking) - self._num_held

    def num_losslessly_available(self) -> int:
        """Those of them that are free, or copied to the tier below."""
        return max(0, self.num_available() - self._ranking.num_dirty)

    def num_kept(self) -> int:
        """Cached blocks that go only after all that are not kept."""
        return self._ranking.num_kept(self.now)

    def state(self, block: BlockId) -> BlockState:
        return self._state[block]

    def ref_count(self, block: BlockId) -> int:
        return self._ref_count[block]

    def label_of(self, block: BlockId) -> BlockLabel | None:
        """Label of a full block that others can find, or that is on its way here; else None."""
        return self._label.get(block)

    # ---- room and names ------------------------------------------------------------------------

    def try_allocate(self, count: int) -> list[BlockId] | None:
        """``count`` FILLING blocks with one reference each, evicting cached ones if need be.

        All or nothing: None, with nothing changed, if there are not that many.
        """
        missing = count - len(self._free)
        if missing > len(self._ranking) - self._num_held:
            return None
        if missing > 0:
            self._evict(missing)
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._move(block, BlockEvent.ALLOCATE)
            self._ref_count[block] = 1
        return taken

    def lookup(self, name: BlockHash) -> BlockId | None:
        """The block that holds this name's content now, or None."""
        return self._index.get(name)

    def is_arriving(self, name: BlockHash) -> bool:
        """Whether a copy is bringing this name's content here."""
        return name in self._arriving

    def arriving_block(self, name: BlockHash) -> BlockId | None:
        """The block that a copy is filling with this name's content, or None."""
        return self._arriving.get(name)

    def is_being_filled(self, block: BlockId) -> bool:
        """Whether a copy is writing this block."""
        return self._state[block] is BlockState.COPYING_IN

    def share(self, block: BlockId) -> None:
        """Add a reference to a block that somebody refers to already, or that has a name."""
        if self._ref_count[block] == 0:
            self.acquire(block)
        else:
            self._ref_count[block] += 1

    def acquire(self, block: BlockId) -> None:
        """Add a reference to a named block, which also keeps it from being evicted."""
        assert block in self._label and self._state[block] is not BlockState.COPYING_IN
        if self._ref_count[block] == 0:
            self._take(block)
        self._ref_count[block] += 1

    def record_hit(self, block: BlockId) -> int:
        """Count a hit by a new sequence; returns how many the block has had.

        Hits of one sequence are to be counted from its last block on, for the sake of leaf-first orders.
        """
        use = self._use[block]
        use.num_hits += 1
        use.renew(self.now)
        if self._ref_count[block] == 0:  # found on a lower tier, and only copied from there
            self._take(block)
            self._retire(block, 0)
        return use.num_hits

    def next_dirty(self, count: int) -> list[BlockId]:
        """Of the dirty blocks, the ``count`` to be evicted first."""
        return self._ranking.dirty_victims(count, self.now)

    def last_dirty(self) -> list[BlockId]:
        """All dirty blocks, those to be evicted last first."""
        return self._ranking.dirty_victims(self._ranking.num_dirty, self.now)[::-1]

    def touch(self, block: BlockId, deepest: int, outlook: Outlook = NO_OUTLOOK) -> None:
        """A copy of this block on another tier was used, in a history of that depth: rank it anew."""
        use = self._use[block]
        if self._ref_count[block] > 0:
            use.renew(self.now, outlook)
            return
        was_stored = use.was_stored
        self._take(block)
        use.renew(self.now, outlook)
        use.was_stored = was_stored
        self._retire(block, deepest)

    def use_of(self, block: BlockId) -> BlockUse | None:
        """How a named block was used; None for one without a name."""
        return self._use.get(block)

    def stays_off_disk(self, block: BlockId) -> bool:
        """Whether a named block is never to be copied to disk."""
        return self._use[block].outlook.stays_off_disk

    def is_dirty(self, block: BlockId) -> bool:
        """Whether a named block is to be copied to the tier below before it is evicted."""
        use = self._use[block]
        return not (use.was_stored or (self._below is Tier.DISK and use.outlook.stays_off_disk))

    def note_stored(self, block: BlockId) -> None:
        """A copy of this named block to the tier below is begun, or there is one already."""
        if self._ref_count[block] == 0:
            self._ranking.note_clean(block)
        self._use[block].was_stored = True

    def publish(self, block: BlockId, label: BlockLabel, outlook: Outlook = NO_OUTLOOK) -> None:
        """Name a full FILLING block, so that others may find it. No other block may have the name."""
        assert label.name not in self._index
        self._move(block, BlockEvent.PUBLISH)
        self._enter(block, label, outlook)

    def release(self, blocks: Iterable[BlockId], outlook: Outlook = NO_OUTLOOK) -> None:
        """Drop one reference from each block, in the given order (pass the last block first).

        Named blocks whose count reaches zero stay cached; unnamed ones become free. ``outlook``: what the
        sequence that lets go has said of its return, and of keeping what it used.
        """
        deepest = 0
        for block in blocks:
            assert self._ref_count[block] > 0, f"block {block} was released twice"
            self._ref_count[block] -= 1
            use = self._use.get(block)
            if use is not None:
                deepest = max(deepest, self._label[block].depth)
                use.renew(self.now, outlook)
            if self._ref_count[block] == 0:
                self._retire(block, deepest)

    def forget(self, name: BlockHash) -> None:
        """Let nobody find this name's content, which is not to be trusted, nor what a copy is bringing of it.

        Those who refer to the block keep it, nameless; it is freed with their last reference.
        """
        self.num_forgets += 1
        arriving = self._arriving.pop(name, None)
        if arriving is not None:
            del self._label[arriving]
        block = self._index.get(name)
        if block is None:
            return
        if self._ref_count[block] > 0:
            self._move(block, BlockEvent.FORGET)
            self._leave(block)
        elif block in self._copies_out:
            self._num_held -= 1
            self._withdraw(block)
            self._move(block, BlockEvent.FORGET)
        else:
            self._free_cached(block)

    def adopt(self, labels: Mapping[BlockId, BlockLabel]) -> None:
        """Take over what the free blocks of an empty pool hold already, least recently used first."""
        assert len(self._free) == self.num_blocks and not self._index
        self._free = [block for block in self._free if block not in labels]
        for block, label in labels.items():
            self._move(block, BlockEvent.ALLOCATE)
            self._move(block, BlockEvent.PUBLISH)
            self._enter(block, label, NO_OUTLOOK)
            self._retire(block, label.depth)

    # ---- copies --------------------------------------------------------------------------------

    def begin_copy_out(self, block: BlockId) -> None:
        """A copy will read the block: it is neither written nor reused until the copy has ended."""
        if block not in self._copies_out:
            self._move(block, BlockEvent.COPY_OUT)
            self._num_held += self._ref_count[block] == 0
        self._copies_out[block] = self._copies_out.get(block, 0) + 1

    def end_copy_out(self, block: BlockId) -> None:
        """The copy has ended, well or not."""
        self._copies_out[block] -= 1
        if self._copies_out[block] > 0:
            return
        del self._copies_out[block]
        self.num_gains += 1
        if block in self._label:
            self._move(block, BlockEvent.COPIED_NAMED)
            self._num_held -= self._ref_count[block] == 0
            return
        self._move(block, BlockEvent.COPIED_NAMELESS)
        if self._ref_count[block] == 0:
            self._discard(block)

    def begin_copy_in(self, block: BlockId, label: BlockLabel | None) -> None:
        """A copy will fill this FILLING block with what ``label`` names; it gets a reference."""
        self._move(block, BlockEvent.COPY_IN)
        self._ref_count[block] += 1
        self._num_copying_in += 1
        if label is not None:
            assert label.name not in self._arriving
            self._arriving[label.name] = block
            self._label[block] = label

    def complete_copy_in(self, block: BlockId, use: BlockUse | None = None) -> BlockId:
        """The copy has filled the block; its reference goes. Returns the block that has the name now.

        That is another one if the content was computed here meanwhile: then ``block`` stays nameless.
        ``use`` is that of what was copied: that a copy of it arrives is none.
        """
        label = self._end_copy_in(block)
        named = None if label is None else self._index.get(label.name)
        if label is None or named is not None:
            self._move(block, BlockEvent.ARRIVE_NAMELESS)
        else:
            self._move(block, BlockEvent.ARRIVE_NAMED)
            self._enter(block, label, NO_OUTLOOK if use is None else use.outlook)
            self._use[block].last_used = self.now if use is None else use.last_used
        self._drop_reference(block)
        return block if named is None else named

    def abandon_copy_in(self, block: BlockId) -> None:
        """The copy failed or was never begun: what the block holds is nothing. Its reference goes."""
        self._end_copy_in(block)
        self._move(block, BlockEvent.ABANDON)
        self._drop_reference(block)

    # ---- recounts ------------------------------------------------------------------------------

    def free_blocks(self) -> Sequence[BlockId]:
        """The free list."""
        return tuple(self._free)

    def evictable_blocks(self) -> Iterator[BlockId]:
        """Named blocks that nobody refers to, in any order."""
        return iter(self._ranking)

    def named_blocks(self) -> Iterator[tuple[BlockHash, BlockId]]:
        """The index from name to block."""
        return iter(self._index.items())

    def arriving_blocks(self) -> Iterator[tuple[BlockHash, BlockId]]:
        """Names on their way here, and the blocks they will be in."""
        return iter(self._arriving.items())

    @property
    def ranking(self) -> Ranking:
        """The order of the evictable blocks."""
        return self._ranking

    def copies_out(self, block: BlockId) -> int:
        """How many copies read the block."""
        return self._copies_out.get(block, 0)

    # ---- inside --------------------------------------------------------------------------------

    def _drop_reference(self, block: BlockId) -> None:
        """A move's reference goes."""
        self._ref_count[block] -= 1
        if self._ref_count[block] == 0:
            self._retire(block, 0)

    def _retire(self, block: BlockId, deepest: int) -> None:
        """The last reference is gone, with one to a block at depth ``deepest`` of the same history."""
        self.num_gains += 1
        label = self._label.get(block)
        if label is None:
            if block not in self._copies_out:
                self._discard(block)
            return
        use = self._use[block]
        cached = CachedBlock(
            block=block,
            name=label.name,
            depth=label.depth,
            num_hits=use.num_hits,
            last_used=use.last_used,
            recompute_s=self._recompute_s(max(deepest, label.depth)),
            expected_return_at=use.outlook.expected_return_at,
        )
        self._num_held += block in self._copies_out
        kept_until = use.kept_until
        keep = None if kept_until is None or kept_until <= self.now else use.outlook.keep
        self._ranking.add(cached, keep, self.num_blocks, is_dirty=self.is_dirty(block))

    def _take(self, block: BlockId) -> None:
        """A cached block is referenced again."""
        is_held = block in self._copies_out
        self._num_held -= is_held
        self.num_gains += is_held  # who needs it was refused as if taking it cost one that is available
        self._ranking.take(block)
        self._use[block].was_stored = self._below is None

    def _withdraw(self, block: BlockId) -> None:
        """A cached block loses its name and its place in the eviction order."""
        self._ranking.forget(block)
        self._leave(block)

    def _evict(self, count: int) -> None:
        """Evict ``count`` blocks that no copy reads. There are so many."""
        ranked = self._ranking.victims(count + self._num_held, self.now)
        victims = [block for block in ranked if block not in self._copies_out][:count]
        assert len(victims) == count, f"{self._ranking.policy_name} names too few victims"
        num_clean = max(0, len(self._ranking) - self._num_held - self._ranking.num_dirty)
        num_lost = len(self._ranking.dirty() & set(victims))
        self.needless_losses_total += max(0, num_lost - max(0, count - num_clean))
        for block in victims:
            self._free_cached(block)
        self.evictions_total += count

    def _free_cached(self, block: BlockId) -> None:
        assert self._ref_count[block] == 0
        self._withdraw(block)
        self._move(block, BlockEvent.EVICT)
        self._free.append(block)

    def _discard(self, block: BlockId) -> None:
        self._move(block, BlockEvent.DISCARD)
        self._free.append(block)

    def _enter(self, block: BlockId, label: BlockLabel, outlook: Outlook) -> None:
        self.num_gains += 1
        self._label[block] = label
        self._index[label.name] = block
        self._use[block] = BlockUse(self.now, outlook, was_stored=self._below is None)

    def _leave(self, block: BlockId) -> None:
        del self._index[self._label.pop(block).name]
        del self._use[block]

    def _end_copy_in(self, block: BlockId) -> BlockLabel | None:
        self._num_copying_in -= 1
        label = self._label.pop(block, None)
        if label is not None:
            del self._arriving[label.name]
        return label

    def _move(self, block: BlockId, event: BlockEvent) -> None:
        self._state[block] = next_state(self._state[block], event)
