"""What was seen of the servers. Records only."""

from __future__ import annotations

import msgspec

from benchmarks.cpu_engine.floor import Constants, Probe


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a server did under a load. ``faults``: what the client finds with these figures."""

    output_tok_s: float
    ttft_ms: float  # median
    itl_ms: float | None  # median; None where answers came in one piece
    itl_p99_ms: float | None
    faults: list[str] = []


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One load, asked of every server. ``drift`` is from the probe before to the one after."""

    load: str
    number: int
    order: list[str]
    seen: dict[str, Seen]
    constants: Constants
    before: Probe
    after: Probe
    was_repeated: bool = False

    @property
    def drift(self) -> float:
        return self.before.drift_to(self.after)


class Startups(msgspec.Struct, frozen=True, kw_only=True):
    """Of each server by name: seconds from its start to a first token, one for each start, and its memory."""

    start_s: dict[str, list[float]]
    memory_bytes: dict[str, int]
