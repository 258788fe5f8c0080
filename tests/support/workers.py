"""Which process this is of those that run tests side by side (pytest-xdist), and its share of the machine."""

from __future__ import annotations

import os

NUMBER = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
INDEX = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
PROCESSORS = max(1, len(os.sched_getaffinity(0)) // NUMBER)


def share_processors() -> None:
    """To be called before torch and numba are loaded.

    Threads that wait for each other go on running for a while, in case it is not long. Where there are more
    of them than processors, that is time taken from the one they wait for: several times what the work takes.
    """
    if NUMBER > 1:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
