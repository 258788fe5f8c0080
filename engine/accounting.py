"""Counts what requests found, computed again and lost. Pure; the totals only grow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engine.request import Request
from tiering.restore import Restore
from tiering.tables import Admission
from tiering.types import Tier


@dataclass(slots=True)
class SchedulerTotals:
    """``hit_tokens``: prompt tokens by the tier they were found on, counted once a request, and only if used.

    ``recomputed_tokens``: tokens computed although their KV had existed. ``preemptions`` by
    ``kind/cause``. Of restores that were only loaded: ``restore_s`` from begin to end, beside
    ``restore_predicted_s`` of the cost model.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    recomputed_tokens: int = 0
    hit_tokens: Counter[Tier] = field(default_factory=Counter)
    preemptions: Counter[str] = field(default_factory=Counter)
    num_restores: int = 0
    restore_s: float = 0.0
    restore_predicted_s: float = 0.0

    def count_preemption(self, kind: str, *, slow_reader: bool) -> None:
        self.preemptions[f"{kind}/{'slow_reader' if slow_reader else 'pressure'}"] += 1


def count_admission(totals: SchedulerTotals, request: Request, admission: Admission) -> None:
    """A request has its blocks, with nothing to load."""
    found = Counter({Tier.DEVICE: admission.num_cached_tokens})
    request.num_known_tokens = max(
        request.num_known_tokens, admission.num_cached_tokens + admission.num_forgone_tokens
    )
    _count(totals, request, found)


def count_restore(totals: SchedulerTotals, request: Request, restore: Restore, now: float) -> None:
    """A request's loads are over, those that were called off included. ``now`` in seconds."""
    if restore.predicted_s is not None and not restore.overlaps:
        totals.num_restores += 1
        totals.restore_s += now - restore.begun_at
        totals.restore_predicted_s += restore.predicted_s
    found = Counter({tier: restore.tokens_from(tier) for tier in Tier})
    found[Tier.DEVICE] += restore.first * restore.block_size
    request.num_known_tokens = max(request.num_known_tokens, restore.num_tokens)
    _count(totals, request, found)


def _count(totals: SchedulerTotals, request: Request, found: Counter[Tier]) -> None:
    num_found = found.total()
    totals.recomputed_tokens += max(0, request.num_known_tokens - num_found)
    if request.is_counted:
        return
    request.is_counted = True
    request.num_cached_tokens = num_found
    totals.prompt_tokens += len(request.prompt_token_ids)
    totals.hit_tokens.update(found)
