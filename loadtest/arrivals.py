"""When requests come under an open load. Pure.

Offsets are first made in mean gaps, then given a rate. All start at 0, and the last of ``count`` comes at
``count`` - 1 mean gaps: the load is what was asked for, however few are drawn. The pattern alone is left to
chance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate


def constant(count: int) -> list[float]:
    """One after another, in mean gaps."""
    return [float(index) for index in range(count)]


def gamma(count: int, burstiness: float, rng: random.Random) -> list[float]:
    """In mean gaps, with gaps from a gamma distribution of that shape: 1 is Poisson, less is burstier.

    Their coefficient of variation is 1 / sqrt(burstiness). They are scaled so that they sum up to
    ``count`` - 1.
    """
    assert count >= 1 and burstiness > 0
    gaps = [rng.gammavariate(burstiness, 1.0) for _ in range(count - 1)]
    total = math.fsum(gaps)
    if not total:  # the shape is so small that all of them vanished
        return constant(count)
    return [0.0, *(passed * (count - 1) / total for passed in accumulate(gaps))]


def at_rate(offsets: Sequence[float], rate: float) -> list[float]:
    """Seconds, at so many a second."""
    return [offset / rate for offset in offsets]


def on_ramp(offsets: Sequence[float], first_rate: float, last_rate: float) -> list[float]:
    """Seconds, at a rate that goes linearly from one to the other while all of them come.

    After t seconds of T, first_rate * t + (last_rate - first_rate) * t^2 / 2T have come; solved for t.
    """
    seconds = 2 * len(offsets) / (first_rate + last_rate)
    growth = (last_rate - first_rate) / (2 * seconds)
    return [
        2 * offset / (first_rate + math.sqrt(max(first_rate**2 + 4 * growth * offset, 0.0)))
        for offset in offsets
    ]


def mean_rate(offsets: Sequence[float]) -> float | None:
    """Arrivals a second between the first and the last; None where all come at once."""
    span_s = offsets[-1] - offsets[0]
    return (len(offsets) - 1) / span_s if span_s else None
