"""Block tables of sequences over all tiers: admission with prefix hits, growth, swap, restore, release.

Runs on: step thread, sole owner. Blocks: never; owns no tensor and copies nothing: it orders moves
(``Tiers.take_orders``) and is told how they ended (``complete``). Every call either succeeds whole or
changes nothing. A table covers a sequence's logical blocks from the first on, without holes but those
of a ``Restore``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tiering.cost_model import CostModel
from tiering.loads import Loads
from tiering.parking import Parking
from tiering.planner import Plan, RestorePlanner
from tiering.policies.restore import RestorePolicy, Swap
from tiering.restore import Restore
from tiering.tables import Admission, BlockTable, ParkedTable, Refusal, SequenceEvent
from tiering.tiers import Tiers
from tiering.types import BlockHash, BlockId, BlockLabel, PoolUsage, Tier, TransferKind, TransferResult

_OWN_PATIENCE_S = 60.0  # of one restore that gets no further while others do


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
        self._planner = RestorePlanner(tiers, block_size, restore or Swap(), self.costs)
        self._loads = Loads(tiers, block_size, self._planner)
        self._parking = Parking(tiers, self._planner)
        self._tables: dict[str, BlockTable] = {}

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

    def parked_tables(self) -> Mapping[str, ParkedTable]:
        """Of all sequences that are swapped out or on their way, for recounts and reports."""
        return self._parking.tables()

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
        written. What is below the device is loaded or not, as the restore policy chooses; without
        ``may_load`` it is neither looked at nor waited for. Refused, with nothing changed, unless
        ``keep_available`` blocks would remain available.
        """
        assert sequence_id not in self._tables
        assert 0 < num_tokens <= capacity_tokens
        parked = self._parking.tables().get(sequence_id) if may_load else None
        if parked is not None:
            sources = self._planner.match_parked(parked, names)
        else:
            limit = (num_tokens - 1) // self.block_size
            sources = self._planner.match(names, limit, below_device=may_load)
        if sources is None:
            return Refusal.PENDING
        num_found = len(sources) * self.block_size if parked is None else parked.num_tokens
        plan = self._planner.plan(sources, num_found)
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
            self._parking.give_up(sequence_id)
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
            self._touch_below(table.blocks)
            self.pool.release(reversed(table.blocks), expected_return_at)
        self._parking.give_up(sequence_id)

    def discard(self, sequence_id: str, names: Sequence[BlockHash]) -> None:
        """Give up a sequence whose KV is not to be trusted: nobody shall find it, on any tier.

        What others use too is kept.
        """
        self.release(sequence_id)
        for name in names:
            block = self.pool.lookup(name)
            if block is None or self.pool.ref_count(block) == 0:
                self.tiers.forget(name)

    # ---- swap out ------------------------------------------------------------------------------

    def try_begin_swap_out(self, sequence_id: str, num_tokens: int) -> bool:
        """Begin to copy a sequence's first ``num_tokens`` tokens to host, the partial last block included.

        The device blocks become available as their copies end, or now. False, with nothing changed, if it is
        not worth while to the restore policy or host has no room. All is on host once ``swap_out_done``.
        """
        table = self._tables[sequence_id]
        assert table.restore is None
        blocks = table.blocks[: self.blocks_for(num_tokens)]
        if not self._parking.try_begin(sequence_id, blocks, num_tokens):
            return False
        del self._tables[sequence_id]
        self.pool.release(reversed(table.blocks))
        return True

    def swap_out_done(self, sequence_id: str) -> bool:
        """Whether everything of a sequence that was to be copied out is on host."""
        return not self._parking.tables()[sequence_id].moves

    def waits_for_hung_copies(self, sequence_id: str) -> bool:
        """Whether copies that a sequence needs to get on, in either direction, have stopped moving."""
        table, parked = self._tables.get(sequence_id), self._parking.tables().get(sequence_id)
        if table is not None and table.restore is not None:
            late = self.pool.now - table.restore.progress_at > _OWN_PATIENCE_S and table.restore.moves
            return bool(late) or self.tiers.hang(table.restore.moves.values())
        return table is None and parked is not None and self.tiers.hang(parked.moves)

    def abandon_restore(self, sequence_id: str) -> bool:
        """Give a swapped sequence's device blocks back; it keeps its slots. False: it has no slots."""
        if sequence_id not in self._parking.tables():
            return False
        table = self._tables.pop(sequence_id)
        assert table.restore is not None
        self.tiers.cancel(table.restore.moves.values())
        self.pool.release(reversed(table.blocks))
        return True

    def num_leaving(self) -> int:
        """Device blocks that become available when copies under way end."""
        return self.tiers.num_leaving()

    def is_parked(self, sequence_id: str) -> bool:
        """Whether the sequence has slots on host."""
        return sequence_id in self._parking.tables()

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
        self._parking.give_up(sequence_id)

    def compute_limit(self, sequence_id: str, num_computed_tokens: int) -> int:
        """Position up to which a restoring sequence may be computed in this step."""
        return self.restore_of(sequence_id).compute_limit(num_computed_tokens)

    def call_off_loads(self, sequence_id: str, num_computed_tokens: int, max_tokens: int) -> None:
        """Call off the loads that an overlapped restore had better compute in the next step."""
        self._loads.call_off(self.restore_of(sequence_id), num_computed_tokens, max_tokens)

    def places(self, sequence_id: str, num_computed_tokens: int) -> str:
        """A letter a logical block: D device, H host; coming back: h, d from disk; . to be computed."""
        table = self._tables.get(sequence_id)
        if table is None:
            parked = self._parking.tables().get(sequence_id)
            return "" if parked is None else "H" * len(parked.slots)
        letters = ["."] * len(table.blocks)
        letters[: self.blocks_for(num_computed_tokens)] = "D" * self.blocks_for(num_computed_tokens)
        if table.restore is not None:
            for index in table.restore.origin:
                letters[index] = "D"
            for index, move in table.restore.moves.items():
                letters[index] = "d" if self._loads.origin(move) is Tier.DISK else "h"
        return "".join(letters)

    # ---- moves ---------------------------------------------------------------------------------

    def complete(self, results: Iterable[TransferResult]) -> list[tuple[str, SequenceEvent]]:
        """Take in how moves ended. Returns what that meant for sequences, in order."""
        events: list[tuple[str, SequenceEvent]] = []
        for result in results:
            ended = self.tiers.complete(result)
            if result.transfer_id in self._parking:
                events += self._parking.end(ended)
            if result.transfer_id in self._loads:
                events += self._loads.end(ended, self._tables)
            if ended.ok and ended.job.kind is TransferKind.SWAP_OUT and ended.job.label is not None:
                self.tiers.on_ready(Tier.HOST, ended.holder)
        return events

    # ---- inside ---------------------------------------------------------------------

    def _open_table(self, sequence_id: str, plan: Plan, num_fresh: int) -> None:
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
            self._loads.begin(sequence_id, table, plan)

    def _touch_below(self, blocks: Sequence[BlockId]) -> None:
        """Let copies on lower tiers rank as what they are copies of: used now, and the end goes first."""
        labels = [label for block in reversed(blocks) if (label := self.pool.label_of(block)) is not None]
        for tier, pool in self.tiers.pools():
            for label in labels if tier is not Tier.DEVICE else ():
                copy = pool.lookup(label.name)
                if copy is not None:
                    pool.touch(copy, labels[0].depth)

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
