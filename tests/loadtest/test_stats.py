"""Percentiles and their intervals, beside what theory and other code say."""

from __future__ import annotations

import random
import statistics

import pytest

from loadtest.intervals import tail
from loadtest.results import Distribution, Interval
from loadtest.stats import MIN_REQUESTS, PERCENTILES, distribution, distribution_of_runs


def found(runs: list[list[list[float]]]) -> Distribution:
    result = distribution_of_runs(runs)
    assert result is not None
    return result


def singles(samples: list[float]) -> list[list[float]]:
    """A run whose requests have one sample each."""
    return [[sample] for sample in samples]


def drawn(count: int, seed: int = 0) -> list[float]:
    random_ = random.Random(seed)
    return [random_.expovariate(1.0) for _ in range(count)]


def width(interval: Interval) -> float:
    return interval.high - interval.low


@pytest.mark.parametrize("count", [2, 3, 100, 777])
def test_percentiles_interpolate_between_the_two_nearest_samples(count: int) -> None:
    samples = drawn(count)
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    for result in (distribution(samples), found([singles(samples)])):
        assert result is not None
        for name in PERCENTILES:
            assert getattr(result, name) == pytest.approx(cuts[int(name[1:]) - 1], rel=1e-12)
        assert (result.count, result.max) == (count, max(samples))
        assert result.mean == pytest.approx(statistics.fmean(samples), rel=1e-12)


def test_one_sample_is_all_of_its_percentiles() -> None:
    assert distribution([3.0]) == Distribution(1, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0)


def test_nothing_has_no_distribution() -> None:
    assert distribution([]) is None
    assert distribution_of_runs([]) is None
    assert distribution_of_runs([[], [[], []]]) is None


def test_the_interval_of_a_mean_is_that_of_theory() -> None:
    samples = drawn(2000)
    interval = found([singles(samples)]).intervals["mean"]
    error = 1.96 * statistics.stdev(samples) / 2000**0.5
    mean = statistics.fmean(samples)
    assert (interval.low, interval.high) == pytest.approx((mean - error, mean + error), abs=0.15 * error)


def test_the_interval_of_a_median_is_that_of_theory() -> None:
    """Of order statistics: the ranks n / 2 ± 1.96 √n / 2."""
    samples = sorted(drawn(2000))
    interval = found([singles(samples)]).intervals["p50"]
    expected = samples[round(1000 - 0.98 * 2000**0.5)], samples[round(1000 + 0.98 * 2000**0.5)]
    assert (interval.low, interval.high) == pytest.approx(expected, abs=0.3 * (expected[1] - expected[0]))


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """The true median of the distribution is ln 2. Of 40 intervals 38 should hold it."""
    held = 0
    for seed in range(40):
        interval = found([singles(drawn(60, seed))]).intervals["p50"]
        held += interval.low <= 0.6931 <= interval.high
    assert 34 <= held <= 40


def test_samples_of_one_request_are_not_taken_for_independent() -> None:
    values = drawn(400)
    alone, repeated = found([singles(values)]), found([[[value] * 20 for value in values]])
    assert repeated.count == 20 * alone.count
    for name in ("mean", "p50", "p90"):
        assert width(repeated.intervals[name]) == pytest.approx(width(alone.intervals[name]), rel=0.1)


def test_what_differs_from_run_to_run_widens_the_interval() -> None:
    values = drawn(300)
    alike = [singles(values) for _ in range(4)]
    shifted = [singles([value + 5.0 * number for value in values]) for number in range(4)]
    assert width(found(alike).intervals["mean"]) < 0.3
    assert width(found(shifted).intervals["mean"]) > 5.0


@pytest.mark.parametrize(("number", "t"), [(6, 2.571), (12, 2.201)])
def test_few_runs_have_intervals_as_wide_as_t_would_make_them(number: int, t: float) -> None:
    """Of what differs from run to run alone. Plain percentiles are narrower by three tenths, of six runs."""
    levels = [100.0 + level for level in drawn(number)]
    interval = found([singles([level] * 20) for level in levels]).intervals["mean"]
    assert width(interval) == pytest.approx(2 * t * statistics.stdev(levels) / number**0.5, rel=0.15)


@pytest.mark.parametrize("number", [6, 10, 30, 1000])
def test_what_is_left_out_is_less_the_fewer_there_were_to_draw_from(number: int) -> None:
    """By t, of tables: 2.571, 2.262, 2.045 and 1.962 for 5, 9, 29 and 999 degrees of freedom."""
    quantile = {6: 2.571, 10: 2.262, 30: 2.045, 1000: 1.962}[number]
    wide = quantile * (number / (number - 1)) ** 0.5
    assert tail(number) == pytest.approx(statistics.NormalDist().cdf(-wide), rel=0.02)
    assert tail(number) < 0.025


def test_an_interval_with_an_unknown_end_is_left_out() -> None:
    """A p99 may be larger than all of a hundred samples, and a median than all of five."""
    assert found([singles(drawn(5))]).intervals == {}
    assert MIN_REQUESTS == 6
    assert set(found([singles(drawn(8))]).intervals) == {"mean", "p50"}
    assert set(found([singles(drawn(100))]).intervals) == {"mean", "p50", "p90", "p95"}
    assert set(found([singles(drawn(400))]).intervals) == {"mean", *PERCENTILES}


def test_equal_samples_have_an_interval_without_width() -> None:
    assert found([singles([2.0] * 400)]).intervals == dict.fromkeys(
        ("mean", *PERCENTILES), Interval(2.0, 2.0)
    )


def test_the_same_samples_give_the_same_intervals() -> None:
    runs = [singles(drawn(50)), singles(drawn(70, 1))]
    assert found(runs) == found(runs)


def test_requests_and_runs_without_samples_change_nothing() -> None:
    values = singles(drawn(100))
    assert found([values, []]) == found([[*values, []], [[], []]]) == found([values])


def test_many_samples_are_drawn_less_often_and_take_no_minutes() -> None:
    random_ = random.Random(0)
    run = [[random_.random() for _ in range(200)] for _ in range(500)]
    interval = found([run]).intervals["p99"]
    assert interval.low < 0.99 < interval.high
