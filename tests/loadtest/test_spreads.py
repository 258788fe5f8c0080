"""Spreads of lengths and pauses, as they are written on a command line."""

from __future__ import annotations

import random
import statistics

import pytest

from loadtest.spreads import Spread, SpreadError, parse_seconds, parse_tokens


def draws(text: str, count: int = 4000) -> list[int]:
    spread, rng = parse_tokens(text), random.Random(3)
    return [spread.draw_whole(rng) for _ in range(count)]


def test_a_number_is_always_itself() -> None:
    assert set(draws("512", 9)) == {512}


def test_uniform_has_both_ends_and_all_between_alike() -> None:
    found = draws("uniform:3:6")
    assert set(found) == {3, 4, 5, 6}
    assert all(found.count(value) == pytest.approx(1000, abs=120) for value in range(3, 7))


def test_normal_has_mean_and_deviation() -> None:
    found = draws("normal:512:64")
    assert statistics.fmean(found) == pytest.approx(512, abs=5)
    assert statistics.pstdev(found) == pytest.approx(64, abs=3)


def test_lognormal_has_a_median_and_a_long_tail() -> None:
    found = draws("lognormal:512:0.5")
    assert statistics.median(found) == pytest.approx(512, rel=0.03)
    assert statistics.fmean(found) == pytest.approx(512 * 1.133, rel=0.03)  # exp(0.5^2 / 2)


def test_no_length_is_below_one_and_no_pause_below_zero() -> None:
    assert min(draws("normal:2:9")) == 1
    pauses = parse_seconds("normal:0.1:1")
    rng = random.Random(0)
    assert min(pauses.draw_seconds(rng) for _ in range(500)) >= 0
    assert parse_seconds("0") == Spread("fixed", 0.0)
    assert 1.5 <= parse_seconds("uniform:1.5:2").draw_seconds(rng) <= 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a number"),
        ("many", "must be a number"),
        ("uniform:1", "must be a number"),
        ("uniform:1:x", "must be a number"),
        ("zipf:1:2", "must be a number"),
        ("1:2", "must be a number"),
        ("uniform:9:3", "lower end first"),
        ("normal:5:-1", "of 0 or more"),
        ("nan", "of 0 or more"),
        ("normal:inf:1", "of 0 or more"),
        ("0", "whole numbers from 1 on"),
        ("2.5", "whole numbers from 1 on"),
        ("uniform:1.5:3", "whole numbers from 1 on"),
        ("lognormal:0.5:1", "whole numbers from 1 on"),
    ],
)
def test_what_is_no_spread(text: str, message: str) -> None:
    with pytest.raises(SpreadError, match=message):
        parse_tokens(text)
