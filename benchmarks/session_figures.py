"""What a run of sessions comes to: hits against what could be hit, starts against what the tiers allow. Pure.

A returning turn is bound by what it must load at its tier's bandwidth, as the copies of the run measured it,
and by one step for the tokens that are new, as the engine's own fit of its steps has it (``steps_over_fit``
checks that fit). Nothing is allowed for the gateway, the client, or steps of others that are under way.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.processors import ProcessorUse
from benchmarks.session_results import (
    BLOCK_SIZE,
    TIERS,
    Reply,
    Samples,
    StepAlone,
    TurnResult,
    busy_s,
    quantile,
)
from tiering.movers.disk import DISK_THREADS

TARGET = 1.5  # times the bound
MAX_BUSY = 0.7  # of the server without tiers
_LOADS = {"host": ("swap_in", 1), "disk": ("promote", DISK_THREADS)}  # kind of move, and threads that do it
_MOVES = ("swap_out", "swap_in", "demote", "promote")
COMPUTED = "computed"
BELOW = "host or disk"


@dataclass(slots=True)
class Run:
    """What was measured on one server. ``everything`` that was answered, and ``results``, which count.

    These took ``seconds``; ``before`` and ``after`` are the server's metrics then. ``history_tokens``: of all
    sessions at the start. ``costs``: what the engine says of its speed at the end.
    """

    name: str
    num_blocks: dict[str, int] = field(default_factory=dict)
    history_tokens: int = 0
    everything: list[TurnResult] = field(default_factory=list)
    results: list[TurnResult] = field(default_factory=list)
    seconds: float = 0.0
    before: Samples = field(default_factory=dict)
    after: Samples = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)
    steps_alone: list[StepAlone] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    use: ProcessorUse = field(default_factory=ProcessorUse)

    def grown(self, name: str) -> float:
        return self.after.get(name, 0.0) - self.before.get(name, 0.0)

    @property
    def busy(self) -> float:
        return (busy_s(self.after) - busy_s(self.before)) / self.seconds

    @property
    def delivered(self) -> list[TurnResult]:
        return [result for result in self.results if not result.reply.error]

    @property
    def failures(self) -> list[str]:
        return [result.reply.error for result in self.results if result.reply.error]


@dataclass(frozen=True, slots=True)
class Prices:
    """What loading and computing take here. ``bytes_per_s`` by tier; none where nothing was loaded."""

    block_bytes: int
    bytes_per_s: Mapping[str, float]
    costs: Mapping[str, Any]

    @classmethod
    def of(cls, run: Run, block_bytes: int) -> Prices:
        rates = {}
        for tier, (kind, threads) in _LOADS.items():
            seconds = run.grown(f"tidegate_kv_transfer_seconds_sum{{kind={kind}}}")
            if seconds > 0:
                num_bytes = run.grown(f"tidegate_kv_transfer_bytes_total{{kind={kind}}}")
                rates[tier] = threads * num_bytes / seconds
        return cls(block_bytes, rates, run.costs)

    def bytes_of(self, result: TurnResult) -> float:
        """To be loaded."""
        return sum(result.found[tier] for tier in _LOADS) / BLOCK_SIZE * self.block_bytes

    def load_s(self, result: TurnResult) -> float:
        return sum(
            result.found[tier] / BLOCK_SIZE * self.block_bytes / rate
            for tier, rate in self.bytes_per_s.items()
        )

    def step_s(self, cached: int, new: int) -> float:
        """Seconds to compute what is new behind what is cached, alone in its steps."""
        pairs = new * cached + new * (new + 1) / 2
        num_steps = -(-new // 512)
        costs = self.costs
        return float(num_steps * costs["step_s"] + new * costs["token_s"] + pairs * costs["pair_s"])

    def bound_s(self, result: TurnResult) -> float:
        return self.load_s(result) + self.step_of(result)

    def step_of(self, result: TurnResult) -> float:
        return self.step_s(result.reply.cached_tokens, result.new_tokens)


def where(result: TurnResult) -> str:
    """The tier that most of a turn's history came from; ``computed`` if less than half of it was found."""
    if result.reply.cached_tokens < result.possible_tokens / 2:
        return COMPUTED
    return max(TIERS, key=lambda tier: result.found[tier])


def hit_rates(run: Run) -> dict[str, float]:
    """Shares of the tokens that could have been found, by tier and in all; in ``ceiling_tokens`` how many."""
    possible = sum(result.possible_tokens for result in run.delivered)
    found = {tier: sum(result.found[tier] for result in run.delivered) for tier in TIERS}
    rates = {tier: tokens / possible if possible else 0.0 for tier, tokens in found.items()}
    return {**rates, "all": sum(rates.values()), "ceiling_tokens": possible}


def starts(run: Run, off: Run, prices: Prices) -> dict[str, dict[str, Any]]:
    """Times to the first word by where the history was, against the bound and the server without tiers."""
    beside = {(result.turn.session, result.turn.number): result for result in off.delivered}
    rows: dict[str, list[TurnResult]] = {tier: [] for tier in TIERS}
    rows |= {COMPUTED: [], BELOW: [], "all": []}
    for result in run.delivered:
        rows[where(result)].append(result)
        rows["all"].append(result)
    rows[BELOW] = rows["host"] + rows["disk"]
    return {
        name: _row(results, [beside[key] for result in results if (key := _key(result)) in beside], prices)
        for name, results in rows.items()
        if results
    }


def _key(result: TurnResult) -> tuple[int, int]:
    return result.turn.session, result.turn.number


def _row(results: Sequence[TurnResult], beside: Sequence[TurnResult], prices: Prices) -> dict[str, Any]:
    ttfts, off = _ttfts(results), _ttfts(beside)
    ratios = [result.reply.ttft_s / prices.bound_s(result) for result in results]
    return {
        "turns": len(results),
        "exactly_attributed": sum(result.is_alone for result in results),
        "history_tokens": statistics.median(result.possible_tokens for result in results),
        "load_mb": statistics.median(prices.bytes_of(result) for result in results) / 1e6,
        "load_ms": statistics.median(prices.load_s(result) for result in results) * 1e3,
        "step_ms": statistics.median(prices.step_of(result) for result in results) * 1e3,
        "median_ms": quantile(ttfts, 0.5) * 1e3,
        "p90_ms": quantile(ttfts, 0.9) * 1e3,
        "median_over_bound": statistics.median(ratios),
        "p90_over_bound": quantile(ratios, 0.9),
        "off_median_ms": quantile(off, 0.5) * 1e3,
        "off_p90_ms": quantile(off, 0.9) * 1e3,
    }


def _ttfts(results: Sequence[TurnResult]) -> list[float]:
    return [result.reply.ttft_s for result in results]


def differing_tokens(results: Sequence[TurnResult]) -> dict[str, float]:
    """Share of turns that did not find all that had been computed, where nothing was ever lost.

    What is generated is told as text; where that text is read as other tokens than were generated, the rest
    of the history has other names. ``blocks`` is how many it costs such a turn, on average.
    """
    lost = [
        (result.previous.input_tokens + result.previous.output_tokens - 1) // BLOCK_SIZE
        - result.reply.cached_tokens // BLOCK_SIZE
        for result in results
        if result.previous is not None
    ]
    hit = [blocks for blocks in lost if blocks > 0]
    return {
        "turns": len(lost),
        "share": len(hit) / len(lost) if lost else 0.0,
        "blocks": statistics.mean(hit) if hit else 0.0,
    }


def steps_over_fit(run: Run, prices: Prices) -> float | None:
    """Of steps that were measured alone: their seconds by those that the bound has for them; the median."""
    ratios = [step.seconds / prices.step_s(step.cached_tokens, step.new_tokens) for step in run.steps_alone]
    return statistics.median(ratios) if ratios else None


def moved_bytes(run: Run) -> dict[str, float]:
    return {kind: run.grown(f"tidegate_kv_transfer_bytes_total{{kind={kind}}}") for kind in _MOVES}


def unequal(first: Mapping[tuple[int, int], Reply], second: Mapping[tuple[int, int], Reply]) -> list[str]:
    """Turns, by session and number, whose tokens or their log probabilities are not the same in both."""
    return [
        f"turn {key[1]} of session {key[0]}"
        for key in sorted(first.keys() | second.keys())
        if key not in first or key not in second or not _same(first[key], second[key])
    ]


def _same(one: Reply, other: Reply) -> bool:
    fields = ("text", "tokens", "input_tokens", "output_tokens", "error")
    return all(getattr(one, name) == getattr(other, name) for name in fields)
