"""Counts what requests found, computed again and lost. Pure; the totals only grow."""

from __future__ import annotations

from collections import Counter, abc
from dataclasses import dataclass, field

from engine.request import SequenceGroup
from engine.sequence import Sequence
from tiering.restore import Restore
from tiering.tables import Admission
from tiering.types import Tier


@dataclass(slots=True)
class SchedulerTotals:
    """``hit_tokens``: prompt tokens by the tier they were found on, counted once a request, and only if used.

    ``recomputed_tokens``: tokens computed although their KV had existed. ``preemptions`` by
    ``kind/cause``. Of restores that were only loaded: ``restore_s`` from begin to end, beside
    ``restore_predicted_s`` of the cost model. ``block_copies``: blocks copied on the device before a write.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    recomputed_tokens: int = 0
    block_copies: int = 0
    hit_tokens: Counter[Tier] = field(default_factory=Counter)
    preemptions: Counter[str] = field(default_factory=Counter)
    num_restores: int = 0
    restore_s: float = 0.0
    restore_predicted_s: float = 0.0

    def count_preemption(self, kind: str, cause: str) -> None:
        self.preemptions[f"{kind}/{cause}"] += 1

    def count_recomputation(self, sequence: Sequence, num_found: int) -> None:
        """A sequence begins anew with ``num_found`` tokens."""
        self.recomputed_tokens += max(0, sequence.num_known_tokens - num_found)


def count_admission(
    totals: SchedulerTotals, group: SequenceGroup, admission: Admission, block_size: int
) -> None:
    """A request has its blocks, with nothing to load."""
    num_found, first = admission.num_cached_tokens[0], group.first
    first.num_known_tokens = max(first.num_known_tokens, num_found + admission.num_forgone_tokens)
    for sequence, num_cached in zip(group.sequences, admission.num_cached_tokens, strict=True):
        if sequence is first or num_cached:
            totals.count_recomputation(sequence, num_cached)
    _count_hits(totals, group, _on_device(group, num_found, block_size))


def count_restore(
    totals: SchedulerTotals, group: SequenceGroup, restores: abc.Sequence[Restore | None], now: float
) -> None:
    """A request's loads are over, those that were called off included.

    ``restores`` has an entry for each sequence; ``now`` is in seconds.
    """
    first = next((restore for restore in restores if restore is not None), None)
    if first is not None and first.predicted_s is not None and not first.overlaps:
        totals.num_restores += 1
        totals.restore_s += now - first.begun_at
        totals.restore_predicted_s += first.predicted_s
    found: Counter[Tier] = Counter()
    for sequence, restore in zip(group.sequences, restores, strict=True):
        if restore is not None:
            found = Counter({tier: restore.tokens_from(tier) for tier in Tier})
            found += _on_device(group, restore.first * restore.block_size, restore.block_size)
            sequence.num_known_tokens = max(sequence.num_known_tokens, restore.num_tokens)
            totals.count_recomputation(sequence, found.total())
    _count_hits(totals, group, found)


def _on_device(group: SequenceGroup, num_tokens: int, block_size: int) -> Counter[Tier]:
    """Tokens found on the device, by the tier from which a load brought them there for this very request."""
    found = Counter({Tier.DEVICE: num_tokens})
    brought = {} if group.given_up is None else group.given_up.origin
    for index, tier in brought.items():
        if (index + 1) * block_size <= num_tokens:
            found[Tier.DEVICE] -= block_size
            found[tier] += block_size
    return found


def _count_hits(totals: SchedulerTotals, group: SequenceGroup, found: Counter[Tier]) -> None:
    """Of the prompt, which only one sequence has when it is counted."""
    if group.is_counted:
        return
    group.is_counted = True
    group.num_cached_tokens = found.total()
    totals.prompt_tokens += group.num_prompt_tokens
    totals.hit_tokens.update(found)
