"""Finds a sequence's blocks over all tiers, and plans which of them to use. Changes nothing.

Pure queries of the pools, the cost model and the restore policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiering.cost_model import CostModel
from tiering.policies.restore import RestoreMode, RestorePolicy, RestoreSituation
from tiering.tables import ParkedTable
from tiering.tiers import Tiers
from tiering.types import BlockHash, BlockId, BlockLabel, Tier, TransferKind


@dataclass(frozen=True, slots=True)
class Source:
    """Where one logical block of a sequence was found."""

    tier: Tier
    block: BlockId
    label: BlockLabel | None


PENDING = Source(Tier.DEVICE, BlockId(-1), None)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sequence starts from: blocks of which the first ``num_front`` are on the device.

    ``num_tokens`` are in them; ``num_forgone_tokens`` more were found, and will be computed.
    """

    sources: list[Source]
    num_front: int
    num_tokens: int
    num_forgone_tokens: int
    overlaps: bool
    predicted_s: float | None


class RestorePlanner:
    """Plans by ``policy`` and ``costs`` over ``tiers``."""

    def __init__(self, tiers: Tiers, block_size: int, policy: RestorePolicy, costs: CostModel) -> None:
        self.costs = costs
        self._tiers = tiers
        self._block_size = block_size
        self._policy = policy

    def match(self, names: Sequence[BlockHash], limit: int, *, below_device: bool) -> list[Source] | None:
        """The longest named prefix over all tiers; None if part of it is on its way for another."""
        found: list[Source] = []
        for depth, name in enumerate(names[:limit]):
            source = self._find(BlockLabel(name, depth), below_device=below_device)
            if source is None:
                break
            found.append(source)
            if source is PENDING:
                return None
        return found

    def finds(self, label: BlockLabel, below_device: bool) -> bool:
        """Whether a named block is there, or on its way."""
        return self._find(label, below_device=below_device) is not None

    def _find(self, label: BlockLabel, *, below_device: bool) -> Source | None:
        for tier, pool in self._tiers.pools():
            if tier is not Tier.DEVICE and not below_device:
                return None
            block = pool.lookup(label.name)
            if block is not None:
                return Source(tier, block, label)
            if below_device and pool.is_arriving(label.name) and tier is not Tier.DISK:
                return PENDING
        return None

    def match_parked(self, parked: ParkedTable, names: Sequence[BlockHash]) -> list[Source] | None:
        """A swapped sequence's blocks: on the device still, or in its own slots."""
        host = self._tiers.host
        assert host is not None
        sources: list[Source] = []
        num_full = (
            parked.num_tokens // self._block_size
        )  # the last block may be full by name, but not by content
        for index, slot in enumerate(parked.slots):
            label = host.label_of(slot)
            name = names[index] if index < min(num_full, len(names)) else None
            block = None if name is None else self._tiers.device.lookup(name)
            if block is not None:
                sources.append(Source(Tier.DEVICE, block, self._tiers.device.label_of(block)))
            elif name is not None and self._tiers.device.is_arriving(name):
                return None
            else:
                sources.append(Source(Tier.HOST, slot, label))
        return sources

    def plan(self, sources: Sequence[Source], num_tokens: int) -> Plan:
        """What to use of what was found. The host must have room for what comes from disk."""
        num_front = _num_on_device(sources)
        usable = list(sources[: self._stageable(sources)])
        situation = self._situation(usable, num_front, num_tokens)
        mode = self._policy.restore(situation) if situation.num_blocks else RestoreMode.LOAD
        if mode is RestoreMode.COMPUTE:
            usable = usable[:num_front]
        kept = num_tokens if len(usable) == len(sources) else len(usable) * self._block_size
        overlaps = mode is RestoreMode.BOTH
        predicted_s = None if situation.load_s is None else situation.load_s - self.costs.step_s()
        return Plan(usable, num_front, kept, num_tokens - kept, overlaps, predicted_s)

    def plan_group(self, found: Sequence[Sequence[Source]], num_tokens: Sequence[int]) -> list[Plan] | None:
        """What several swapped sequences start from; what they share is loaded once. None: compute instead.

        ``found`` and ``num_tokens`` are of each of them. Nothing is computed while it is loaded.
        """
        missing = {source.block for sources in found for source in sources if source.tier is Tier.HOST}
        fronts = [_num_on_device(sources) for sources in found]
        spans = spans_of(
            [[source.block for source in sources] for sources in found], num_tokens, self._block_size
        )
        starts = [
            max(start, front * self._block_size) for (start, _), front in zip(spans, fronts, strict=True)
        ]
        load_s = self._load_and_go_s(len(missing) + self._tiers.num_moves_of(TransferKind.SWAP_IN), 0)
        situation = RestoreSituation(
            num_blocks=len(missing),
            load_s=load_s,
            compute_s=self._compute_s(list(zip(starts, num_tokens, strict=True))),
            step_s=self.costs.step_s(),
        )
        if missing and self._policy.restore(situation) is RestoreMode.COMPUTE:
            return None
        predicted_s = None if load_s is None else load_s - self.costs.step_s()
        return [
            Plan(list(sources), front, count, 0, overlaps=False, predicted_s=predicted_s)
            for sources, front, count in zip(found, fronts, num_tokens, strict=True)
        ]

    def keeps(self, spans: Sequence[tuple[int, int]], num_blocks: int, num_dirty: int) -> bool:
        """Whether preempted sequences are worth copying out; ``num_dirty`` of their blocks are not on host.

        ``spans``: of each, from which position on it shares nothing with those before it, and its tokens.
        """
        situation = RestoreSituation(
            num_blocks=num_blocks,
            load_s=self._load_and_go_s(num_blocks, 0),
            compute_s=self._compute_s(spans),
            store_s=self.costs.copy_s(TransferKind.SWAP_OUT, num_dirty),
            step_s=self.costs.step_s(),
        )
        return self._policy.keeps(situation)

    def load_s(self, num_swap_ins: int, num_promotes: int) -> float | None:
        """Seconds that so many copies take. Of two stages the slower counts, and a block of the other."""
        swap_in = self.costs.copy_s(TransferKind.SWAP_IN, num_swap_ins)
        promote = self.costs.copy_s(TransferKind.PROMOTE, num_promotes)
        if swap_in is None or promote is None:
            return None
        if num_promotes == 0:
            return swap_in
        return max(swap_in, promote) + min(swap_in / num_swap_ins, promote / num_promotes)

    def _compute_s(self, spans: Sequence[tuple[int, int]]) -> float | None:
        costs = [self.costs.recompute_s(start, stop) for start, stop in spans if start < stop]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None

    def _stageable(self, sources: Sequence[Source]) -> int:
        """How many leading sources can be used, given what host can free for those on disk."""
        host = self._tiers.host
        if host is None:
            return len(sources)
        room = host.num_available()
        for index, source in enumerate(sources):
            room -= source.tier is Tier.DISK
            room -= source.tier is Tier.HOST and host.ref_count(source.block) == 0
            if room < 0:
                return index
        return len(sources)

    def _load_and_go_s(self, num_swap_ins: int, num_promotes: int) -> float | None:
        """With the step that computing would not need: it takes the last token along."""
        load_s = self.load_s(num_swap_ins, num_promotes)
        return None if load_s is None else load_s + self.costs.step_s()

    def _situation(self, sources: Sequence[Source], num_front: int, num_tokens: int) -> RestoreSituation:
        missing = [source for source in sources[num_front:] if source.tier is not Tier.DEVICE]
        num_disk = sum(source.tier is Tier.DISK for source in missing)
        return RestoreSituation(
            num_blocks=len(missing),
            load_s=self._load_and_go_s(
                len(missing) + self._tiers.num_moves_of(TransferKind.SWAP_IN),
                num_disk + self._tiers.num_moves_of(TransferKind.PROMOTE) if num_disk else 0,
            ),
            compute_s=self.costs.recompute_s(num_front * self._block_size, num_tokens),
            step_s=self.costs.step_s(),
        )


def spans_of(
    blocks: Sequence[Sequence[BlockId]], num_tokens: Sequence[int], block_size: int
) -> list[tuple[int, int]]:
    """Of each table: the position from which on none before it has its blocks, and its end."""
    seen: set[BlockId] = set()
    spans = []
    for table, count in zip(blocks, num_tokens, strict=True):
        num_shared = next((i for i, block in enumerate(table) if block not in seen), len(table))
        seen.update(table)
        spans.append((min(num_shared * block_size, count), count))
    return spans


def _num_on_device(sources: Sequence[Source]) -> int:
    """How many of them, from the first on."""
    return next((i for i, source in enumerate(sources) if source.tier is not Tier.DEVICE), len(sources))
