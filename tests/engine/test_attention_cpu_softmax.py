"""The arithmetic of the CPU kernels' softmax: an exponential, sums, and where they round."""

from __future__ import annotations

import numpy as np

from engine.attention import cpu_softmax


def test_exp2_is_accurate() -> None:
    exact = np.linspace(-140.0, 0.0, 50_001)
    scores = exact.astype(np.float32)
    cpu_softmax._exp2_shifted(scores, np.float32(0.0))
    reference = np.exp2(np.maximum(exact.astype(np.float32).astype(np.float64), -126.0))
    assert np.max(np.abs(scores / reference - 1)) < 3e-7


def test_exp2_of_the_largest_score_is_one() -> None:
    scores = np.full(5, 7.0, np.float32)
    cpu_softmax._exp2_shifted(scores[1:4], np.float32(7.0))
    assert scores.tolist() == [7.0, 1.0, 1.0, 1.0, 7.0]


def test_a_total_is_rounded_half_by_half() -> None:
    parts = np.random.default_rng(2).standard_normal(cpu_softmax.TILE, np.float32)
    expected = parts.copy()
    while len(expected) > 1:
        expected = expected[: len(expected) // 2] + expected[len(expected) // 2 :]
    assert cpu_softmax._total(parts) == expected[0]


def test_a_nan_score_makes_the_total_nan() -> None:
    for value in (np.nan, np.inf):
        scores = np.zeros((3, cpu_softmax.TILE), np.float32)
        scores[1, 17] = value
        state, top = np.zeros((3, 2, cpu_softmax.PANEL), np.float32), np.full(3, -np.inf, np.float32)
        cpu_softmax.soften(scores, 0, cpu_softmax.TILE, state, top)
        totals = [cpu_softmax._total(row[1]) for row in state]
        assert totals[::2] == [cpu_softmax.TILE] * 2 and np.isnan(totals[1])
