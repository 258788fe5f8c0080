"""What is more than chance, of many measures together."""

from __future__ import annotations

import random

import pytest

from loadtest.significance import beyond_chance, chance, two_sided


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (5, 2.57058), (10, 2.22814), (11, 2.20099)],
)
def test_the_table_of_student(freedom: int, t: float) -> None:
    assert two_sided(t, freedom) == pytest.approx(0.05, abs=1e-6)
    assert two_sided(-t, freedom) == two_sided(t, freedom)
    assert two_sided(0.0, freedom) == 1


def test_the_example_of_holm() -> None:
    assert beyond_chance({"a": 0.01, "b": 0.06, "c": 0.015}) == {"a", "c"}
    assert beyond_chance({"a": 0.02, "b": 0.021, "c": 0.022}) == set()
    assert beyond_chance({}) == set()


def test_pairs_that_all_agree_are_no_chance_and_zeros_are_pairs_too() -> None:
    assert chance([(1.0, 2.0)] * 6) == 0
    assert chance([(1.0, 1.0)] * 6) == 1
    assert chance([(5.0, 0.0), (5.1, 0.0), (4.9, 0.1), (5.0, 0.0)]) < 1e-4
    assert chance([(5.0, 6.0), (6.0, 5.0), (5.0, 6.0), (6.0, 5.0)]) == pytest.approx(1)


def test_of_twenty_comparisons_of_what_does_not_differ_one_says_that_anything_does() -> None:
    """Ten measures of six pairs each; by themselves two in five of them would."""
    draws, alarms, alone = random.Random(1), 0, 0
    for _ in range(400):
        chances = {
            measure: chance([(draws.lognormvariate(0, 0.1), draws.lognormvariate(0, 0.1)) for _ in range(6)])
            for measure in range(10)
        }
        alarms += bool(beyond_chance(chances))
        alone += min(chances.values()) < 0.05
    assert alarms <= 0.08 * 400
    assert alone >= 0.3 * 400
