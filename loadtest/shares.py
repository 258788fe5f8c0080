"""How far to believe a share of so many. Pure."""

from __future__ import annotations

import math
import statistics

from loadtest.results import Interval

_Z = statistics.NormalDist().inv_cdf(0.975)


def wilson(share: float, count: float) -> Interval:
    """95 % of the share that these are a sample of (Wilson, "Probable Inference", 1927).

    It holds where none or all are of the kind, too. Of infinitely many, the share itself.
    """
    assert 0 <= share <= 1 and count > 0
    by_count = _Z**2 / count
    centre = (share + by_count / 2) / (1 + by_count)
    half = _Z / (1 + by_count) * math.sqrt((share * (1 - share) + by_count / 4) / count)
    return Interval(max(0.0, centre - half), min(1.0, centre + half))
