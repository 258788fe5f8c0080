"""Which of several differences are more than chance, looked at together. Pure.

Each is judged by Student's t over its pairs; all together by Holm's procedure ("A Simple Sequentially
Rejective Multiple Test Procedure", 1979), which holds however the measures depend on each other. Of twenty
comparisons of what does not differ, one says that anything does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

_LEVEL = 0.05
Name = TypeVar("Name")


def chance(pairs: Sequence[tuple[float, float]]) -> float:
    """How likely two that do not differ are this far apart: by ratio, or with zeros by difference."""
    assert len(pairs) >= 2
    if all(a > 0 and b > 0 for a, b in pairs):
        apart = [math.log(b / a) for a, b in pairs]
    else:
        apart = [b - a for a, b in pairs]
    mean, deviation = statistics.fmean(apart), statistics.stdev(apart)
    if deviation <= 1e-12 * abs(mean) or not deviation:
        return 0.0 if mean else 1.0
    return two_sided(mean / deviation * math.sqrt(len(apart)), len(apart) - 1)


def beyond_chance(chances: Mapping[Name, float]) -> set[Name]:
    """Those that are still surprising when it counts how many there are."""
    found = set[Name]()
    for place, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        if chances[name] > _LEVEL / (len(chances) - place):
            break
        found.add(name)
    return found


def two_sided(t: float, freedom: int) -> float:
    """How often Student's t is at least as far from 0 (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    is_odd = freedom % 2
    term = total = math.cos(angle) if is_odd else 1.0
    for k in range(3 if is_odd else 2, freedom - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    if freedom == 1:
        total = 0.0
    within = math.sin(angle) * total
    if is_odd:
        within = 2 / math.pi * (angle + within)
    return max(0.0, 1 - within)
