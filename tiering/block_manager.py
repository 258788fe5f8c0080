"""Block tables of sequences over all tiers: admission with prefix hits, growth, swap, restore, release.

Runs on: step thread, sole owner. Blocks: never; owns no tensor and copies nothing: it orders moves
(``Tiers.take_orders``) and is told how they ended (``complete``). Every call either succeeds whole or
changes nothing. A table covers a sequence's logical blocks from the first on, without holes but those
of a ``Restore``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tiering.cost_model import CostModel
from tiering.policies.restore import RestoreMode, RestorePolicy, RestoreSituation, Swap, blocks_to_compute
from tiering.restore import Restore
from tiering.tiers import EndedMove, Tiers
from tiering.types import (
    BlockHash,
    BlockId,
    BlockLabel,
    PoolUsage,
    Tier,
    TransferId,
    TransferKind,
    TransferOutcome,
    TransferResult,
)


class Refusal(enum.Enum):
    """Why a sequence got no blocks. ``PENDING``: some are on their way for another; ask again soon."""

    NO_ROOM = "no room"
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence got its blocks; its first ``num_cached_tokens`` are on the device already.

    ``restoring``: more are on their way; ``overlaps``: and the front is computed meanwhile.
    ``num_forgone_tokens`` were found below the device and are to be computed instead.
    """

    num_cached_tokens: int
    restoring: bool = False
    overlaps: bool = False
    num_forgone_tokens: int = 0


class SequenceEvent(enum.Enum):
    """What the end of a move meant for a sequence."""

    SWAPPED_OUT = "swapped out"
    SWAP_OUT_FAILED = "swap-out failed"
    RESTORE_FAILED = "restore failed"


class BlockTable:
    """Logical to device blocks of one sequence. The first ``num_published`` are full and settled."""

    __slots__ = ("blocks", "num_published", "restore")

    def __init__(self, blocks: list[BlockId], num_published: int, restore: Restore | None = None) -> None:
        self.blocks = blocks
        self.num_published = num_published
        self.restore = restore


class ParkedTable:
    """Host slots of a preempted sequence, with ``num_tokens`` computed tokens in them."""

    __slots__ = ("moves", "num_tokens", "slots")

    def __init__(self, slots: list[BlockId], num_tokens: int) -> None:
        self.slots = slots
        self.num_tokens = num_tokens
        self.moves: set[TransferId] = set()


@dataclass(frozen=True, slots=True)
class Source:
    """Where one logical block of a sequence was found."""

    tier: Tier
    block: BlockId
    label: BlockLabel | None


_PENDING = Source(Tier.DEVICE, BlockId(-1), None)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a sequence starts from: blocks of which the first ``num_front`` are on the device.

    ``num_tokens`` are in them; ``num_forgone_tokens`` more were found, and will be computed.
    """

    sources: list[Source]
    num_front: int
    num_tokens: int
    num_forgone_tokens: int
    overlaps: bool
    predicted_s: float | None


@dataclass(frozen=True, slots=True)
class _Load:
    """One block on its way to ``table.blocks[index]``, from tier ``origin``."""

    sequence_id: str
    table: BlockTable
    restore: Restore
    index: int
    origin: Tier


class BlockManager:
    """Hands device blocks to sequences, finds shared prefixes by name, and moves sequences between tiers."""

    def __init__(
        self,
        tiers: Tiers,
        block_size: int,
        *,
        restore: RestorePolicy | None = None,
        costs: CostModel | None = None,
        prefix_caching: bool = True,
    ) -> None:
        self.block_size = block_size
        self.tiers = tiers
        self.pool = tiers.device
        self.costs = costs or CostModel(block_size, 1)
        self.prefix_caching = prefix_caching
        self._policy = restore or Swap()
        self._tables: dict[str, BlockTable] = {}
        self._parked: dict[str, ParkedTable] = {}
        self._loading: dict[TransferId, _Load] = {}
        self._leaving: dict[TransferId, list[tuple[str, ParkedTable]]] = {}

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    def usage(self) -> PoolUsage:
        """Of the device pool."""
        return self.pool.usage()

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def block_table(self, sequence_id: str) -> Sequence[BlockId]:
        """Live view of a sequence's table; do not keep it beyond the step."""
        return self._tables[sequence_id].blocks

    def tables(self) -> dict[str, BlockTable]:
        """All tables, for recounts and reports."""
        return self._tables

    def parked_tables(self) -> dict[str, ParkedTable]:
        """Of all sequences that are swapped out or on their way, for recounts and reports."""
        return self._parked

    # ---- admission and growth ------------------------------------------------------------------

    def try_admit(
        self,
        sequence_id: str,
        names: Sequence[BlockHash],
        *,
        num_tokens: int,
        capacity_tokens: int,
        keep_available: int,
        may_load: bool = True,
    ) -> Admission | Refusal:
        """Give a sequence blocks for ``capacity_tokens``, with what is known of its first ``num_tokens``.

        That is its own swapped blocks, or the longest named prefix over all tiers, capped at the last full
        block before its last token: there is always something to compute, and no shared block is ever
        written. What is below the device is loaded or not, as the restore policy chooses. Refused, with
        nothing changed, unless ``keep_available`` blocks would remain available.
        """
        assert sequence_id not in self._tables
        assert 0 < num_tokens <= capacity_tokens
        parked = self._parked.get(sequence_id)
        if parked is not None:
            sources = self._parked_sources(parked, names)
        else:
            sources = self._match(names, (num_tokens - 1) // self.block_size, below_device=may_load)
        if sources is None:
            return Refusal.PENDING
        plan = self._plan(sources, len(sources) * self.block_size if parked is None else parked.num_tokens)
        hits = [source.block for source in plan.sources if source.tier is Tier.DEVICE]
        fresh = self.blocks_for(capacity_tokens) - len(hits)
        revived = sum(self.pool.ref_count(block) == 0 for block in hits)
        if fresh + keep_available > self.pool.num_available() - revived:
            return Refusal.NO_ROOM
        self._open_table(sequence_id, plan, fresh)
        if parked is None:
            for source in reversed(plan.sources):
                self.tiers.on_hit(source.tier, source.block)
        if self._tables[sequence_id].restore is None:
            self._give_up_slots(sequence_id)
            return Admission(plan.num_tokens, num_forgone_tokens=plan.num_forgone_tokens)
        return Admission(
            plan.num_front * self.block_size,
            restoring=True,
            overlaps=plan.overlaps,
            num_forgone_tokens=plan.num_forgone_tokens,
        )

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
                table.blocks[index] = self._settle(table.blocks[index], BlockLabel(names[index], index))
        table.num_published = max(table.num_published, num_full)

    def release(self, sequence_id: str, expected_return_at: float | None = None) -> None:
        """Give up all that a sequence holds on any tier, the last block first. Named blocks stay cached.

        Nothing under a copy is freed before the copy has ended. Loads for it that have not begun are called
        off.
        """
        table = self._tables.pop(sequence_id, None)
        if table is not None:
            if table.restore is not None:
                self.tiers.cancel(table.restore.moves.values())
            self.pool.release(reversed(table.blocks), expected_return_at)
        self._give_up_slots(sequence_id)

    def discard(self, sequence_id: str, names: Sequence[BlockHash]) -> None:
        """Give up a sequence whose KV is not to be trusted: nobody shall find it, on any tier.

        What others use too is kept.
        """
        self.release(sequence_id)
        for name in names:
            block = self.pool.lookup(name)
            if block is None or self.pool.ref_count(block) == 0:
                for _, pool in self.tiers.pools():
                    pool.forget(name)

    # ---- swap out ------------------------------------------------------------------------------

    def try_begin_swap_out(self, sequence_id: str, num_tokens: int) -> bool:
        """Begin to copy a sequence's first ``num_tokens`` tokens to host, the partial last block included.

        Host slots are reserved all or nothing; blocks that host has already need no copy. The device blocks
        become available as their copies end, or now. False, with nothing changed, if it is not worth while
        to the restore policy or host has no room. The sequence is SWAPPED_OUT once ``swap_out_done``.
        """
        host, table = self.tiers.host, self._tables[sequence_id]
        assert table.restore is None
        if host is None or num_tokens == 0:
            return False
        blocks = table.blocks[: self.blocks_for(num_tokens)]
        labels = [self.pool.label_of(block) for block in blocks]
        present = [None if label is None else self._on_host(label) for label in labels]
        dirty = [index for index, slot in enumerate(present) if slot is None]
        if not self._policy.keeps(self._swap_situation(num_tokens, len(blocks), len(dirty))):
            return False
        shared = [slot for slot in present if slot is not None]
        for slot in shared:
            host.share(slot)
        fresh = host.try_allocate(len(dirty))
        if fresh is None:
            host.release(shared)
            return False
        slots = list(present)
        for index, slot in zip(dirty, fresh, strict=True):
            slots[index] = slot
        parked = ParkedTable([slot for slot in slots if slot is not None], num_tokens)
        self._parked[sequence_id] = parked
        for index in dirty:
            move = self.tiers.begin(TransferKind.SWAP_OUT, blocks[index], parked.slots[index], labels[index])
            self._await_slot(sequence_id, parked, move)
        for slot in shared:
            if host.is_being_filled(slot):
                self._await_slot(sequence_id, parked, self.tiers.arrival_at(Tier.HOST, slot))
        del self._tables[sequence_id]
        self.pool.release(reversed(table.blocks))
        return True

    def swap_out_done(self, sequence_id: str) -> bool:
        """Whether everything of a sequence that was to be copied out is on host."""
        return not self._parked[sequence_id].moves

    def num_leaving(self) -> int:
        """Device blocks that become available when copies under way end."""
        return self.tiers.num_leaving()

    def is_parked(self, sequence_id: str) -> bool:
        """Whether the sequence has slots on host."""
        return sequence_id in self._parked

    # ---- restore -------------------------------------------------------------------------------

    def restore_of(self, sequence_id: str) -> Restore:
        """How a restoring sequence stands."""
        restore = self._tables[sequence_id].restore
        assert restore is not None
        return restore

    def advance_restore(self, sequence_id: str, num_computed_tokens: int) -> int:
        """Tokens that are there from the first on, counting what has arrived next to what was computed."""
        return self.restore_of(sequence_id).front(num_computed_tokens)

    def end_restore(self, sequence_id: str) -> None:
        """Everything is there: the sequence is like any other again. Its host slots are given up."""
        table, restore = self._tables[sequence_id], self.restore_of(sequence_id)
        assert not restore.moves
        table.num_published = max(table.num_published, restore.num_tokens // self.block_size)
        table.restore = None
        self._give_up_slots(sequence_id)

    def compute_limit(self, sequence_id: str, num_computed_tokens: int) -> int:
        """Position up to which a restoring sequence may be computed in this step."""
        return self.restore_of(sequence_id).compute_limit(num_computed_tokens)

    def call_off_loads(self, sequence_id: str, num_computed_tokens: int, max_tokens: int) -> None:
        """Call off the loads that an overlapped restore had better compute in the next step.

        So many that computing and loading would end together, and at most ``max_tokens``.
        """
        restore = self.restore_of(sequence_id)
        claimable = restore.claimable(num_computed_tokens)
        if not claimable:
            return
        depth = num_computed_tokens // self.block_size
        coming = len(restore.moves)
        load_s = self._load_s(coming, self.tiers.num_of_kind(restore.moves.values(), TransferKind.PROMOTE))
        compute_s = self.costs.block_s(depth)
        if load_s is None or compute_s == 0.0:
            count = (len(claimable) + 1) // 2
        else:
            count = blocks_to_compute(coming, self.costs.step_s(), compute_s, load_s / coming)
        count = min(count, max_tokens // self.block_size)
        self.tiers.cancel(restore.moves[index] for index in claimable[:count])

    def places(self, sequence_id: str, num_computed_tokens: int) -> str:
        """A letter a logical block: D device, H host; coming back: h, d from disk; . to be computed."""
        table = self._tables.get(sequence_id)
        if table is None:
            parked = self._parked.get(sequence_id)
            return "" if parked is None else "H" * len(parked.slots)
        letters = ["."] * len(table.blocks)
        letters[: self.blocks_for(num_computed_tokens)] = "D" * self.blocks_for(num_computed_tokens)
        if table.restore is not None:
            for index in table.restore.origin:
                letters[index] = "D"
            for index, move in table.restore.moves.items():
                letters[index] = "d" if self._loading[move].origin is Tier.DISK else "h"
        return "".join(letters)

    # ---- moves ---------------------------------------------------------------------------------

    def complete(self, results: Iterable[TransferResult]) -> list[tuple[str, SequenceEvent]]:
        """Take in how moves ended. Returns what that meant for sequences, in order."""
        events: list[tuple[str, SequenceEvent]] = []
        for result in results:
            ended = self.tiers.complete(result)
            if result.transfer_id in self._leaving:
                events += self._end_swap_out(ended)
            if result.transfer_id in self._loading:
                events += self._end_load(ended)
            if ended.ok and ended.job.kind is TransferKind.SWAP_OUT and ended.job.label is not None:
                self.tiers.on_ready(Tier.HOST, ended.holder)
        return events

    # ---- inside: admission ---------------------------------------------------------------------

    def _match(self, names: Sequence[BlockHash], limit: int, *, below_device: bool) -> list[Source] | None:
        """The longest named prefix over all tiers; None if part of it is on its way for another."""
        found: list[Source] = []
        for depth, name in enumerate(names[:limit]):
            source = self._find(BlockLabel(name, depth), below_device=below_device)
            if source is None:
                break
            found.append(source)
            if source is _PENDING:
                return None
        return found

    def _find(self, label: BlockLabel, *, below_device: bool) -> Source | None:
        for tier, pool in self.tiers.pools():
            if tier is not Tier.DEVICE and not below_device:
                return None
            block = pool.lookup(label.name)
            if block is not None:
                return Source(tier, block, label)
            if pool.is_arriving(label.name) and tier is not Tier.DISK:
                return _PENDING
        return None

    def _parked_sources(self, parked: ParkedTable, names: Sequence[BlockHash]) -> list[Source] | None:
        """A swapped sequence's blocks: on the device still, or in its own slots."""
        host = self.tiers.host
        assert host is not None
        sources: list[Source] = []
        for index, slot in enumerate(parked.slots):
            label = host.label_of(slot)
            name = names[index] if index < len(names) else None
            block = None if name is None else self.pool.lookup(name)
            if block is not None:
                sources.append(Source(Tier.DEVICE, block, self.pool.label_of(block)))
            elif name is not None and self.pool.is_arriving(name):
                return None
            else:
                sources.append(Source(Tier.HOST, slot, label))
        return sources

    def _plan(self, sources: Sequence[Source], num_tokens: int) -> _Plan:
        """What to use of what was found. The host must have room for what comes from disk."""
        num_front = next((i for i, s in enumerate(sources) if s.tier is not Tier.DEVICE), len(sources))
        usable = list(sources[: self._stageable(sources)])
        situation = self._situation(usable, num_front, num_tokens)
        mode = self._policy.restore(situation) if situation.num_blocks else RestoreMode.LOAD
        if mode is RestoreMode.COMPUTE:
            usable = usable[:num_front]
        kept = num_tokens if len(usable) == len(sources) else len(usable) * self.block_size
        overlaps = mode is RestoreMode.BOTH
        return _Plan(usable, num_front, kept, num_tokens - kept, overlaps, situation.load_s)

    def _stageable(self, sources: Sequence[Source]) -> int:
        """How many leading sources can be used, given what host can free for those on disk."""
        host = self.tiers.host
        if host is None:
            return len(sources)
        room = host.num_available()
        for index, source in enumerate(sources):
            room -= source.tier is Tier.DISK
            room -= source.tier is Tier.HOST and host.ref_count(source.block) == 0
            if room < 0:
                return index
        return len(sources)

    def _situation(self, sources: Sequence[Source], num_front: int, num_tokens: int) -> RestoreSituation:
        missing = [source for source in sources[num_front:] if source.tier is not Tier.DEVICE]
        num_disk = sum(source.tier is Tier.DISK for source in missing)
        return RestoreSituation(
            num_blocks=len(missing),
            load_s=self._load_s(
                len(missing) + self.tiers.num_moves_of(TransferKind.SWAP_IN),
                num_disk + self.tiers.num_moves_of(TransferKind.PROMOTE) if num_disk else 0,
            ),
            compute_s=self.costs.prefill_s(num_front * self.block_size, num_tokens),
        )

    def _swap_situation(self, num_tokens: int, num_blocks: int, num_dirty: int) -> RestoreSituation:
        return RestoreSituation(
            num_blocks=num_blocks,
            load_s=self._load_s(num_blocks, 0),
            compute_s=self.costs.prefill_s(0, num_tokens),
            store_s=self.costs.copy_s(TransferKind.SWAP_OUT, num_dirty),
        )

    def _load_s(self, num_swap_ins: int, num_promotes: int) -> float | None:
        """Seconds that so many copies take. Of two stages the slower counts, and a block of the other."""
        swap_in = self.costs.copy_s(TransferKind.SWAP_IN, num_swap_ins)
        promote = self.costs.copy_s(TransferKind.PROMOTE, num_promotes)
        if swap_in is None or promote is None:
            return None
        if num_promotes == 0:
            return swap_in
        return max(swap_in, promote) + min(swap_in / num_swap_ins, promote / num_promotes)

    def _open_table(self, sequence_id: str, plan: _Plan, num_fresh: int) -> None:
        """Make the table, and begin to load what of it is below the device."""
        hits = {i: s.block for i, s in enumerate(plan.sources) if s.tier is Tier.DEVICE}
        for block in hits.values():
            self.pool.acquire(block)
        fresh = self.pool.try_allocate(num_fresh)
        assert fresh is not None
        unused = iter(fresh)
        blocks = [hits[i] if i in hits else next(unused) for i in range(len(hits) + num_fresh)]
        table = BlockTable(blocks, num_published=plan.num_front)
        self._tables[sequence_id] = table
        if len(hits) < len(plan.sources):
            restore = Restore(
                plan.num_front,
                plan.num_tokens,
                self.block_size,
                overlaps=plan.overlaps,
                begun_at=self.pool.now,
                predicted_s=plan.predicted_s,
            )
            restore.origin.update((i, Tier.DEVICE) for i in hits if i >= plan.num_front)
            table.restore = restore
            self._begin_loads(sequence_id, table, restore, plan)

    def _begin_loads(self, sequence_id: str, table: BlockTable, restore: Restore, plan: _Plan) -> None:
        """In order from the front, or from the end if the front is computed meanwhile. Host copies first."""
        indices = [i for i, s in enumerate(plan.sources) if s.tier is not Tier.DEVICE]
        if plan.overlaps:
            indices.reverse()
        for tier in (Tier.HOST, Tier.DISK):
            for index in indices:
                source = plan.sources[index]
                if source.tier is tier:
                    self._begin_load(_Load(sequence_id, table, restore, index, tier), source)

    def _begin_load(self, load: _Load, source: Source) -> None:
        if source.tier is Tier.HOST:
            target = load.table.blocks[load.index]
            move = self.tiers.begin(TransferKind.SWAP_IN, source.block, target, source.label)
        else:
            host = self.tiers.host
            assert host is not None
            slots = host.try_allocate(1)
            assert slots is not None
            move = self.tiers.begin(TransferKind.PROMOTE, source.block, slots[0], source.label)
            host.release(slots)
        load.restore.moves[load.index] = move
        self._loading[move] = load

    # ---- inside: the ends of moves -------------------------------------------------------------

    def _end_swap_out(self, ended: EndedMove) -> Iterator[tuple[str, SequenceEvent]]:
        move = ended.job.transfer_id
        for sequence_id, parked in self._leaving.pop(move):
            parked.moves.discard(move)
            if self._parked.get(sequence_id) is not parked:
                continue
            if not ended.ok:
                self._give_up_slots(sequence_id)
                yield sequence_id, SequenceEvent.SWAP_OUT_FAILED
            elif not parked.moves:
                yield sequence_id, SequenceEvent.SWAPPED_OUT

    def _end_load(self, ended: EndedMove) -> Iterator[tuple[str, SequenceEvent]]:
        load = self._loading.pop(ended.job.transfer_id)
        if self._tables.get(load.sequence_id) is not load.table or load.restore.failed:
            return
        del load.restore.moves[load.index]
        if ended.outcome is TransferOutcome.CANCELLED:
            return
        if not ended.ok:
            load.restore.failed = True
            yield load.sequence_id, SequenceEvent.RESTORE_FAILED
        elif ended.job.kind is TransferKind.PROMOTE:
            self._lift(load, Source(Tier.HOST, ended.holder, ended.job.label))
        else:
            if ended.holder != ended.job.target:
                self._take_over(load, ended.holder)
            load.restore.origin[load.index] = load.origin

    def _lift(self, load: _Load, staged: Source) -> None:
        """Second stage of a load from disk, unless the content was computed on the device meanwhile."""
        assert staged.label is not None
        named = self.pool.lookup(staged.label.name)
        if named is None:
            self._begin_load(load, staged)
        else:
            self._take_over(load, named)
            load.restore.origin[load.index] = load.origin

    def _take_over(self, load: _Load, named: BlockId) -> None:
        self.pool.acquire(named)
        self.pool.release((load.table.blocks[load.index],))
        load.table.blocks[load.index] = named

    def _on_host(self, label: BlockLabel) -> BlockId | None:
        """The host slot that has this content or is getting it."""
        host = self.tiers.host
        assert host is not None
        slot = host.lookup(label.name)
        return host.arriving_block(label.name) if slot is None else slot

    def _await_slot(self, sequence_id: str, parked: ParkedTable, move: TransferId) -> None:
        parked.moves.add(move)
        self._leaving.setdefault(move, []).append((sequence_id, parked))

    def _give_up_slots(self, sequence_id: str) -> None:
        parked = self._parked.pop(sequence_id, None)
        if parked is not None:
            assert self.tiers.host is not None
            self.tiers.host.release(reversed(parked.slots))

    def _settle(self, block: BlockId, label: BlockLabel) -> BlockId:
        """The one block with this name from now on, referenced by the sequence that filled ``block``."""
        named = self.pool.lookup(label.name)
        if named is None:
            self.pool.publish(block, label)
            self.tiers.on_ready(Tier.DEVICE, block)
            return block
        if named != block:
            self.pool.acquire(named)
            self.pool.release((block,))
        return named
