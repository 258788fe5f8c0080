"""The latencies of one request, of its timeline or of its row in a report. Pure.

Those have them that completed and were read as fast as they came: of a slow reader they would be its own
doing. They count from the intended send time, but for those ``from_send``: a client that has to wait for a
slow server before it may ask would otherwise not be seen to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtest.results import RequestRow
from loadtest.timeline import Outcome, Timeline


@dataclass(frozen=True, slots=True)
class Latency:
    """Times in seconds. A latency is None where the answer was too short to have it."""

    intended_at: float
    sent_at: float
    ended_at: float
    piece_times: Sequence[Sequence[float]]  # of each choice
    tokens: float  # of a choice; of several, which end when they like, the mean

    @property
    def queue_s(self) -> float:
        return self.sent_at - self.intended_at

    @property
    def ttft_s(self) -> float | None:
        """To the first text of any choice."""
        return None if self._first_at is None else self._first_at - self.intended_at

    @property
    def ttft_from_send_s(self) -> float | None:
        return None if self._first_at is None else self._first_at - self.sent_at

    @property
    def e2e_s(self) -> float:
        return self.ended_at - self.intended_at

    @property
    def e2e_from_send_s(self) -> float:
        return self.ended_at - self.sent_at

    @property
    def gaps_s(self) -> list[float]:
        """Between pieces of one choice, of all choices."""
        return [after - before for times in self.piece_times for before, after in pairwise(times)]

    @property
    def tpot_s(self) -> float | None:
        """As it is commonly defined: first piece to last, over the tokens but the first. It is too low where
        a server sends several tokens a piece: those that came with the first piece took no time, and count.
        An answer in a single piece has none, however many tokens it is.
        """
        is_in_pieces = any(len(times) > 1 for times in self.piece_times)
        if self._first_at is None or self.tokens <= 1 or not is_in_pieces:
            return None
        last_at = max(times[-1] for times in self.piece_times if times)
        return (last_at - self._first_at) / (self.tokens - 1)

    @property
    def normalized_s(self) -> float | None:
        return self.e2e_s / self.tokens if self.tokens else None

    @property
    def _first_at(self) -> float | None:
        return min((times[0] for times in self.piece_times if times), default=None)


_SAMPLES: dict[str, Callable[[Latency], Sequence[float | None]]] = {
    "ttft_ms": lambda had: [had.ttft_s],
    "ttft_from_send_ms": lambda had: [had.ttft_from_send_s],
    "itl_ms": lambda had: had.gaps_s,
    "tpot_ms": lambda had: [had.tpot_s],
    "e2e_ms": lambda had: [had.e2e_s],
    "e2e_from_send_ms": lambda had: [had.e2e_from_send_s],
    "normalized_ms": lambda had: [had.normalized_s],
    "queue_ms": lambda had: [had.queue_s],
}
MEASURES = tuple(_SAMPLES)
"""Fields of ``results.Summary`` that are distributions of latencies."""


def samples_ms(had: Latency, measure: str) -> list[float]:
    """What one request adds to a measure; nothing where its answer was too short."""
    return [sample_s * 1e3 for sample_s in _SAMPLES[measure](had) if sample_s is not None]


def has_latency(timeline: Timeline) -> bool:
    return timeline.outcome is Outcome.COMPLETED and not timeline.is_slow


def latency(timeline: Timeline) -> Latency:
    """Of one that has some."""
    assert has_latency(timeline) and timeline.sent_at is not None and timeline.ended_at is not None
    tokens = 0 if timeline.usage is None else timeline.usage.completion_tokens
    return Latency(
        timeline.intended_at,
        timeline.sent_at,
        timeline.ended_at,
        timeline.piece_times,
        tokens / timeline.planned.n,
    )


def latency_of_row(row: RequestRow) -> Latency | None:
    """The same, to the microsecond; None of one that has none."""
    if row.outcome != Outcome.COMPLETED.value or row.pause_ms or row.sent_ms is None or row.ended_ms is None:
        return None
    return Latency(
        row.intended_ms / 1e3,
        row.sent_ms / 1e3,
        row.ended_ms / 1e3,
        [[at_ms / 1e3 for at_ms in times] for times in row.piece_ms],
        (row.completion_tokens or 0) / row.n,
    )
