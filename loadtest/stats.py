"""Percentiles, and how far to believe them. Pure, but for its numpy.

Intervals are by the bootstrap (Efron, 1979): the same statistics over many samples, drawn with replacement
from the one there is. What is drawn are requests, each with all it had, since gaps within one answer are
anything but independent; and where there are several runs, runs first and requests within them (as for
hierarchical data in Davison and Hinkley, 1997), so that what differs from run to run shows. Where runs are
few, intervals are as wide as ``loadtest.intervals`` has them; of fewer than six they reach as far as any
draw, and hold less than 95 % all the same. The draws are seeded: the same samples give the same intervals.

An interval whose end is the largest sample, or the smallest, is left out. It is not known to end there: with
fewer than about 300 requests nobody knows how large a p99 can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.intervals import FEWEST, tail
from loadtest.results import Distribution, Interval

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
MIN_REQUESTS = FEWEST  # fewer give no interval: not even a median's ends lie within so few samples
_NUM_DRAWS = 1000
_MIN_DRAWS = 200
_MAX_VISITS = 50_000_000  # of samples, over all draws: about a second
Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def distribution(samples: Sequence[float]) -> Distribution | None:
    """Without intervals. None of nothing."""
    return _distribution(np.asarray(samples, np.float64), {}) if samples else None


def distribution_of_runs(runs: Sequence[Sequence[Sequence[float]]]) -> Distribution | None:
    """Of samples by run and by request, as one, with intervals. None of nothing."""
    by_request = [[request for request in run if request] for run in runs]
    by_request = [run for run in by_request if run]
    if not by_request:
        return None
    pool = _Pool.of(by_request)
    return _distribution(pool.values, pool.intervals())


def _distribution(values: Floats, intervals: dict[str, Interval]) -> Distribution:
    found = np.quantile(values, list(PERCENTILES.values()))
    percentiles: dict[str, Any] = dict(zip(PERCENTILES, map(float, found), strict=True))
    return Distribution(
        count=len(values),
        mean=float(values.mean()),
        max=float(values.max()),
        intervals=intervals,
        **percentiles,
    )


@dataclass(frozen=True, slots=True)
class _Pool:
    """All samples in order of size, each with the request that it is of."""

    values: Floats  # [N]
    owners: Ints  # [N]
    run_sizes: list[int]  # requests of each run, whose numbers follow each other

    @classmethod
    def of(cls, runs: Sequence[Sequence[Sequence[float]]]) -> _Pool:
        requests = [request for run in runs for request in run]
        values = np.concatenate([np.asarray(request, np.float64) for request in requests])
        owners = np.repeat(np.arange(len(requests)), [len(request) for request in requests])
        order = np.argsort(values, kind="stable")
        return cls(values[order], owners[order], [len(run) for run in runs])

    def intervals(self) -> dict[str, Interval]:
        if sum(self.run_sizes) < MIN_REQUESTS:
            return {}
        draws, ends = self._draws(), self._ends()
        found = {"mean": _between(np.array([draw.mean for draw in draws]), ends)}
        for place, name in enumerate(PERCENTILES):
            lowest, highest = np.quantile([draw.places[place] for draw in draws], ends)
            if lowest > 0 and highest < len(self.values) - 1:
                found[name] = _between(np.array([draw.percentiles[place] for draw in draws]), ends)
        return found

    def _ends(self) -> tuple[float, float]:
        """Which of the draws an interval ends at: by the number of runs, or of one run's requests."""
        left_out = tail(len(self.run_sizes) if len(self.run_sizes) > 1 else self.run_sizes[0])
        return left_out, 1 - left_out

    def _draws(self) -> list[_Draw]:
        random = np.random.default_rng(0)
        count = max(_MIN_DRAWS, min(_NUM_DRAWS, _MAX_VISITS // len(self.values)))
        return [self._draw(random) for _ in range(count)]

    def _draw(self, random: np.random.Generator) -> _Draw:
        """Statistics of one sample of as many runs and requests as there are."""
        times = self._times_drawn(random)[self.owners]  # [N]
        up_to = np.cumsum(times)  # [N]: of those drawn, how many are not larger
        position = np.array(list(PERCENTILES.values())) * (up_to[-1] - 1)
        below = np.searchsorted(up_to, np.floor(position), side="right")
        above = np.searchsorted(up_to, np.ceil(position), side="right")
        share = position - np.floor(position)
        percentiles = self.values[below] * (1 - share) + self.values[above] * share
        places = below * (1 - share) + above * share
        return _Draw(float(times @ self.values / up_to[-1]), percentiles, places)

    def _times_drawn(self, random: np.random.Generator) -> Ints:
        """How often each request is in a sample."""
        num_runs = len(self.run_sizes)
        runs_drawn = np.bincount(random.integers(num_runs, size=num_runs), minlength=num_runs)
        return np.concatenate(
            [
                np.bincount(random.integers(size, size=size * drawn), minlength=size)
                for size, drawn in zip(self.run_sizes, runs_drawn, strict=True)
            ]
        )


@dataclass(frozen=True, slots=True)
class _Draw:
    mean: float
    percentiles: Floats
    places: Floats  # of the percentiles, among all samples in order: 0 is the smallest


def _between(values: Floats, ends: tuple[float, float]) -> Interval:
    low, high = np.quantile(values, ends)
    return Interval(float(low), float(high))
