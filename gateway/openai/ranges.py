"""Ranges of numbers in requests. NaN and infinity are in none. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """From ``low``, itself left out if ``low_is_open``, to ``high``. Its text completes "must be ..."."""

    low: float
    high: float
    low_is_open: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.low_is_open else value >= self.low
        return math.isfinite(value) and above and value <= self.high

    def __str__(self) -> str:
        return f"{'above' if self.low_is_open else 'at least'} {self.low:g} and at most {self.high:g}"
