"""Preempted sequences: on their way to host, and there.

Runs on: step thread, sole owner. Blocks: never. A parked sequence refers to its host slots by id, so they
stay until it comes back, its partly filled last block included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tiering.planner import RestorePlanner, spans_of
from tiering.tables import ParkedTable, SequenceEvent
from tiering.tiers import EndedMove, Tiers
from tiering.types import BlockId, Tier, TransferId, TransferKind


@dataclass(frozen=True, slots=True)
class Leaver:
    """A sequence to be parked: the device blocks that hold its ``num_tokens`` computed tokens."""

    sequence_id: str
    blocks: Sequence[BlockId]
    num_tokens: int


class Parking:
    """Host slots by sequence. What sequences share on the device they share on host."""

    def __init__(self, tiers: Tiers, planner: RestorePlanner, block_size: int) -> None:
        self._tiers = tiers
        self._planner = planner
        self._block_size = block_size
        self._parked: dict[str, ParkedTable] = {}
        self._leaving: dict[TransferId, list[tuple[str, ParkedTable]]] = {}
        self._groups: Counter[int] = Counter()  # how many of each are parked still
        self._num_parkings = 0

    def __contains__(self, move: TransferId) -> bool:
        return move in self._leaving

    def tables(self) -> Mapping[str, ParkedTable]:
        """Of all sequences that are swapped out or on their way."""
        return self._parked

    @property
    def num_groups(self) -> int:
        """Groups of which any sequence is parked."""
        return len(self._groups)

    def leaving(self) -> list[str]:
        """Sequences on their way to host. Costs the number of moves under way for them."""
        entries = (entry for entries in self._leaving.values() for entry in entries)
        return list(dict.fromkeys(name for name, table in entries if self._parked.get(name) is table))

    def try_begin(self, leavers: Sequence[Leaver]) -> bool:
        """Begin to copy what a group of sequences has on the device to host, each block once.

        False, with nothing changed: it is not worth while to the restore policy, or host has no room for all
        of it. Blocks that host has, or is getting, need no copy.
        """
        host = self._tiers.host
        if host is None or not any(leaver.num_tokens for leaver in leavers):
            return False
        blocks = list(dict.fromkeys(block for leaver in leavers for block in leaver.blocks))
        present = {block: slot for block in blocks if (slot := self._on_host(block)) is not None}
        dirty = [block for block in blocks if block not in present]
        spans = spans_of(
            [leaver.blocks for leaver in leavers], [leaver.num_tokens for leaver in leavers], self._block_size
        )
        if not self._planner.keeps(spans, len(blocks), len(dirty)):
            return False
        if len(dirty) > host.num_available() - sum(host.ref_count(slot) == 0 for slot in present.values()):
            return False
        for slot in present.values():
            host.share(slot)
        fresh = host.try_allocate(len(dirty))
        assert fresh is not None
        slots = present | dict(zip(dirty, fresh, strict=True))
        moves = {block: self._begin_copy(block, slots[block]) for block in dirty}
        moves |= {
            block: self._tiers.arrival_at(Tier.HOST, slot)
            for block, slot in present.items()
            if host.is_being_filled(slot)
        }
        self._park(leavers, slots, moves)
        return True

    def _begin_copy(self, block: BlockId, slot: BlockId) -> TransferId:
        return self._tiers.begin(TransferKind.SWAP_OUT, block, slot, self._tiers.device.label_of(block))

    def _park(
        self,
        leavers: Sequence[Leaver],
        slots: Mapping[BlockId, BlockId],
        moves: Mapping[BlockId, TransferId],
    ) -> None:
        """Note who has which slots, which have one reference so far, and waits for which moves."""
        host = self._tiers.host
        assert host is not None
        self._num_parkings += 1
        self._groups[self._num_parkings] = len(leavers)
        seen: set[BlockId] = set()
        for leaver in leavers:
            for block in leaver.blocks:
                if block in seen:
                    host.share(slots[block])
            seen.update(leaver.blocks)
            slots_of = [slots[block] for block in leaver.blocks]
            parked = ParkedTable(slots_of, leaver.num_tokens, self._num_parkings)
            self._parked[leaver.sequence_id] = parked
            for block in leaver.blocks:
                if block in moves:
                    parked.moves.add(moves[block])
                    self._leaving.setdefault(moves[block], []).append((leaver.sequence_id, parked))

    def end(self, ended: EndedMove) -> Iterator[tuple[str, SequenceEvent]]:
        """Take in how a copy to host ended."""
        move = ended.job.transfer_id
        for sequence_id, parked in self._leaving.pop(move):
            parked.moves.discard(move)
            if self._parked.get(sequence_id) is not parked:
                continue
            if not ended.ok:
                self.give_up(sequence_id)
                yield sequence_id, SequenceEvent.SWAP_OUT_FAILED
            elif not parked.moves:
                yield sequence_id, SequenceEvent.SWAPPED_OUT

    def give_up(self, sequence_id: str) -> None:
        """Let go of a sequence's slots, if it has any; named ones stay cached."""
        parked = self._parked.pop(sequence_id, None)
        if parked is not None:
            assert self._tiers.host is not None
            self._tiers.host.release(reversed(parked.slots))
            self._groups[parked.group] -= 1
            if not self._groups[parked.group]:
                del self._groups[parked.group]

    def _on_host(self, block: BlockId) -> BlockId | None:
        """The host slot that has this device block's content or is getting it."""
        host, label = self._tiers.host, self._tiers.device.label_of(block)
        assert host is not None
        if label is None:
            return None
        slot = host.lookup(label.name)
        return host.arriving_block(label.name) if slot is None else slot
