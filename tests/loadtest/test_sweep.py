"""The sweep over servers whose limits are known."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from loadtest.sweep import MOST_POINTS, Point, SloLimit, Sweep, kneedle

Server = Callable[[float], Point]


def server(capacity: float, slo_limit: float | None = None, noise: float = 0.0) -> Server:
    """Gives what is asked up to ``capacity``; requests keep the SLO up to ``slo_limit``."""
    draws = random.Random(0)

    def point(value: float) -> Point:
        output = 100 * min(value, capacity) * draws.uniform(1 - noise, 1 + noise)
        good = None if slo_limit is None else (0.95 if value <= slo_limit else 0.2)
        return Point(value, output, good)

    return point


def sweep_over(asked: Server, first: list[float], *, whole: bool = False, slo: bool = True) -> Sweep:
    sweep = Sweep(first, whole=whole, attainment=0.9 if slo else None)
    while (value := sweep.next_value()) is not None:
        sweep.add(asked(value))
    return sweep


def values(sweep: Sweep) -> list[float]:
    return [point.value for point in sweep.points]


@pytest.mark.parametrize("limit", [1.0, 3.3, 5.3, 6.9])
def test_the_limit_of_the_slo_is_enclosed_to_a_tenth(limit: float) -> None:
    found = sweep_over(server(7, limit), [1]).limit()
    assert found.within is not None
    assert found.beyond is not None
    assert found.within <= limit < found.beyond <= 1.1 * found.within + 0.01
    assert found.surprises == ()


@pytest.mark.parametrize("limit", [0.03, 0.3])
def test_a_first_rate_that_is_too_high_is_halved(limit: float) -> None:
    found = sweep_over(server(7, limit), [1]).limit()
    assert found.within is not None
    assert found.beyond is not None
    assert found.within <= limit < found.beyond


def test_what_no_load_meets_ends_by_itself() -> None:
    sweep = sweep_over(server(7, 0.0), [1])
    assert sweep.limit() == SloLimit(None, min(values(sweep)))
    assert len(sweep.points) <= MOST_POINTS


@pytest.mark.parametrize("limit", [1, 2, 5, 9, 30])
def test_users_are_whole_and_their_limit_is_exact_where_they_are_few(limit: int) -> None:
    sweep = sweep_over(server(7, limit), [1], whole=True)
    found = sweep.limit()
    assert all(value == int(value) and value >= 1 for value in values(sweep))
    assert found.within is not None
    assert found.beyond is not None
    assert found.within <= limit < found.beyond <= max(found.within + 1, 1.1 * found.within)


def test_one_user_is_the_least() -> None:
    sweep = sweep_over(server(7, 0.5), [1], whole=True)
    assert sweep.limit() == SloLimit(None, 1)


def test_without_an_slo_it_doubles_until_more_brings_no_more_and_looks_closer_at_the_knee() -> None:
    sweep = sweep_over(server(7), [1], slo=False)
    assert values(sweep)[-1] == 16
    knee = sweep.knee()
    assert knee == pytest.approx(7, rel=0.15)
    assert sweep.limit() == SloLimit(None, None)
    assert all(sweep.meets_slo(point) is None for point in sweep.points)


def test_what_is_never_full_has_no_knee_and_an_end() -> None:
    sweep = sweep_over(server(1e9), [1], slo=False)
    assert sweep.knee() is None
    assert len(sweep.points) == MOST_POINTS


def test_all_given_loads_are_measured_however_many() -> None:
    given = [float(value) for value in range(1, 21)]
    assert set(given) <= set(values(sweep_over(server(7, 5), given)))


def test_noise_hides_no_knee() -> None:
    for seed in range(20):
        draws = random.Random(seed)
        sweep = Sweep([1], whole=True, attainment=None)
        while (value := sweep.next_value()) is not None:
            sweep.add(Point(value, 100 * min(value, 12) * draws.uniform(0.97, 1.03), None))
        knee = sweep.knee()
        assert knee is not None
        assert 8 <= knee <= 20


def test_a_load_that_was_not_there_says_nothing_and_ends_the_climb() -> None:
    sweep = Sweep([1], whole=False, attainment=0.9)
    while (value := sweep.next_value()) is not None:
        sweep.add(Point(value, 100 * value, 1.0, offered=value < 8))
    assert values(sweep) == [1, 2, 4, 8]
    assert sweep.meets_slo(sweep.points[-1]) is None
    assert sweep.limit() == SloLimit(4, None)


def test_a_load_that_meets_the_slo_above_one_that_does_not_is_a_surprise() -> None:
    sweep = Sweep([1, 2, 3], whole=False, attainment=0.9)
    for value, good in ((1, 1.0), (2, 0.5), (3, 0.95)):
        sweep.add(Point(value, 100.0, good))
    assert sweep.limit() == SloLimit(1, 2, (3,))


# ---- what so few requests can show -----------------------------------------------------------------


def counted(limit: float, num_requests: int) -> Server:
    """Fewer requests keep the SLO the higher the load: at ``limit`` it is nine of ten."""

    def point(value: float) -> Point:
        share = max(0.0, 1 - 0.1 * (value / limit) ** 3)
        return Point(
            value, 100 * value, round(share * num_requests) / num_requests, num_requests=num_requests
        )

    return point


@pytest.mark.parametrize("num_requests", [50, 200, 2000])
def test_the_limit_is_not_known_better_than_the_requests_tell(num_requests: int) -> None:
    sweep = sweep_over(counted(5.0, num_requests), [1])
    found = sweep.limit()
    assert found.within is not None
    assert found.beyond is not None
    assert found.within < 5 < found.beyond
    for point in sweep.points:
        assert point.interval is not None
        if point.value in found.in_doubt:
            assert point.interval.low < 0.9 <= point.interval.high
    assert len(sweep.points) <= MOST_POINTS


def test_more_requests_narrow_it() -> None:
    ratios = []
    for num_requests in (50, 200, 5000):
        found = sweep_over(counted(5.0, num_requests), [1]).limit()
        assert found.within is not None and found.beyond is not None
        ratios.append(found.beyond / found.within)
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 1.5 * ratios[-1]


def test_a_lowest_load_in_doubt_is_halved_once() -> None:
    sweep = sweep_over(lambda value: Point(value, value, 0.94, num_requests=50), [4])
    assert values(sweep)[0] == 2
    assert sweep.limit().within is None
    assert sweep.limit().in_doubt == tuple(values(sweep))


def test_a_load_that_the_server_does_not_bear_is_missed_however_good_its_requests_were() -> None:
    sweep = sweep_over(lambda value: Point(value, 100 * min(value, 7), 1.0, is_sustained=value <= 7), [1])
    found = sweep.limit()
    assert found.within is not None
    assert found.beyond is not None
    assert found.within <= 7 < found.beyond <= 1.1 * found.within + 0.01


def test_a_server_that_answers_nothing_meets_nothing() -> None:
    sweep = sweep_over(lambda value: Point(value, 0.0, None), [4])
    assert sweep.limit().within is None
    assert sweep.knee() is None
    assert sweep.is_saturated()


# ---- the knee --------------------------------------------------------------------------------------


def test_kneedle_finds_the_bend_of_a_line_that_bends_once() -> None:
    assert kneedle([1, 2, 3, 4, 5, 6], [1, 2, 3, 3, 3, 3]) == 2


def test_kneedle_on_the_curve_of_its_paper() -> None:
    """y = 5 - 1 / x from 0.1 to 1: it is furthest above its chord at the root of 0.1."""
    xs = [index / 10 for index in range(1, 11)]
    found = kneedle(xs, [5 - 1 / x for x in xs])
    assert found is not None
    assert xs[found] == 0.3


@pytest.mark.parametrize(
    ("loads", "outputs"),
    [
        ([1, 2, 3], [1, 2, 2]),  # too few
        ([1, 2, 3, 4], [1, 2, 3, 4]),  # a line
        ([1, 2, 3, 4], [5, 5, 5, 5]),  # flat
        ([1, 2, 3, 4], [1, 2, 4, 8]),  # rises ever more
    ],
)
def test_where_there_is_no_knee(loads: list[float], outputs: list[float]) -> None:
    assert kneedle(loads, outputs) is None


def test_a_flat_curve_with_noise_has_no_knee() -> None:
    for seed in range(50):
        draws = random.Random(seed)
        outputs = [100 * draws.uniform(0.98, 1.02) for _ in range(7)]
        assert kneedle([1, 2, 4, 8, 16, 32, 64], outputs) is None


def test_what_falls_when_it_is_overloaded_has_its_knee_where_it_was_best() -> None:
    assert kneedle([1, 2, 4, 8, 16], [1, 2, 4, 3, 2]) == 2
