"""Block tables of sequences over all tiers: admission with prefix hits, growth, swap, restore, release.

Runs on: step thread, sole owner. Blocks: never; owns no tensor and copies nothing: it orders moves
(``Tiers.take_orders``) and is told how they ended (``complete``). Every call either succeeds whole or
changes nothing. A table covers a sequence's logical blocks from the first on, without holes but those
of a ``Restore``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tiering.branches import Branches
from tiering.cost_model import CostModel
from tiering.intake import Intake, plan_intake
from tiering.loads import Loads
from tiering.outlook import Outlook
from tiering.parking import Leaver, Parking
from tiering.planner import Plan, RestorePlanner
from tiering.policies.restore import RestorePolicy, Swap
from tiering.refusals import LastRefusal, Question
from tiering.restore import Restore
from tiering.tables import Admission, BlockTable, Member, ParkedTable, PendingBranch, Refusal, SequenceEvent
from tiering.tiers import Tiers
from tiering.types import (
    BlockCopy,
    BlockHash,
    BlockId,
    BlockLabel,
    PoolUsage,
    Tier,
    TransferKind,
    TransferResult,
)

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
        self._parking = Parking(tiers, self._planner, block_size)
        self._branches = Branches(self.pool, block_size)
        self._last_refusal = LastRefusal(tiers, self._planner, block_size)
        self._tables: dict[str, BlockTable] = {}
        self._copies: list[BlockCopy] = []

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
        """Live view of a sequence's table, as long as it has blocks."""
        return self._tables[sequence_id].blocks

    def tables(self) -> dict[str, BlockTable]:
        """All tables, for recounts and reports."""
        return self._tables

    def parked_tables(self) -> Mapping[str, ParkedTable]:
        """Of all sequences that are swapped out or on their way, for recounts and reports."""
        return self._parking.tables()

    @property
    def num_parked_groups(self) -> int:
        """Groups with slots on host of their own."""
        return self._parking.num_groups

    def leaving(self) -> Sequence[str]:
        """Sequences on their way to host. Costs the number of moves under way for them."""
        return self._parking.leaving()

    # ---- admission and growth ------------------------------------------------------------------

    def try_admit(
        self, members: Sequence[Member], *, keep_available: int, may_load: bool = True
    ) -> Admission | Refusal:
        """Give a group of sequences blocks, with what is known of their tokens.

        That is their own swapped blocks, or for the first the longest named prefix over all tiers, capped at
        the last full block before its last token: there is always something to compute, and no shared block
        is ever written. The others then wait as branches until those before them have computed what they
        share. What is below the device is loaded or not, as the restore policy chooses; without
        ``may_load`` it is neither looked at nor waited for. Refused, with nothing changed, unless
        ``keep_available`` blocks would remain available.
        """
        assert all(0 < member.num_tokens <= member.capacity_tokens for member in members)
        assert not any(member.sequence_id in self._tables for member in members)
        question = self._question(members, keep_available, may_load)
        if question is not None and self._last_refusal.holds(question):
            return Refusal.NO_ROOM
        intake = plan_intake(members, self._planner, self._parking, self.block_size, may_load=may_load)
        if isinstance(intake, Refusal):
            return intake
        planned = members[: len(intake.plans)]
        branches = self._branches.plan(members) if len(planned) < len(members) else []
        num_fresh = self._num_fresh(planned, intake.plans)
        num_needed = num_fresh + sum(branch.num_own for branch in branches) + keep_available
        num_missing = num_needed - (self.pool.num_available() - self._num_revived(intake.plans))
        if num_missing > 0:
            if question is not None:
                self._last_refusal.note(question, intake, num_missing)
            return Refusal.NO_ROOM
        self._open_tables(planned, intake.plans, num_fresh)
        self._branches.reserve(branches)
        if not intake.is_parked:
            for source in reversed(intake.plans[0].sources):
                self.tiers.on_hit(source.tier, source.block)
        return self._admission(members, intake)

    def _question(self, members: Sequence[Member], keep_available: int, may_load: bool) -> Question | None:
        """What is asked for a single sequence; several ask anew each time."""
        if len(members) > 1:
            return None
        return Question(
            members[0], keep_available, may_load, self._parking.tables().get(members[0].sequence_id)
        )

    def _num_fresh(self, members: Sequence[Member], plans: Sequence[Plan]) -> int:
        """Blocks to allocate for these plans: what several share is one."""
        loaded = {s.block for plan in plans for s in plan.sources if s.tier is Tier.HOST}
        from_disk = sum(s.tier is Tier.DISK for plan in plans for s in plan.sources)
        own = (
            self.blocks_for(member.capacity_tokens) - len(plan.sources)
            for member, plan in zip(members, plans, strict=True)
        )
        return len(loaded) + from_disk + sum(own)

    def _num_revived(self, plans: Sequence[Plan]) -> int:
        """Cached device blocks that are about to be used, and not available any more."""
        hits = {s.block for plan in plans for s in plan.sources if s.tier is Tier.DEVICE}
        return sum(self.pool.ref_count(block) == 0 for block in hits)

    def _admission(self, members: Sequence[Member], intake: Intake) -> Admission:
        """The answer to a group whose tables are open; slots that it will not load from are given up."""
        first = intake.plans[0]
        is_loading = [self._tables[m.sequence_id].restore is not None for m in members[: len(intake.plans)]]
        if not (intake.is_parked and any(is_loading)):
            for member in members:
                self._parking.give_up(member.sequence_id)
        cached = [
            plan.num_front * self.block_size if loads else plan.num_tokens
            for plan, loads in zip(intake.plans, is_loading, strict=True)
        ]
        return Admission(
            (*cached, *[0] * (len(members) - len(cached))),
            restoring=any(is_loading),
            overlaps=first.overlaps and any(is_loading),
            num_forgone_tokens=first.num_forgone_tokens,
        )

    def fork(self, parent_id: str, child_id: str, num_tokens: int) -> None:
        """Let a new sequence share another's first ``num_tokens`` tokens, a partly filled block included."""
        table = self._tables[parent_id]
        assert table.restore is None and child_id not in self._tables
        blocks = table.blocks[: self.blocks_for(num_tokens)]
        for block in blocks:
            self.pool.share(block)
        self._tables[child_id] = BlockTable(blocks, table.num_published, table.outlook)

    def branch_of(self, sequence_id: str) -> PendingBranch | None:
        """What a sequence waits for to be computed, if it has not been born yet."""
        return self._branches.waiting().get(sequence_id)

    def branches(self) -> Mapping[str, PendingBranch]:
        """All branches that wait for their parents, for recounts and reports."""
        return self._branches.waiting()

    def bear(self, sequence_id: str) -> int:
        """Let a branch share what its parent has computed; returns how many tokens that is."""
        branch = self._branches.waiting()[sequence_id]
        self._tables[sequence_id] = self._branches.bear(sequence_id, self._tables[branch.parent_id])
        return branch.num_shared_tokens

    def try_grow(self, wanted: Sequence[tuple[str, int]]) -> bool:
        """Let each of these sequences write the last of its so many tokens, all of them or none.

        A block that a sequence would write into and others refer to is copied first (``take_copies``); the
        last of those who share it keeps it. False, with nothing changed, if the pool is too full. After this
        a sequence may write all that its table has room for, and need not ask again, unless it is forked.
        """
        if self._have_room(wanted):
            return True  # as it is at nearly every step
        shared = Counter(self._shared_last(sequence_id, count) for sequence_id, count in wanted)
        num_copies = sum(
            min(count, self.pool.ref_count(block) - 1) for block, count in shared.items() if block is not None
        )
        missing = [
            max(0, self.blocks_for(count) - len(self._tables[sequence_id].blocks))
            for sequence_id, count in wanted
        ]
        allocated = self.pool.try_allocate(num_copies + sum(missing))
        if allocated is None:
            return False
        for (sequence_id, count), num_missing in zip(wanted, missing, strict=True):
            table = self._tables[sequence_id]
            source = self._shared_last(sequence_id, count)
            if source is not None:
                target = table.blocks[(count - 1) // self.block_size] = allocated.pop()
                self._copies.append(BlockCopy(source, target))
                self.pool.release((source,))
            table.blocks += [allocated.pop() for _ in range(num_missing)]
        return True

    def _have_room(self, wanted: Sequence[tuple[str, int]]) -> bool:
        """Whether these sequences have the blocks into which they would write, each alone."""
        for sequence_id, num_tokens in wanted:
            blocks, index = self._tables[sequence_id].blocks, (num_tokens - 1) // self.block_size
            if index >= len(blocks) or self.pool.ref_count(blocks[index]) > 1:
                return False
        return True

    def _shared_last(self, sequence_id: str, num_tokens: int) -> BlockId | None:
        """The block into which a sequence would write its last token, if others refer to it too."""
        table = self._tables[sequence_id]
        if (num_tokens - 1) // self.block_size >= len(table.blocks):
            return None
        block = table.blocks[(num_tokens - 1) // self.block_size]
        return block if self.pool.ref_count(block) > 1 else None

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """Copies within the device pool that must be made before the next step computes anything."""
        copies, self._copies = tuple(self._copies), []
        return copies

    def num_published(self, sequence_id: str) -> int:
        """How many of a sequence's blocks, from the first on, are named, as far as they are to be."""
        return self._tables[sequence_id].num_published

    def publish(self, sequence_id: str, names: Sequence[BlockHash], num_full: int) -> None:
        """Name the sequence's first ``num_full`` blocks, which the compute has now filled.

        Blocks named before are skipped. Where another block has the name already, the sequence takes
        that one and gives up its own: they hold the same content.
        """
        table = self._tables[sequence_id]
        if self.prefix_caching:
            for index in range(table.num_published, num_full):
                label = BlockLabel(names[index], index)
                table.blocks[index] = self._settle(table.blocks[index], label, table.outlook)
        table.num_published = max(table.num_published, num_full)

    def release(self, sequence_id: str, expected_return_at: float | None = None) -> None:
        """Give up all that a sequence holds on any tier, the last block first. Named blocks stay cached.

        ``expected_return_at``: when its session is expected back, in seconds. Nothing under a copy is freed
        before the copy has ended. Loads for it that have not begun are called off.
        """
        table = self._tables.pop(sequence_id, None)
        if table is not None:
            if table.restore is not None:
                self._loads.drop(table.restore)
            outlook = table.outlook.returning_at(expected_return_at)
            self._touch_below(table.blocks, outlook)
            self.pool.release(reversed(table.blocks), outlook)
        self._branches.release(sequence_id)
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

    def try_begin_swap_out(self, leaving: Sequence[tuple[str, int]]) -> bool:
        """Begin to copy a group's sequences, so many tokens of each, to host, partial last blocks included.

        The device blocks become available as their copies end, or now. False, with nothing changed, if it is
        not worth while to the restore policy or host has no room. All is on host once ``swap_out_done``.
        """
        assert all(self._tables[sequence_id].restore is None for sequence_id, _ in leaving)
        leavers = [
            Leaver(sequence_id, self._tables[sequence_id].blocks[: self.blocks_for(count)], count)
            for sequence_id, count in leaving
        ]
        if not self._parking.try_begin(leavers):
            return False
        for sequence_id, _ in leaving:
            table = self._tables.pop(sequence_id)
            self.pool.release(reversed(table.blocks), table.outlook)
        return True

    def swap_out_done(self, sequence_id: str) -> bool:
        """Whether everything of a sequence that was to be copied out is on host."""
        parked = self._parking.tables().get(sequence_id)
        return parked is not None and not parked.moves

    def waits_for_hung_copies(self, sequence_id: str) -> bool:
        """Whether copies that a sequence needs to get on, in either direction, have stopped moving."""
        table, parked = self._tables.get(sequence_id), self._parking.tables().get(sequence_id)
        if table is not None and table.restore is not None:
            late = self.pool.now - table.restore.progress_at > _OWN_PATIENCE_S and table.restore.moves
            return bool(late) or self.tiers.hang(table.restore.moves.values())
        return table is None and parked is not None and self.tiers.hang(parked.moves)

    def abandon_restore(self, sequence_ids: Sequence[str]) -> bool:
        """Give a swapped group's device blocks back; it keeps its slots. False: it has no slots."""
        if not all(sequence_id in self._parking.tables() for sequence_id in sequence_ids):
            return False
        for sequence_id in sequence_ids:
            table = self._tables.pop(sequence_id)
            if table.restore is not None:
                self._loads.drop(table.restore)
            self.pool.release(reversed(table.blocks), table.outlook)
        return True

    def num_leaving(self) -> int:
        """Device blocks that become available when copies under way end."""
        return self.tiers.num_leaving()

    def is_parked(self, sequence_id: str) -> bool:
        """Whether the sequence has slots on host."""
        return sequence_id in self._parking.tables()

    # ---- restore -------------------------------------------------------------------------------

    def restore_of(self, sequence_id: str) -> Restore | None:
        """How a sequence stands whose blocks are on their way; None if there are no such."""
        table = self._tables.get(sequence_id)
        return None if table is None else table.restore

    def end_restore(self, sequence_id: str) -> None:
        """Everything is there: the sequence is like any other again. Its host slots are given up."""
        table = self._tables[sequence_id]
        if table.restore is not None:
            assert not table.restore.moves
            table.num_published = max(table.num_published, table.restore.num_tokens // self.block_size)
            table.restore = None
        self._parking.give_up(sequence_id)

    def compute_limit(self, sequence_id: str, num_computed_tokens: int) -> int:
        """Position up to which a restoring sequence may be computed in this step."""
        restore = self.restore_of(sequence_id)
        return num_computed_tokens if restore is None else restore.compute_limit(num_computed_tokens)

    def call_off_loads(self, sequence_id: str, num_computed_tokens: int, max_tokens: int) -> None:
        """Call off the loads that an overlapped restore had better compute in the next step."""
        restore = self.restore_of(sequence_id)
        if restore is not None:
            self._loads.call_off(restore, num_computed_tokens, max_tokens)

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

    def _open_tables(self, members: Sequence[Member], plans: Sequence[Plan], num_fresh: int) -> None:
        """Make the tables, and begin to load what of them is below the device.

        What several have in common gets one device block, with a reference for each.
        """
        given = {
            (Tier.DEVICE, source.block): source.block
            for plan in plans
            for source in plan.sources
            if source.tier is Tier.DEVICE
        }
        for block in given.values():
            self.pool.acquire(block)
        allocated = self.pool.try_allocate(num_fresh)
        assert allocated is not None
        fresh, seen = iter(allocated), set()
        opened = []
        for member, plan in zip(members, plans, strict=True):
            keys = [(source.tier, source.block) for source in plan.sources]
            for key in keys:
                if key not in given:
                    given[key] = next(fresh)
                elif key in seen:
                    self.pool.share(given[key])
                seen.add(key)
            num_own = self.blocks_for(member.capacity_tokens) - len(keys)
            blocks = [*(given[key] for key in keys), *(next(fresh) for _ in range(num_own))]
            table = BlockTable(blocks, plan.num_front, member.outlook)
            self._tables[member.sequence_id] = table
            if plan.num_front < len(keys):
                opened.append((member.sequence_id, table, plan))
        self._loads.begin(opened)

    def _touch_below(self, blocks: Sequence[BlockId], outlook: Outlook) -> None:
        """Let copies on lower tiers rank as what they are copies of: used now, and the end goes first."""
        labels = [label for block in reversed(blocks) if (label := self.pool.label_of(block)) is not None]
        for tier, pool in self.tiers.pools():
            for label in labels if tier is not Tier.DEVICE else ():
                copy = pool.lookup(label.name)
                if copy is not None:
                    pool.touch(copy, labels[0].depth, outlook)

    def _settle(self, block: BlockId, label: BlockLabel, outlook: Outlook) -> BlockId:
        """The one block with this name from now on, referenced by the sequence that filled ``block``."""
        named = self.pool.lookup(label.name)
        if named is None:
            self.pool.publish(block, label, outlook)
            self.tiers.on_ready(Tier.DEVICE, block)
            return block
        if named != block:
            self.pool.acquire(named)
            self.pool.release((block,))
        return named
