"""What happened to one request, by the clock of the run. Records only; ``summary`` makes figures of them.

Times are seconds from the start of the run, on a monotonic clock, taken as soon as the event loop hands
over what came. Latency has two origins: ``intended_at``, when the schedule wanted the request sent, and
``sent_at``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from loadtest.plan import PlannedRequest


class Outcome(Enum):
    """How it ended; only COMPLETED ones have latencies."""

    COMPLETED = "completed"
    LEFT = "left"  # the client left on purpose, as planned
    FAILED = "failed"  # the server's doing, or the network's; ``reason`` says which
    UNFINISHED = "unfinished"  # the run was over before it was


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counts them. ``cached_tokens`` is None where it does not say."""

    prompt_tokens: int
    completion_tokens: int  # of all choices
    cached_tokens: int | None = None


@dataclass(slots=True)
class Timeline:
    """Filled in by whoever sends the request, in the order of the fields."""

    planned: PlannedRequest
    turn: int  # 0 for the first of a conversation
    expected_prompt_tokens: int  # what usage should say: of a later turn, its history counts
    intended_at: float
    sent_at: float | None = None  # None: it never was
    capped_s: float = 0.0  # of the time between the two: waiting because max_concurrency was reached
    resent: int = 0  # times it was put on another connection, because the server was closing the first one
    piece_times: list[list[float]] = field(default_factory=list)  # for each choice, of each piece with text
    piece_tokens: list[list[int]] | None = None  # beside piece_times, where the server tells; else None
    ended_at: float | None = None  # of one that is UNFINISHED, when the run was over; None: never sent
    outcome: Outcome = Outcome.UNFINISHED
    reason: str = ""  # of a failure: a short, stable name such as "http 429 rate_limit_exceeded"
    usage: Usage | None = None
    finish_reasons: list[str] = field(default_factory=list)

    @property
    def is_slow(self) -> bool:
        """Whether its client reads slowly: what it waits is partly its own doing."""
        return self.planned.reading.pause_s > 0

    @property
    def first_at(self) -> float | None:
        """When the first text of any choice came."""
        return min((times[0] for times in self.piece_times if times), default=None)
