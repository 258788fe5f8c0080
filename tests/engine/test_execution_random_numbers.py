"""The generator against SplitMix64's finalizer in plain integers, and a look at its distribution."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from engine.execution.random_numbers import uniform

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def plain(seed: int, position: int) -> float:
    return (mix((mix((seed + GOLDEN) & MASK) + (position + 1) * GOLDEN) & MASK) >> 11) * 2.0**-53


def numbers(seeds: list[int], positions: list[int]) -> npt.NDArray[np.float64]:
    return uniform(np.array(seeds, dtype=np.uint64), np.array(positions, dtype=np.uint64))


def test_the_finalizer_is_that_of_splitmix64() -> None:
    """The first outputs of SplitMix64 from seed 1234567, as published with the algorithm."""
    published = (6457827717110365317, 3203168211198807973, 9817491932198370423)
    assert tuple(mix((1234567 + GOLDEN * n) & MASK) for n in (1, 2, 3)) == published


@pytest.mark.parametrize("seed", [0, 1, 42, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_known_answers(seed: int) -> None:
    positions = [0, 1, 2, 1000, 2**31]
    assert numbers([seed] * 5, positions).tolist() == [plain(seed, position) for position in positions]


def test_a_number_depends_on_its_own_pair_only() -> None:
    together = numbers([5, 6, 7], [3, 2, 1])
    assert together.tolist() == [numbers([s], [p])[0] for s, p in ((5, 3), (6, 2), (7, 1))]


def test_neighbouring_seeds_and_positions_look_independent() -> None:
    grid = numbers([s for s in range(200) for _ in range(200)], list(range(200)) * 200).reshape(200, 200)
    assert ((grid >= 0) & (grid < 1)).all()
    assert len(np.unique(grid)) == grid.size
    counts = np.bincount((grid * 100).astype(int).ravel(), minlength=100)
    chi_square = ((counts - 400.0) ** 2 / 400.0).sum()  # 99 degrees of freedom
    assert 50 < chi_square < 160
    for one, other in ((grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02
