"""Who has device blocks: admission, growth, preemption, swap and restore of sequence groups.

Runs on: step thread, sole owner. Blocks: never; no torch, no clock. A group's sequences get blocks together
and lose them together.

Progress: a group is preempted only for one before it in line, for the share of another tenant, or because its
client does not read, and is admitted only with room for all its known tokens. After ``MAX_PREEMPTIONS`` for
others it comes back with blocks for its whole length, and stands before all that did not, in the order of
arrival whatever the shares are. It loses its blocks then only if its client does not read; or to a group of
several sequences before it in line, whose forks may yet need blocks that nobody reserved.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

from engine.accounting import SchedulerTotals, count_admission, count_restore
from engine.queues import RequestQueues
from engine.request import RequestEvent, RequestStatus, SequenceGroup
from engine.sequence import Sequence
from tiering.block_manager import BlockManager
from tiering.tables import Admission, Member, Refusal, SequenceEvent
from tiering.types import BlockHash, TransferResult


@dataclass(frozen=True, slots=True)
class Room:
    """Moves groups between the queues as they get and lose blocks.

    ``watermark``: blocks kept for those that run.
    """

    blocks: BlockManager
    queues: RequestQueues
    totals: SchedulerTotals
    watermark: int

    # ---- growth --------------------------------------------------------------------------------

    def make_room(self, group: SequenceGroup) -> bool:
        """Let each sequence of a running group write its last token, preempting those behind it.

        False: it sits out the step, as blocks are on their way out, or it gave way itself.
        """
        return self._make_room(group, lambda: self.queues.victim_for(group))

    def make_free_room(self, group: SequenceGroup) -> bool:
        """The same for a group that was admitted in this step: at nobody's cost but slow readers'."""
        return self._make_room(group, self.queues.last_paused)

    def _make_room(self, group: SequenceGroup, next_victim: abc.Callable[[], SequenceGroup | None]) -> bool:
        wanted = [(sequence.sequence_id, sequence.num_tokens) for sequence in group.sequences]
        while not self.blocks.try_grow(wanted):
            victim = None if self.blocks.num_leaving() else next_victim()
            if victim is None:
                return False
            self.preempt(victim)
            if victim is group:
                return False
        return True

    def settle(self, group: SequenceGroup) -> None:
        """If a running group only decodes, keep what its chunks are made of."""
        if not group.paused and group.only_decodes:
            tables = [self.blocks.block_table(sequence.sequence_id) for sequence in group.sequences]
            self.queues.settle(group, tables)

    def try_make_room_for_all(self, beside: abc.Iterable[SequenceGroup]) -> bool:
        """Let each sequence that decodes write its last token, those ``beside`` the settled too.

        False, with nothing changed, if that takes more blocks than there are.
        """
        asking = self.queues.decoding.without_room()
        sequences = [each.sequence for each in asking] + [s for group in beside for s in group.sequences]
        if not self.blocks.try_grow([(s.sequence_id, s.num_tokens) for s in sequences]):
            return False
        for each in asking:
            each.num_writable_tokens = len(each.block_table) * self.blocks.block_size
        return True

    def bear_branches(self, group: SequenceGroup) -> None:
        """Let those begin whose parents have computed what they share."""
        if not self.blocks.branches():
            return
        computed = {sequence.sequence_id: sequence.num_computed_tokens for sequence in group.sequences}
        for sequence in group.sequences:
            branch = self.blocks.branch_of(sequence.sequence_id)
            if branch is None or self.blocks.branch_of(branch.parent_id) is not None:
                continue
            if computed[branch.parent_id] >= branch.num_shared_tokens:
                sequence.num_computed_tokens = self.blocks.bear(sequence.sequence_id)
                computed[sequence.sequence_id] = sequence.num_computed_tokens
                self.totals.count_recomputation(sequence, sequence.num_computed_tokens)

    # ---- preemption ----------------------------------------------------------------------------

    def preempt(self, group: SequenceGroup, *, for_share: bool = False) -> None:
        """Take a running or restoring group's device blocks, by swapping it out if that is worth while.

        ``for_share``: another tenant is owed its place. What a slow reader loses it is charged for again.
        """
        group.num_preemptions += 1
        if group.paused:
            for sequence in group.sequences:
                sequence.num_charged_tokens = 0
        else:
            group.num_given_way += 1
        event = self._begin_swap_out(group)
        cause = "slow_reader" if group.paused else "share" if for_share else "pressure"
        self.totals.count_preemption("swap" if event else "recompute", cause)
        if event is None:
            self.lose_blocks(group)
            return
        group.move(event)
        self.queues.park(group)
        if event is RequestEvent.SWAP_OUT:
            self.end_swap_out(group)

    def _begin_swap_out(self, group: SequenceGroup) -> RequestEvent | None:
        """What keeps the group's KV: copies to host, or those it is being restored from. None: nothing."""
        ids = [sequence.sequence_id for sequence in group.sequences]
        if group.status is not RequestStatus.RUNNING:
            for sequence in group.sequences:
                restore = self.blocks.restore_of(sequence.sequence_id)
                if restore is not None:
                    sequence.num_known_tokens = max(sequence.num_known_tokens, restore.num_tokens)
            return RequestEvent.GO_BACK if self.blocks.abandon_restore(ids) else None
        is_whole = not any(self.blocks.branch_of(sequence_id) for sequence_id in ids)
        for sequence in group.sequences:
            known = sequence.num_computed_tokens
            sequence.num_known_tokens = known if is_whole else max(known, sequence.num_known_tokens)
        leaving = [(sequence.sequence_id, sequence.num_computed_tokens) for sequence in group.sequences]
        if not is_whole or not self.blocks.try_begin_swap_out(leaving):
            return None
        group.may_load = True
        return RequestEvent.SWAP_OUT

    def end_swap_out(self, group: SequenceGroup) -> None:
        """It is swapped out, if all of its sequences are."""
        is_done = all(self.blocks.swap_out_done(sequence.sequence_id) for sequence in group.sequences)
        if is_done and group.status is RequestStatus.SWAPPING_OUT:
            group.move(RequestEvent.SWAPPED)

    def lose_blocks(self, group: SequenceGroup) -> None:
        """Its tokens are all it keeps."""
        group.given_up = self.blocks.restore_of(group.first.sequence_id) or group.given_up
        for sequence in group.sequences:
            self.blocks.release(sequence.sequence_id)
            sequence.num_computed_tokens = 0
        group.move(RequestEvent.PREEMPT)
        self.queues.park(group)

    # ---- admission -----------------------------------------------------------------------------

    def try_admit(self, group: SequenceGroup) -> Refusal | None:
        """Give a queued group its blocks, taking them from slow readers if that is what it takes."""
        members = [self._member(group, sequence) for sequence in group.sequences]
        while True:
            admission = self.blocks.try_admit(
                members, keep_available=self._headroom(group), may_load=group.may_load
            )
            if isinstance(admission, Admission):
                self._start(group, admission)
                return None
            if admission is Refusal.PENDING:
                if not self.blocks.tiers.anything_hangs():
                    return admission
                group.may_load = False
                continue
            slow_reader = self.queues.last_paused()
            if slow_reader is None or self.blocks.num_leaving():
                return admission
            self.preempt(slow_reader)

    def _member(self, group: SequenceGroup, sequence: Sequence) -> Member:
        num_tokens = sequence.num_tokens
        capacity = group.max_total_tokens if group.has_whole_length else num_tokens
        is_named = self.blocks.prefix_caching or len(group.sequences) > 1
        names: abc.Sequence[BlockHash] = sequence.name_blocks(num_tokens) if is_named else ()
        if (num_readable := group.num_readable_tokens(num_tokens)) < num_tokens:
            names = names[: num_readable // self.blocks.block_size]
        return Member(sequence.sequence_id, names, num_tokens, capacity, group.outlook)

    def _headroom(self, group: SequenceGroup) -> int:
        """Blocks to leave for those that run, and for the forks of this one: none if alone.

        One for each sequence that runs, after a preemption.
        """
        if not (self.queues.running or self.queues.restoring):
            return 0
        num_forks = group.num_seqs - len(group.sequences)
        if not group.num_preemptions:
            return num_forks + self.watermark
        num_running = self.queues.decoding.num_seqs + sum(other.num_seqs for other in self.queues.others())
        return num_forks + max(self.watermark, num_running)

    def _start(self, group: SequenceGroup, admission: Admission) -> None:
        for sequence, num_cached in zip(group.sequences, admission.num_cached_tokens, strict=True):
            sequence.num_computed_tokens = num_cached
        if not admission.restoring:
            group.move(RequestEvent.ADMIT)
            self.queues.run(group)
            count_admission(self.totals, group, admission, self.blocks.block_size)
            return
        group.move(RequestEvent.OVERLAP if admission.overlaps else RequestEvent.LOAD)
        self.queues.restore(group)

    # ---- moves that ended ----------------------------------------------------------------------

    def complete(self, results: abc.Iterable[TransferResult]) -> None:
        """Take in how copies ended: who is swapped out now, and who lost what a copy failed to bring."""
        for sequence_id, event in self.blocks.complete(results):
            group = self._group_of(sequence_id)
            if group.status is RequestStatus.WAITING:
                continue  # another of its sequences has lost it already
            if event is SequenceEvent.SWAPPED_OUT:
                self.end_swap_out(group)
            else:
                group.may_load = event is not SequenceEvent.RESTORE_FAILED and group.may_load
                self.lose_blocks(group)

    def end_restores(self, now: float) -> None:
        """Let restoring groups take in what has arrived, and run if that was all. ``now``: seconds."""
        for group in tuple(self.queues.restoring.values()):
            restores = [self.blocks.restore_of(sequence.sequence_id) for sequence in group.sequences]
            is_whole = True
            for sequence, restore in zip(group.sequences, restores, strict=True):
                if restore is not None:
                    sequence.num_computed_tokens = restore.front(sequence.num_computed_tokens)
                    is_whole &= sequence.num_computed_tokens >= restore.num_tokens
            if is_whole:
                count_restore(self.totals, group, restores, now)
                for sequence in group.sequences:
                    if self.blocks.branch_of(sequence.sequence_id) is None:
                        self.blocks.end_restore(sequence.sequence_id)
                group.move(RequestEvent.RESTORED)
                self.queues.run(group)

    def lose_patience(self) -> None:
        """Let nobody wait for copies that have stopped. What is under a copy stays pinned until it ends."""
        waiting = dict.fromkeys(self.queues.restoring.values())
        if self.blocks.tiers.anything_hangs():
            waiting |= dict.fromkeys(map(self._group_of, self.blocks.leaving()))
        for group in waiting:
            if any(self.blocks.waits_for_hung_copies(sequence.sequence_id) for sequence in group.sequences):
                group.may_load = False
                self.lose_blocks(group)

    def _group_of(self, sequence_id: str) -> SequenceGroup:
        group = self.queues.group_of(sequence_id)
        assert group is not None
        return group
