"""What was found, as rows of tables and as JSON. Pure but for the printing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.gateway.carrying import Carried
from benchmarks.gateway.crowds import Memory, Ramp
from benchmarks.gateway.latency import Latency
from benchmarks.gateway.stages import Stages
from benchmarks.report import print_table

MAX_RATIO, MIN_TOKENS_PER_S, MAX_P99_MS = 2.0, 80_000, 20.0


@dataclass(slots=True)
class Found:
    """Parts that were not measured are empty."""

    carried: list[Carried] = field(default_factory=list)
    stages: Stages | None = None
    latencies: list[Latency] = field(default_factory=list)
    memory: Memory | None = None
    ramp: Ramp | None = None

    @property
    def rest_us(self) -> float | None:
        """Of a token over SSE: what no stage accounts for."""
        whole = next((one.us_per_token for one in self.carried if one.kind == "sse"), None)
        return None if whole is None or self.stages is None else whole - self.stages.total_us

    def as_json(self) -> dict[str, Any]:
        return {
            "goals": {
                "ratio": MAX_RATIO, "tokens_per_s_of_a_core": MIN_TOKENS_PER_S, "p99_ms": MAX_P99_MS,
            },
            **asdict(self),
            "rest_us": self.rest_us,
        }  # fmt: skip

    def print(self) -> None:
        """A table for each part that was measured."""
        if self.carried:
            _print_carried(self.carried)
        if self.stages is not None:
            _print_stages(self.stages, self.rest_us)
        if self.latencies:
            _print_latencies(self.latencies)
        _print_crowds(self.memory, self.ramp)


def _print_carried(found: list[Carried]) -> None:
    columns = (
        "stream",
        "µs a token",
        "floor",
        "ratio",
        "interval",
        "tokens/s of a core",
        "tokens an event",
        "lagged",
    )
    rows = [
        (
            one.kind, f"{one.us_per_token:.1f}", f"{one.floor_us:.1f}", f"{one.ratio:.2f}",
            f"{one.ratio_low:.2f}-{one.ratio_high:.2f}", f"{one.tokens_per_s_of_a_core:,.0f}",
            f"{one.tokens_per_event:.3f}", str(one.num_lagging),
        )
        for one in found
    ]  # fmt: skip
    title = (
        f"processor time of the gateway with {found[0].num_streams} streams; wanted: at most {MAX_RATIO:g}"
        f" times the floor, and {MIN_TOKENS_PER_S:,} tokens/s of a core"
    )
    print_table(title, columns, rows)


def _print_stages(stages: Stages, rest_us: float | None) -> None:
    rows = [
        (name.removesuffix("_us").replace("_", " "), f"{value:.2f}") for name, value in asdict(stages).items()
    ]
    if rest_us is not None:
        rows.append(("loop and rest (without the stop check)", f"{rest_us:.2f}"))
    print_table("stages of a token over SSE", ("stage", "µs"), rows)


def _print_latencies(found: list[Latency]) -> None:
    columns = ("streams", "events/s", "phases", "p50, ms", "p99", "max", "core: gateway", "engine", "sink")
    rows = [
        (
            f"{one.num_streams:,}", f"{one.events_per_s:,.0f}", str(one.phases), f"{one.p50_ms:.1f}",
            f"{one.p99_ms:.1f}", f"{one.max_ms:.1f}", f"{one.gateway_share:.0%}", f"{one.engine_share:.0%}",
            f"{one.sink_share:.0%}",
        )
        for one in found
    ]  # fmt: skip
    print_table(f"latency added to a token; wanted: p99 under {MAX_P99_MS:g} ms", columns, rows)


def _print_crowds(memory: Memory | None, ramp: Ramp | None) -> None:
    if memory is not None:
        print(
            f"Memory of {memory.num_streams:,} streams: {memory.idle_bytes / 1024:.1f} KiB an idle one,"
            f" {memory.active_bytes / 1024:.1f} KiB an active one."
        )
    if ramp is not None:
        print(
            f"{ramp.num_streams:,} streams had begun after {ramp.reached_s:.1f} s, {ramp.num_ended} were"
            f" lost; then {ramp.tokens_per_s:,.0f} tokens/s came, {ramp.tokens_share:.1%} of those asked for,"
            f" with {ramp.gateway_share:.0%} of a core (at most {ramp.open_files:,} open files)."
        )
