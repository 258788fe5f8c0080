"""Preempted sequences: on their way to host, and there.

Runs on: step thread, sole owner. Blocks: never. A parked sequence refers to its host slots by id, so they
stay until it comes back, its partly filled last block included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tiering.planner import RestorePlanner
from tiering.tables import ParkedTable, SequenceEvent
from tiering.tiers import EndedMove, Tiers
from tiering.types import BlockId, BlockLabel, Tier, TransferId, TransferKind


class Parking:
    """Host slots by sequence."""

    def __init__(self, tiers: Tiers, planner: RestorePlanner) -> None:
        self._tiers = tiers
        self._planner = planner
        self._parked: dict[str, ParkedTable] = {}
        self._leaving: dict[TransferId, list[tuple[str, ParkedTable]]] = {}

    def __contains__(self, move: TransferId) -> bool:
        return move in self._leaving

    def tables(self) -> Mapping[str, ParkedTable]:
        """Of all sequences that are swapped out or on their way."""
        return self._parked

    def try_begin(self, sequence_id: str, blocks: Sequence[BlockId], num_tokens: int) -> bool:
        """Begin to copy ``num_tokens`` tokens in these device blocks to host. False, with nothing changed:

        it is not worth while to the restore policy, or host has no room for all of it. Blocks that host has,
        or is getting, need no copy.
        """
        host = self._tiers.host
        if host is None or num_tokens == 0:
            return False
        labels = [self._tiers.device.label_of(block) for block in blocks]
        present = [None if label is None else self._on_host(label) for label in labels]
        dirty = [index for index, slot in enumerate(present) if slot is None]
        if not self._planner.keeps(num_tokens, len(blocks), len(dirty)):
            return False
        shared = [slot for slot in present if slot is not None]
        if len(dirty) > host.num_available() - sum(host.ref_count(slot) == 0 for slot in shared):
            return False
        for slot in shared:
            host.share(slot)
        fresh = host.try_allocate(len(dirty))
        assert fresh is not None
        slots = list(present)
        for index, slot in zip(dirty, fresh, strict=True):
            slots[index] = slot
        parked = ParkedTable([slot for slot in slots if slot is not None], num_tokens)
        self._parked[sequence_id] = parked
        for index in dirty:
            move = self._tiers.begin(TransferKind.SWAP_OUT, blocks[index], parked.slots[index], labels[index])
            self._await_slot(sequence_id, parked, move)
        for slot in shared:
            if host.is_being_filled(slot):
                self._await_slot(sequence_id, parked, self._tiers.arrival_at(Tier.HOST, slot))
        return True

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

    def _on_host(self, label: BlockLabel) -> BlockId | None:
        """The host slot that has this content or is getting it."""
        host = self._tiers.host
        assert host is not None
        slot = host.lookup(label.name)
        return host.arriving_block(label.name) if slot is None else slot

    def _await_slot(self, sequence_id: str, parked: ParkedTable, move: TransferId) -> None:
        parked.moves.add(move)
        self._leaving.setdefault(move, []).append((sequence_id, parked))
