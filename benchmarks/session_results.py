"""What came of the turns of sessions, noted while they run. Pure. Times are of the monotonic clock."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.session_plan import PlannedTurn

TIERS = ("device", "host", "disk")
BLOCK_SIZE = 16
Json = dict[str, Any]
Samples = Mapping[str, float]
"""What ``/metrics`` says, by name and labels."""


@dataclass(slots=True)
class Reply:
    """One answer. ``error`` is empty if it came whole; ``first_at`` is when its first word came.

    ``tokens``: each with its log probability, if they were asked for. ``last``: its last event.
    """

    sent_at: float
    first_at: float = 0.0
    ended_at: float = 0.0
    response_id: str = ""
    text: str = ""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    tokens: list[tuple[str, float]] = field(default_factory=list)
    error: str = ""
    last: Json = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.sent_at

    def take(self, response: Json) -> None:
        """What the Response object says of a delivered answer."""
        self.response_id = response["id"]
        usage = response["usage"]
        self.input_tokens, self.output_tokens = usage["input_tokens"], usage["output_tokens"]
        self.cached_tokens = usage["input_tokens_details"]["cached_tokens"]
        for item in response["output"]:
            for part in item["content"]:
                self.text += part["text"]
                self.tokens += [(entry["token"], entry["logprob"]) for entry in part["logprobs"] or ()]


@dataclass(slots=True)
class Hits:
    """What turns that began at overlapping times found: tokens by tier, once that is known."""

    num_turns: int = 0
    tokens: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class TurnResult:
    """One turn. ``late_s``: by which it was sent after it was due. ``previous``: the answer before it."""

    turn: PlannedTurn
    reply: Reply
    previous: Reply | None
    late_s: float = 0.0
    hits: Hits = field(default_factory=Hits)

    @property
    def possible_tokens(self) -> int:
        """The full blocks of the history before it."""
        if self.previous is None:
            return 0
        return (self.previous.input_tokens + self.previous.output_tokens) // BLOCK_SIZE * BLOCK_SIZE

    @property
    def new_tokens(self) -> int:
        """That had to be computed before the first word."""
        return self.reply.input_tokens - self.reply.cached_tokens

    @property
    def found(self) -> dict[str, float]:
        """Tokens by tier; exact if no other turn began at the same time."""
        total = sum(self.hits.tokens.values())
        share = self.reply.cached_tokens / total if total else 0.0
        return {tier: self.hits.tokens.get(tier, 0.0) * share for tier in TIERS}

    @property
    def is_alone(self) -> bool:
        return self.hits.num_turns == 1


@dataclass(frozen=True, slots=True)
class StepAlone:
    """Engine seconds for new tokens behind cached ones, with nothing beside them."""

    seconds: float
    cached_tokens: int
    new_tokens: int


def hits_name(tier: str) -> str:
    return f"tidegate_kv_hit_tokens_total{{tier={tier}}}"


def busy_s(samples: Samples) -> float:
    """Seconds that the engine has spent in steps."""
    return sum(value for name, value in samples.items() if name.startswith("tidegate_step_seconds_sum"))


def quantile(values: list[float], share: float) -> float:
    """Of a list in any order; 0 of an empty one."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
