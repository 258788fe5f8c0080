"""The pools of all tiers and the moves between them: begun, cancelled, completed.

Runs on: step thread, sole owner. Blocks: never; copies nothing itself. Moves are two-phase: ``begin``
reserves and pins both ends and adds an order; ``complete`` publishes or rolls back. There is no third
way. A block below the device is only ever written as a whole, so that what has a name there is whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tiering.block_pool import BlockPool
from tiering.outlook import BlockUse
from tiering.policies.write import WritePolicy
from tiering.types import (
    BlockHash,
    BlockId,
    BlockLabel,
    Tier,
    TransferId,
    TransferJob,
    TransferKind,
    TransferOutcome,
    TransferResult,
)

PATIENCE_S = 10.0  # without the end of a single copy, after which a link or a disk is taken to hang
_CLEAN_SHARE = 0.25  # of a pool is kept free or clean, and at least room for the longest sequence
_CLEANING_PATIENCE_S = 0.25  # for which cleaning waits at most while blocks are loaded
_EAGER_S = 600.0  # for which all is cleaned that can be, after a block was lost that need not have been
_MAX_BACKGROUND_MOVES = 64
_BELOW = {Tier.DEVICE: TransferKind.SWAP_OUT, Tier.HOST: TransferKind.DEMOTE}


@dataclass(frozen=True, slots=True)
class TransferOrders:
    """What a transfer engine shall do now: erase these disk blocks' names, then begin and call off moves."""

    submit: tuple[TransferJob, ...]
    cancel: tuple[TransferId, ...]
    erase: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True)
class EndedMove:
    """A move that is over. ``holder`` is the target block that has the content, if all went well.

    It differs from ``job.target`` where the same content was computed there meanwhile.
    """

    job: TransferJob
    outcome: TransferOutcome
    holder: BlockId

    @property
    def ok(self) -> bool:
        return self.outcome is TransferOutcome.DONE


class Tiers:
    """Device, host and disk pools. ``writes`` says when blocks of device and host are copied down.

    ``max_sequence_blocks``: what the longest sequence takes, all at once when it is admitted.
    """

    def __init__(
        self,
        device: BlockPool,
        host: BlockPool | None = None,
        disk: BlockPool | None = None,
        writes: dict[Tier, WritePolicy] | None = None,
        *,
        max_sequence_blocks: int = 0,
    ) -> None:
        assert host is not None or disk is None, "blocks reach the disk by way of host"
        self.device = device
        self.host = host
        self.disk = disk
        self._pools = {Tier.DEVICE: device}
        if host is not None:
            self._pools[Tier.HOST] = host
        if disk is not None:
            self._pools[Tier.DISK] = disk
        self._writes = writes or {}
        self._max_sequence_blocks = max_sequence_blocks
        self._jobs: dict[TransferId, TransferJob] = {}
        self._uses: dict[TransferId, BlockUse | None] = {}  # of sources, when the moves began
        self._num_of_kind: Counter[TransferKind] = Counter()
        self._background: set[TransferId] = set()
        self._num_background: Counter[TransferKind] = Counter()
        self._num_losses = dict.fromkeys(self._pools, 0)
        self._eager_until = dict.fromkeys(self._pools, 0.0)
        self._progress_at = {Tier.HOST: 0.0, Tier.DISK: 0.0}
        self.num_loads_begun = 0
        self._now = 0.0
        self._cleaned_at = 0.0
        self._num_moves = 0
        self._submit: list[TransferJob] = []
        self._cancel: list[TransferId] = []
        self._erase: list[BlockId] = []

    def pool(self, tier: Tier) -> BlockPool:
        return self._pools[tier]

    def pools(self) -> Iterator[tuple[Tier, BlockPool]]:
        """The tiers there are, fastest first."""
        return iter(self._pools.items())

    def set_time(self, now: float) -> None:
        """Tell the pools the time of the present step, in seconds."""
        self._now = now
        for pool in self._pools.values():
            pool.now = now

    # ---- moves ---------------------------------------------------------------------------------

    def begin(
        self, kind: TransferKind, source: BlockId, target: BlockId, label: BlockLabel | None
    ) -> TransferId:
        """Order the copy of one block into a FILLING one. Both get a reference until it is over."""
        self._pools[kind.source].begin_copy_out(source)
        self._pools[kind.target].begin_copy_in(target, label)
        self._num_moves += 1
        self.num_loads_begun += kind.is_load
        if not self._num_on(_medium(kind)):
            self._progress_at[_medium(kind)] = self._now
        self._num_of_kind[kind] += 1
        job = TransferJob(TransferId(self._num_moves), kind, source, target, label)
        self._jobs[job.transfer_id] = job
        self._uses[job.transfer_id] = self._pools[kind.source].use_of(source)
        self._submit.append(job)
        return job.transfer_id

    def cancel(self, transfer_ids: Iterable[TransferId]) -> None:
        """Order that these not be begun, if they can still be stopped. Each is completed all the same."""
        self._cancel += transfer_ids

    def complete(self, result: TransferResult) -> EndedMove:
        """Take in how a move ended: publish what arrived, or roll back."""
        job = self._jobs.pop(result.transfer_id)
        self._num_of_kind[job.kind] -= 1
        self._progress_at[_medium(job.kind)] = self._now
        if job.transfer_id in self._background:
            self._background.remove(job.transfer_id)
            self._num_background[job.kind] -= 1
        source, target = self._pools[job.kind.source], self._pools[job.kind.target]
        use_at_begin = self._uses.pop(job.transfer_id)  # the source may have lost its name since
        holder = job.target
        if result.outcome is TransferOutcome.DONE:
            holder = target.complete_copy_in(job.target, source.use_of(job.source) or use_at_begin)
        else:
            target.abandon_copy_in(job.target)
        source.end_copy_out(job.source)
        if job.kind is TransferKind.DEMOTE and target.label_of(job.target) is None:
            self._erase.append(job.target)  # what was written there is nobody's, or was forgotten on its way
        if result.outcome is TransferOutcome.CORRUPT and job.label is not None:
            self._forget_in(job.kind.source, job.label.name)
        return EndedMove(job, result.outcome, holder)

    def take_orders(self) -> TransferOrders:
        """What has been ordered since the last call."""
        orders = TransferOrders(tuple(self._submit), tuple(self._cancel), tuple(self._erase))
        self._submit, self._cancel, self._erase = [], [], []
        return orders

    def jobs(self) -> Iterator[TransferJob]:
        """Moves under way."""
        return iter(self._jobs.values())

    @property
    def num_moves(self) -> int:
        """How many moves are under way."""
        return len(self._jobs)

    def num_moves_of(self, kind: TransferKind) -> int:
        """How many moves of one kind are under way."""
        return self._num_of_kind[kind]

    def num_of_kind(self, moves: Iterable[TransferId], kind: TransferKind) -> int:
        """How many of these moves are of one kind."""
        return sum(self._jobs[move].kind is kind for move in moves)

    def forget(self, name: BlockHash) -> None:
        """Let nobody find this name's content on any tier, nor what is on its way, nor after a restart."""
        for tier in self._pools:
            self._forget_in(tier, name)

    def hang(self, moves: Iterable[TransferId]) -> bool:
        """Whether one of these moves is on a link or disk where nothing has ended for ``PATIENCE_S``."""
        media = {_medium(self._jobs[move].kind) for move in moves}
        return any(self._now - self._progress_at[medium] > PATIENCE_S for medium in media)

    def anything_hangs(self) -> bool:
        """Whether a link or disk with moves to make has made none for ``PATIENCE_S``."""
        return any(
            self._num_on(medium) and self._now - progress_at > PATIENCE_S
            for medium, progress_at in self._progress_at.items()
        )

    def num_leaving(self) -> int:
        """Device blocks that only moves refer to: they become available as these end."""
        leaving = {
            job.source
            for job in self._jobs.values()
            if job.kind is TransferKind.SWAP_OUT and self.device.ref_count(job.source) == 0
        }
        stranded = (
            job.target
            for job in self._jobs.values()
            if job.kind is TransferKind.SWAP_IN and self.device.ref_count(job.target) == 1
        )
        return len(leaving.union(stranded))

    def arrival_at(self, tier: Tier, block: BlockId) -> TransferId:
        """The move that is filling this block."""
        return next(
            job.transfer_id for job in self._jobs.values() if job.kind.target is tier and job.target == block
        )

    # ---- copies nobody waits for ---------------------------------------------------------------

    def on_ready(self, tier: Tier, block: BlockId) -> None:
        """A block of ``tier`` is full and named: copy it down, if that is the policy."""
        policy = self._writes.get(tier)
        if policy is not None and policy.stores_ready():
            self._store_down(tier, block)

    def on_hit(self, tier: Tier, block: BlockId) -> None:
        """A new sequence found this block."""
        num_hits = self._pools[tier].record_hit(block)
        policy = self._writes.get(tier)
        if policy is not None and policy.stores_hit(num_hits):
            self._store_down(tier, block)

    def clean_ahead(self) -> None:
        """Copy down what will be evicted next, so that room can be had at once and without loss.

        Somebody waits for loads, which this would slow down, so it waits for them; but not for long.
        """
        has_loads = any(self.num_moves_of(kind) for kind in TransferKind if kind.is_load)
        if has_loads and self._now - self._cleaned_at < _CLEANING_PATIENCE_S:
            return
        self._cleaned_at = self._now
        for tier, policy in self._writes.items():
            if policy.cleans_ahead:
                self._clean(tier)

    def flush(self) -> None:
        """Begin to copy down what only one tier has, worth most first, as many as may move at once.

        The lowest tier first, and into the next only what pushes out nothing that is dirty there. Nothing is
        begun only if there is nothing to begin.
        """
        for tier in reversed(self._writes):
            below = self._pools[_BELOW[tier].target]
            room = min(self._background_room(tier), below.num_losslessly_available())
            num_begun = 0
            for block in self._pools[tier].last_dirty():
                if num_begun >= room:
                    break
                num_begun += self._store_down(tier, block)
            if num_begun:
                return

    def _clean(self, tier: Tier) -> None:
        pool = self._pools[tier]
        target = min(max(int(_CLEAN_SHARE * pool.num_blocks), self._max_sequence_blocks), pool.num_blocks)
        wanted = target - pool.num_losslessly_available()
        if pool.needless_losses_total > self._num_losses[tier]:  # the policy gives up newcomers first
            self._num_losses[tier] = pool.needless_losses_total
            self._eager_until[tier] = self._now + _EAGER_S
        if self._writes[tier].stores_ready() or self._now < self._eager_until[tier]:
            wanted = pool.num_blocks  # with `stores_ready`: what found no room when it became ready
        room = self._background_room(tier)
        if wanted > 0 and room > 0:
            for block in pool.next_dirty(min(wanted, room)):
                self._store_down(tier, block)

    def _store_down(self, tier: Tier, block: BlockId) -> bool:
        """Begin a copy to the tier below, unless it has the block, or can make no room for it.

        A block is tried once until its next hit: with a small tier below, two blocks would else push each
        other out of it for ever. Returns whether a copy was begun.
        """
        kind = _BELOW[tier]
        below, label = self._pools[kind.target], self._pools[tier].label_of(block)
        if label is None or self._background_room(tier) <= 0:
            return False
        self._pools[tier].note_stored(block)
        if below.lookup(label.name) is not None or below.is_arriving(label.name):
            return False
        if kind is TransferKind.DEMOTE and self._pools[tier].stays_off_disk(block):
            return False
        slots = below.try_allocate(1)
        if slots is None:
            return False
        if kind is TransferKind.DEMOTE:
            self._erase += slots  # so that only what the pool can find is found by a restart
        self._background.add(self.begin(kind, block, slots[0], label))
        self._num_background[kind] += 1
        below.release(slots)
        return True

    def _background_room(self, tier: Tier) -> int:
        """How many copies down from a tier may be begun that nobody waits for."""
        return _MAX_BACKGROUND_MOVES - self._num_background[_BELOW[tier]]

    def _forget_in(self, tier: Tier, name: BlockHash) -> None:
        block = self._pools[tier].lookup(name)
        if block is not None and tier is Tier.DISK:
            self._erase.append(block)
        self._pools[tier].forget(name)

    def _num_on(self, medium: Tier) -> int:
        return sum(count for kind, count in self._num_of_kind.items() if _medium(kind) is medium)


def _medium(kind: TransferKind) -> Tier:
    """Which of the two carries a move: the link between device and host, or the disk."""
    return Tier.DISK if Tier.DISK in (kind.source, kind.target) else Tier.HOST
