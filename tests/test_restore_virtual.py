"""The engine's own scheduler and policies in simulated time: adaptive and overlap keep their promises."""

from __future__ import annotations

import pytest

from benchmarks.policies import CONTEXTS, COPY_TO_COMPUTE, cell


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("ratio", COPY_TO_COMPUTE)
def test_adaptive_is_near_the_better_one_and_overlap_never_slower(context: int, ratio: float) -> None:
    times = cell(context, ratio)
    assert times["adaptive"] <= 1.10 * min(times["swap"], times["recompute"])
    assert times["overlap"] <= 1.001 * times["adaptive"]


def test_the_two_plain_policies_do_what_they_say() -> None:
    fast, slow = cell(4096, 0.05), cell(4096, 4.0)
    assert fast["recompute"] == pytest.approx(slow["recompute"])
    assert slow["swap"] > 10 * fast["swap"]


def test_overlap_approaches_half_where_both_cost_the_same() -> None:
    gains = [cell(context, 1.0) for context in CONTEXTS]
    ratios = [times["overlap"] / min(times["swap"], times["recompute"]) for times in gains]
    assert ratios == sorted(ratios, reverse=True), "the longer the context the less the ends weigh"
    assert ratios[-1] < 0.55
