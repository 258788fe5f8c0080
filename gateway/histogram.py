"""A histogram for what happens with every token: counting takes a search in a short list and two additions.

``prometheus_client`` takes two locks for each observation, and a loop over the buckets. This one is for a
single thread, the event loop's; what it shows to Prometheus is the same.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class TokenHistogram(Collector):
    """Counts by upper bounds, which belong to their buckets."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._created = time.time()

    def observe(self, value: float, count: int = 1) -> None:
        """So many of that value."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def collect(self) -> Iterable[Metric]:
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric([], list(zip(names, accumulate(self._counts), strict=True)), self._sum)
        family.add_sample(f"{self._name}_created", {}, self._created)
        yield family
