"""How large each part of the measurement is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.gateway.running import Pace

Part = Literal["carry", "stages", "latency", "memory", "ramp"]
PARTS: tuple[Part, ...] = ("carry", "stages", "latency", "memory", "ramp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Streams and pace of each part; ``rounds`` of ``length_s`` of what is compared."""

    carry_streams: int
    carry_pace: Pace
    rounds: int
    length_s: float
    stage_rounds: int
    latency_streams: int
    latency_paces: tuple[Pace, ...]
    watch_each: int
    memory_streams: int
    ramp_streams: int
    crowd_pace: Pace


FULL = Scale(
    carry_streams=256, carry_pace=Pace(50.0), rounds=9, length_s=3.0, stage_rounds=40,
    latency_streams=2000, latency_paces=(Pace(20.0), Pace(20.0, 20)), watch_each=20,
    memory_streams=2000, ramp_streams=10_000, crowd_pace=Pace(1.0, 20),
)  # fmt: skip
QUICK = Scale(
    carry_streams=16, carry_pace=Pace(40.0), rounds=1, length_s=0.2, stage_rounds=1,
    latency_streams=16, latency_paces=(Pace(40.0),), watch_each=2,
    memory_streams=16, ramp_streams=16, crowd_pace=Pace(40.0),
)  # fmt: skip
