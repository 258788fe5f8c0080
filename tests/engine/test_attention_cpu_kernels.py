"""The arithmetic that the kernels do themselves: bf16 bits, and an exponential of their own."""

from __future__ import annotations

import numpy as np
import torch

from engine.attention import cpu_kernels


def test_bf16_bits_round_like_torch() -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    halfway = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    values = np.concatenate([bits, halfway]).view(np.float32)
    values = values[~np.isnan(values)]
    ours = np.array([cpu_kernels._bf16_bits(value) for value in values], dtype=np.uint16)
    theirs = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    assert np.array_equal(ours, theirs)


def test_bf16_bits_keep_nan_and_infinity() -> None:
    def through(value: np.float32) -> float:
        bits = np.uint32(cpu_kernels._bf16_bits(value)) << np.uint32(16)
        return float(np.array([bits], dtype=np.uint32).view(np.float32)[0])

    quiet_low_mantissa = np.array([0x7F800001], dtype=np.uint32).view(np.float32)[0]
    assert np.isnan(through(np.float32(np.nan)))
    assert np.isnan(through(quiet_low_mantissa))
    assert through(np.float32(-np.inf)) == -np.inf


def test_exp2_is_accurate_and_sums_what_it_wrote() -> None:
    exact = np.linspace(-140.0, 0.0, 50_001)
    scores = exact.astype(np.float32)
    total = cpu_kernels._exp2_shifted(scores, np.float32(0.0))
    reference = np.exp2(np.maximum(exact.astype(np.float32).astype(np.float64), -126.0))
    assert np.max(np.abs(scores / reference - 1)) < 3e-7
    assert abs(total / scores.astype(np.float64).sum() - 1) < 1e-5


def test_exp2_of_the_largest_score_is_one() -> None:
    scores = np.full(5, 7.0, np.float32)
    assert cpu_kernels._exp2_shifted(scores[1:4], np.float32(7.0)) == 3.0
    assert scores.tolist() == [7.0, 1.0, 1.0, 1.0, 7.0]


def test_a_nan_score_makes_the_sum_nan() -> None:
    for value in (np.nan, np.inf):
        scores = np.zeros(64, np.float32)
        scores[17] = value
        top = cpu_kernels._maximum(scores)
        assert np.isnan(cpu_kernels._exp2_shifted(scores, top))
