"""Shares and what they may really be."""

from __future__ import annotations

import math
import random

import pytest

from loadtest.shares import wilson


def test_the_intervals_of_wilson() -> None:
    """As in Brown, Cai and DasGupta, "Interval Estimation for a Binomial Proportion" (2001), by hand."""
    half = wilson(0.5, 10)
    assert (half.low, half.high) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    none, every = wilson(0.0, 10), wilson(1.0, 10)
    assert (none.low, none.high) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert (every.low, every.high) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert (wilson(0.9, math.inf).low, wilson(0.9, math.inf).high) == (0.9, 0.9)


def test_they_hold_the_truth_as_often_as_they_say() -> None:
    draws, held = random.Random(0), 0
    for _ in range(1000):
        found = wilson(sum(draws.random() < 0.9 for _ in range(100)) / 100, 100)
        held += found.low <= 0.9 <= found.high
    assert 925 <= held <= 975
