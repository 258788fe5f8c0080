"""A service level objective: limits that a request must keep, all of them, to count as good. Pure.

The measures are those of goodput in DistServe (Zhong et al., OSDI'24, arXiv 2401.09670), TTFT and TPOT, and
two more. They count from the intended send time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from loadtest.latency import has_latency, latency
from loadtest.timeline import Timeline

_MEASURES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e", "e2el": "e2e"}
_UNITS = {"ms": 1e-3, "s": 1.0}
_LIMIT = re.compile(r"\s*(\w+)\s*=\s*(\d+(?:\.\d+)?|\.\d+)\s*(ms|s)\s*", re.ASCII)


class SloError(ValueError):
    """The text is no SLO. The message is one plain sentence for the user."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds; None: no limit. At least one is set."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None  # of every gap between two pieces: it says how long a stream may stall
    e2e_s: float | None = None

    def met(self, timeline: Timeline) -> bool:
        """A request without latencies has not met it. What an answer is too short to have is met."""
        if not has_latency(timeline):
            return False
        had = latency(timeline)
        longest_gap_s = max(had.gaps_s, default=None)
        return (
            _within(had.ttft_s, self.ttft_s)
            and _within(had.tpot_s, self.tpot_s)
            and _within(longest_gap_s, self.itl_s)
            and _within(had.e2e_s, self.e2e_s)
        )

    def as_ms(self) -> dict[str, float]:
        """The limits that are set, by measure."""
        limits = {"ttft": self.ttft_s, "tpot": self.tpot_s, "itl": self.itl_s, "e2e": self.e2e_s}
        return {measure: limit * 1e3 for measure, limit in limits.items() if limit is not None}


def parse(text: str) -> Slo:
    """Of ``ttft=500ms,tpot=50ms,itl=200ms,e2e=2s``: any of these, with units. Raises SloError."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        found = _LIMIT.fullmatch(part)
        if found is None:
            raise SloError(f"{part.strip()!r} is no limit; one is written like ttft=500ms or e2e=2s.")
        name, number, unit = found.groups()
        measure = _MEASURES.get(name)
        if measure is None:
            raise SloError(f"{name} is no measure of an SLO; it knows ttft, tpot, itl and e2e.")
        if measure in limits:
            raise SloError(f"{name} has two limits.")
        limits[measure] = float(number) * _UNITS[unit]
        if not limits[measure]:
            raise SloError(f"{name} must have a limit above 0.")
    return Slo(**{f"{measure}_s": limit for measure, limit in limits.items()})


def _within(had: float | None, limit: float | None) -> bool:
    return had is None or limit is None or had <= limit
