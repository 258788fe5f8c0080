"""The device's limits once more, when it has worked: before, it may not have been at its full clocks.

Figures are held against the larger of both. A difference says how far a limit can be relied on.
"""

from __future__ import annotations

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.figures import again
from benchmarks.gpu_check.limits import DEVICE_LIMITS


def measure(context: Context) -> None:
    for name, measure_limit in DEVICE_LIMITS.items():
        with context.case(again(name)):
            measure_limit(context, again(name))
