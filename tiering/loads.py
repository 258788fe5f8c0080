"""Loads under way: blocks of lower tiers on their way into the tables of sequences.

Runs on: step thread, sole owner. Blocks: never. A block from disk comes in two moves, by way of a host slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tiering.planner import Plan, RestorePlanner, Source
from tiering.policies.restore import blocks_to_compute
from tiering.restore import Restore
from tiering.tables import BlockTable, SequenceEvent
from tiering.tiers import EndedMove, Tiers
from tiering.types import BlockId, Tier, TransferId, TransferKind, TransferOutcome


@dataclass(frozen=True, slots=True)
class _Load:
    """One block on its way to ``table.blocks[index]``, from tier ``origin``."""

    sequence_id: str
    table: BlockTable
    restore: Restore
    index: int
    origin: Tier


class Loads:
    """Begins loads, and takes in how they ended."""

    def __init__(self, tiers: Tiers, block_size: int, planner: RestorePlanner) -> None:
        self._tiers = tiers
        self._device = tiers.device
        self._block_size = block_size
        self._planner = planner
        self._loading: dict[TransferId, list[_Load]] = {}

    def __contains__(self, move: TransferId) -> bool:
        return move in self._loading

    def origin(self, move: TransferId) -> Tier:
        """The tier from which the block that this move brings has come."""
        return self._loading[move][0].origin

    def begin(self, opened: Sequence[tuple[str, BlockTable, Plan]]) -> None:
        """Begin to load what of the plans of a group's sequences is below the device.

        From the front on, or from the end if the front is computed meanwhile. Host copies first: they are
        pinned before host makes room for those from disk. Where tables share a device block, it is loaded
        once.
        """
        moves: dict[BlockId, TransferId] = {}
        for tier in (Tier.HOST, Tier.DISK):
            for sequence_id, table, plan in opened:
                restore = table.restore or self._open(table, plan)
                indices = [i for i, source in enumerate(plan.sources) if source.tier is tier]
                for index in reversed(indices) if plan.overlaps else indices:
                    load = _Load(sequence_id, table, restore, index, tier)
                    block = table.blocks[index]
                    if block in moves:
                        self._await(load, moves[block])
                    else:
                        moves[block] = self._begin_load(load, plan.sources[index])

    def _open(self, table: BlockTable, plan: Plan) -> Restore:
        restore = Restore(
            plan.num_front,
            plan.num_tokens,
            self._block_size,
            overlaps=plan.overlaps,
            begun_at=self._device.now,
            predicted_s=plan.predicted_s,
        )
        table.restore = restore
        restore.origin.update(
            (i, Tier.DEVICE)
            for i, source in enumerate(plan.sources)
            if source.tier is Tier.DEVICE and i >= plan.num_front
        )
        return restore

    def _begin_load(self, load: _Load, source: Source) -> TransferId:
        if source.tier is Tier.HOST:
            target = load.table.blocks[load.index]
            move = self._tiers.begin(TransferKind.SWAP_IN, source.block, target, source.label)
        else:
            host = self._tiers.host
            assert host is not None
            slots = host.try_allocate(1)
            assert slots is not None
            move = self._tiers.begin(TransferKind.PROMOTE, source.block, slots[0], source.label)
            host.release(slots)
        self._await(load, move)
        return move

    def _await(self, load: _Load, move: TransferId) -> None:
        load.restore.moves[load.index] = move
        self._loading.setdefault(move, []).append(load)

    def drop(self, restore: Restore) -> None:
        """A table is given up: call off the loads that nobody else waits for."""
        restore.failed = True
        self._tiers.cancel(
            move
            for move in restore.moves.values()
            if move in self and all(load.restore.failed for load in self._loading[move])
        )

    def call_off(self, restore: Restore, num_computed_tokens: int, max_tokens: int) -> None:
        """Call off the loads that an overlapped restore had better compute in the next step.

        So many that computing and loading would end together, and at most ``max_tokens``.
        """
        claimable = restore.claimable(num_computed_tokens)
        if not claimable:
            return
        depth = num_computed_tokens // self._block_size
        coming = len(restore.moves)
        load_s = self._planner.load_s(
            coming, self._tiers.num_of_kind(restore.moves.values(), TransferKind.PROMOTE)
        )
        compute_s = self._planner.costs.block_s(depth)
        if load_s is None or compute_s == 0.0:
            count = (len(claimable) + 1) // 2
        else:
            count = blocks_to_compute(coming, self._planner.costs.step_s(), compute_s, load_s / coming)
        count = min(count, max_tokens // self._block_size)
        self._tiers.cancel(restore.moves[index] for index in claimable[:count])

    def end(self, ended: EndedMove, tables: Mapping[str, BlockTable]) -> Iterator[tuple[str, SequenceEvent]]:
        """Take in how a load ended; ``tables`` are those of the sequences that live."""
        waiting = self._loading.pop(ended.job.transfer_id)
        loads = [
            load for load in waiting if tables.get(load.sequence_id) is load.table and not load.restore.failed
        ]
        if ended.ok and ended.job.kind is TransferKind.SWAP_IN:
            for load in waiting:  # for those that gave up too: what came is on the device now
                load.restore.origin[load.index] = load.origin
        for load in loads:
            del load.restore.moves[load.index]
            load.restore.progress_at = self._device.now
        if not loads or ended.outcome is TransferOutcome.CANCELLED:
            return
        if not ended.ok:
            yield from self._fail(loads)
        elif ended.job.kind is TransferKind.PROMOTE:
            yield from self._lift(loads, ended.holder)
        elif ended.holder != ended.job.target:
            for load in loads:
                self._take_over(load, ended.holder)

    def _fail(self, loads: Sequence[_Load]) -> Iterator[tuple[str, SequenceEvent]]:
        for load in loads:
            load.restore.failed = True
            yield load.sequence_id, SequenceEvent.RESTORE_FAILED

    def _lift(self, loads: Sequence[_Load], slot: BlockId) -> Iterator[tuple[str, SequenceEvent]]:
        """Second stage of a load from disk, unless the content was computed on the device meanwhile."""
        host = self._tiers.host
        assert host is not None
        label = host.label_of(slot)
        if label is None:  # it was forgotten on its way
            yield from self._fail(loads)
            return
        named = self._device.lookup(label.name)
        if named is None:
            move = self._begin_load(loads[0], Source(Tier.HOST, slot, label))
            for load in loads[1:]:
                self._await(load, move)
            return
        for load in loads:
            self._take_over(load, named)
            load.restore.origin[load.index] = load.origin

    def _take_over(self, load: _Load, named: BlockId) -> None:
        self._device.acquire(named)
        self._device.release((load.table.blocks[load.index],))
        load.table.blocks[load.index] = named
