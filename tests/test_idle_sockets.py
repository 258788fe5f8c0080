"""What idle WebSockets cost and do to active ones, bounded; ``benchmarks.idle_sockets`` is the whole."""

from __future__ import annotations

import pytest

from benchmarks.idle_sockets import Round, measure

MAX_KIB_EACH = 40  # measured: 21
MAX_RATIO = 1.5  # of median gaps; measured: 1.00
pytestmark = pytest.mark.timeout(120)


def run() -> Round:
    (found,) = measure(num_idle=300, num_active=20, step_s=0.05, length_s=1.0, rounds=1)
    print(found)
    return found


def test_idle_sockets_take_little_and_hold_nobody_up() -> None:
    first = run()
    assert 1 < first.bytes_each / 1024 < MAX_KIB_EACH
    assert first.pace_ratio < MAX_RATIO or run().pace_ratio < MAX_RATIO
