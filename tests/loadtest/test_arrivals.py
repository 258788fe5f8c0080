"""Arrivals: exactly the load that was asked for, in the pattern that was."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.arrivals import at_rate, constant, gamma, mean_rate, on_ramp


def gaps(offsets: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(offsets)]


def test_constant() -> None:
    assert at_rate(constant(4), 2.0) == [0.0, 0.5, 1.0, 1.5]


@given(
    st.integers(2, 200), st.floats(1e-3, 100), st.floats(0.01, 1000), st.integers(0, 2**32)
)  # fmt: skip
def test_random_arrivals_have_exactly_the_rate_asked_for(
    count: int, burstiness: float, rate: float, seed: int
) -> None:
    offsets = at_rate(gamma(count, burstiness, random.Random(seed)), rate)
    assert len(offsets) == count
    assert offsets == sorted(offsets)
    assert offsets[0] == 0.0
    assert mean_rate(offsets) == pytest.approx(rate)


@pytest.mark.parametrize("burstiness", [0.1, 0.5, 1.0, 4.0])
def test_gaps_vary_as_the_burstiness_says(burstiness: float) -> None:
    drawn = gaps(gamma(20_000, burstiness, random.Random(1)))
    assert statistics.fmean(drawn) == pytest.approx(1.0)
    assert statistics.pstdev(drawn) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_a_poisson_process_is_as_likely_to_be_quiet_as_it_should_be() -> None:
    drawn = gaps(gamma(20_000, 1.0, random.Random(2)))
    assert sum(gap > 1 for gap in drawn) / len(drawn) == pytest.approx(0.368, abs=0.01)


def test_one_arrival_comes_at_once() -> None:
    assert gamma(1, 1.0, random.Random(0)) == constant(1) == on_ramp([0.0], 1.0, 9.0) == [0.0]
    assert mean_rate([0.0]) is None


@pytest.mark.parametrize(("first", "last"), [(1.0, 9.0), (9.0, 1.0), (3.0, 3.0)])
def test_a_ramp_goes_linearly_from_one_rate_to_the_other(first: float, last: float) -> None:
    count = 10_000
    offsets = on_ramp(constant(count), first, last)
    seconds = 2 * count / (first + last)
    assert 1 / (offsets[1] - offsets[0]) == pytest.approx(first, rel=0.01)
    assert 1 / (offsets[-1] - offsets[-2]) == pytest.approx(last, rel=0.01)
    half = sum(offset < seconds / 2 for offset in offsets)
    assert half == pytest.approx(seconds / 2 * (first + (first + last) / 2) / 2, abs=2)
    assert offsets[-1] == pytest.approx(seconds, abs=2 / last)
