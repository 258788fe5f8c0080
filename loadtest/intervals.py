"""Which of a bootstrap's draws are an interval's ends, however few there were to draw from. Pure.

The plain 2.5 and 97.5 % give intervals that are too narrow for few samples. These are the percentiles that t
would have (the expanded percentile interval of Hesterberg, "What Teachers Should Know About the Bootstrap",
2015).
"""

from __future__ import annotations

import math
import statistics

FEWEST = 6  # from fewer no interval holds 95 %: with five, all lie on one side by chance once in 16 times


def tail(num_drawn_from: int) -> float:
    """The share of draws to leave out at either end; of fewer than two, next to none."""
    freedom = max(1, num_drawn_from - 1)
    wide = math.sqrt(1 + 1 / freedom) * _t_quantile(freedom)
    return statistics.NormalDist().cdf(-wide)


def _t_quantile(freedom: int) -> float:
    """Student's t at 97.5 %, by its series about the normal's (Abramowitz and Stegun, 26.7.5)."""
    z, f = statistics.NormalDist().inv_cdf(0.975), freedom
    return float(
        z
        + (z**3 + z) / (4 * f)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * f**3)
    )
