"""The latencies of one completed request, in seconds. Pure.

They count from the intended send time, but for those ``from_send``: a client that has to wait for a slow
server before it may ask would otherwise not be seen to wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from loadtest.timeline import Outcome, Timeline


@dataclass(frozen=True, slots=True)
class Latency:
    """None where the answer was too short to have it."""

    queue_s: float  # from intended to sent
    ttft_s: float | None  # to the first text of any choice
    ttft_from_send_s: float | None
    e2e_s: float
    e2e_from_send_s: float
    gaps_s: list[float]  # between pieces of one choice, of all choices
    tpot_s: float | None  # first piece to last, over the tokens of a choice but the first
    normalized_s: float | None  # e2e over the tokens of a choice


def latency(timeline: Timeline) -> Latency:
    """Of a request that is COMPLETED."""
    sent_at, ended_at, first_at = timeline.sent_at, timeline.ended_at, timeline.first_at
    assert timeline.outcome is Outcome.COMPLETED and sent_at is not None and ended_at is not None
    intended_at = timeline.intended_at
    tokens = tokens_of_choice(timeline)
    return Latency(
        queue_s=sent_at - intended_at,
        ttft_s=None if first_at is None else first_at - intended_at,
        ttft_from_send_s=None if first_at is None else first_at - sent_at,
        e2e_s=ended_at - intended_at,
        e2e_from_send_s=ended_at - sent_at,
        gaps_s=[after - before for times in timeline.piece_times for before, after in pairwise(times)],
        tpot_s=_tpot_s(timeline, tokens),
        normalized_s=(ended_at - intended_at) / tokens if tokens else None,
    )


def tokens_of_choice(timeline: Timeline) -> float:
    """By usage; of several choices, which end when they like, the mean."""
    return 0.0 if timeline.usage is None else timeline.usage.completion_tokens / timeline.planned.n


def _tpot_s(timeline: Timeline, tokens: float) -> float | None:
    """As it is commonly defined. It is too low where a server sends several tokens a piece: those that came
    with the first piece took no time, and count.
    """
    first_at = timeline.first_at
    if first_at is None or tokens <= 1:
        return None
    last_at = max(times[-1] for times in timeline.piece_times if times)
    return (last_at - first_at) / (tokens - 1)
