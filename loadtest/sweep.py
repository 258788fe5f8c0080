"""Which loads a sweep measures, and what it makes of them. Pure: it is given points and names the next one.

From the first load it doubles until the server gives no more for more, and for an SLO until that is missed;
goes down where the first one misses it already; then bisects for the highest load that meets it, and last
looks closer around the knee. That is Kneedle's, of throughput by load (Satopää et al., "Finding a 'Kneedle'
in a Haystack", 2011).

A load meets the SLO, or misses it, if as few requests as it had show that. Those near the limit are in doubt,
and then it is known no better than to lie among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.results import Interval
from loadtest.shares import wilson

MOST_POINTS = 12
_SATURATED = 0.15  # growth of throughput by growth of load, both as powers; a doubling brings 11 %
_CLOSE = 1.1  # of the limit: what meets the SLO and what misses it are no further apart
_CLOSE_TO_DOUBT = 1.3  # where loads between them are neither
_CLOSE_TO_KNEE = 1.3
_HALVINGS = {True: 0, None: 1, False: 6}  # below the first load, by whether the lowest meets the SLO
_GROWTH = 1.1  # of output, that is more than noise
_SENSITIVITY = 1.0  # Kneedle's S
_FEWEST = 4  # points that can have a knee


@dataclass(frozen=True, slots=True)
class Point:
    """One load: requests a second, or users.

    ``throughput`` is output tokens a second; ``attainment`` the share of requests that met the SLO, None
    without one, and ``num_requests`` of how many; infinite: it is exact. ``offered``: the load was really
    there. If not, the point says nothing about the server. ``is_sustained``: the server bore it. If not, the
    requests were good because the run was short: how many depends on how short.
    """

    value: float
    throughput: float
    attainment: float | None
    offered: bool = True
    is_sustained: bool = True
    num_requests: float = math.inf

    @property
    def interval(self) -> Interval | None:
        """Of the attainment, with 95 %."""
        return None if self.attainment is None else wilson(self.attainment, self.num_requests)


@dataclass(frozen=True, slots=True)
class SloLimit:
    """The highest load that met the SLO, with none below it that did not, and the lowest that did not.

    ``in_doubt`` are loads between them, ``surprises`` those that met it above one that did not.
    """

    within: float | None
    beyond: float | None
    surprises: tuple[float, ...] = ()
    in_doubt: tuple[float, ...] = ()


class Sweep:
    """Points so far. ``whole``: a load is a whole number. Values in ``first`` are measured in any case."""

    def __init__(
        self,
        first: Sequence[float],
        *,
        whole: bool,
        attainment: float | None,
        most_points: int = MOST_POINTS,
    ) -> None:
        assert first and min(first) > 0
        self._first = sorted(set(first))
        self._whole = whole
        self._attainment = attainment
        self._most_points = max(most_points, len(self._first))
        self._points: list[Point] = []

    @property
    def points(self) -> list[Point]:
        """By value."""
        return sorted(self._points, key=lambda point: point.value)

    def add(self, point: Point) -> None:
        assert all(point.value != known.value for known in self._points)
        self._points.append(point)

    def meets_slo(self, point: Point) -> bool | None:
        """None without an SLO, where the load was not there, and where so few requests do not show it."""
        if self._attainment is None or not point.offered:
            return None
        if not point.is_sustained or point.interval is None or point.interval.high < self._attainment:
            return False
        return True if point.interval.low >= self._attainment else None

    def next_value(self) -> float | None:
        """What to measure next; None: all is known that can be."""
        known = {point.value for point in self._points}
        for value in self._first:
            if value not in known:
                return value
        if len(self._points) >= self._most_points:
            return None
        further = (self._lower(), self._higher(), self._between(), self._near_knee())
        return next((value for value in further if value is not None and value not in known), None)

    def limit(self) -> SloLimit:
        verdicts = [(point.value, self.meets_slo(point)) for point in self.points]
        beyond = next((value for value, meets in verdicts if meets is False), None)
        met = [value for value, meets in verdicts if meets]
        within = [value for value in met if beyond is None or value < beyond]
        surprises = tuple(value for value in met if value not in within)
        low, high = max(within, default=0.0), math.inf if beyond is None else beyond
        in_doubt = tuple(point.value for point in self._in_doubt() if low < point.value < high)
        return SloLimit(max(within, default=None), beyond, surprises, in_doubt)

    def knee(self) -> float | None:
        offered = [point for point in self.points if point.offered]
        index = kneedle([point.value for point in offered], [point.throughput for point in offered])
        return None if index is None else offered[index].value

    def is_saturated(self) -> bool:
        """Whether the highest load brought little more than one of at most half as much."""
        *lower, top = self.points
        at_most_half = [point for point in lower if point.value <= top.value / 2]
        if not at_most_half:
            return False
        before = at_most_half[-1]
        if before.throughput <= 0:
            return top.throughput <= 0
        grown = max(top.throughput, 1e-9) / before.throughput
        return math.log(grown) < _SATURATED * math.log(top.value / before.value)

    def _in_doubt(self) -> list[Point]:
        if self._attainment is None:
            return []
        return [point for point in self.points if point.offered and self.meets_slo(point) is None]

    def _lower(self) -> float | None:
        lowest = self.points[0]
        if self._attainment is None or not lowest.offered:
            return None
        if lowest.value <= self._first[0] / 2 ** _HALVINGS[self.meets_slo(lowest)]:
            return None
        half = self._rounded(lowest.value / 2)
        return half if half >= 1 or not self._whole else None

    def _higher(self) -> float | None:
        highest = self.points[-1]
        is_limit_known = self._attainment is None or self.limit().beyond is not None
        if not highest.offered or (self.is_saturated() and is_limit_known):
            return None
        return self._rounded(highest.value * 2)

    def _between(self) -> float | None:
        limit = self.limit()
        if limit.within is None or limit.beyond is None:
            return None
        if not limit.in_doubt:
            return self._middle(limit.within, limit.beyond, _CLOSE)
        gaps = ((limit.within, limit.in_doubt[0]), (limit.in_doubt[-1], limit.beyond))
        return self._middle(*max(gaps, key=lambda gap: gap[1] / gap[0]), _CLOSE_TO_DOUBT)

    def _near_knee(self) -> float | None:
        knee, values = self.knee(), [point.value for point in self.points if point.offered]
        if knee is None:
            return None
        at = values.index(knee)
        gaps = list(zip(values[max(0, at - 1) : at + 1], values[at : at + 2], strict=False))
        low, high = max((gap for gap in gaps if gap[0] < gap[1]), key=lambda gap: gap[1] / gap[0])
        return self._middle(low, high, _CLOSE_TO_KNEE)

    def _middle(self, low: float, high: float, close: float) -> float | None:
        """Between two loads, in the sense of ratios; None where they are close enough."""
        if high <= low * close:
            return None
        middle = self._rounded(math.sqrt(low * high))
        return middle if low < middle < high else None

    def _rounded(self, value: float) -> float:
        return float(round(value)) if self._whole else float(f"{value:.3g}")


def is_flat(outputs: Sequence[float]) -> bool:
    """Whether they do not grow from the first by more than runs of one load differ."""
    return max(outputs) <= 0 or max(outputs) < _GROWTH * outputs[0]


def kneedle(loads: Sequence[float], outputs: Sequence[float]) -> int | None:
    """Index of the knee of a curve that rises ever less; None where there is none, or it hardly rises.

    The paper's algorithm for a concave, increasing curve, but for the smoothing: each point is a whole run.
    """
    if len(loads) < _FEWEST or is_flat(outputs):
        return None
    across, low = loads[-1] - loads[0], min(outputs)
    x = [(load - loads[0]) / across for load in loads]
    y = [(output - low) / (max(outputs) - low) for output in outputs]
    above = [yi - xi for xi, yi in zip(x, y, strict=True)]
    least_fall = _SENSITIVITY / (len(x) - 1)  # the mean distance of two neighbours
    inner = range(1, len(x) - 1)
    peaks = [i for i in inner if above[i - 1] < above[i] >= above[i + 1]]
    knees = [
        peak
        for peak, following in zip(peaks, [*peaks, len(x)][1:], strict=True)
        if min(above[peak + 1 : following], default=math.inf) < above[peak] - least_fall
    ]
    return max(knees, key=lambda i: above[i], default=None)
