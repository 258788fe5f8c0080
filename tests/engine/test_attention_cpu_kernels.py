"""The arithmetic that the kernels do themselves: bf16 bits, an exponential, and where they round."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch

from engine.attention import cpu_kernels
from engine.attention.cpu_kernels import _multiply_add


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


def test_exp2_is_accurate() -> None:
    exact = np.linspace(-140.0, 0.0, 50_001)
    scores = exact.astype(np.float32)
    cpu_kernels._exp2_shifted(scores, np.float32(0.0))
    reference = np.exp2(np.maximum(exact.astype(np.float32).astype(np.float64), -126.0))
    assert np.max(np.abs(scores / reference - 1)) < 3e-7


def test_exp2_of_the_largest_score_is_one() -> None:
    scores = np.full(5, 7.0, np.float32)
    cpu_kernels._exp2_shifted(scores[1:4], np.float32(7.0))
    assert scores.tolist() == [7.0, 1.0, 1.0, 1.0, 7.0]


def test_a_total_is_rounded_half_by_half() -> None:
    parts = np.random.default_rng(2).standard_normal(cpu_kernels.TILE, np.float32)
    expected = parts.copy()
    while len(expected) > 1:
        expected = expected[: len(expected) // 2] + expected[len(expected) // 2 :]
    assert cpu_kernels._total(parts) == expected[0]


def test_a_nan_score_makes_the_total_nan() -> None:
    for value in (np.nan, np.inf):
        scores = np.zeros(cpu_kernels.TILE, np.float32)
        scores[17] = value
        cpu_kernels._exp2_shifted(scores, cpu_kernels._maximum(scores))
        assert np.isnan(cpu_kernels._total(scores))


@pytest.mark.parametrize("fused", [True, False])
def test_multiply_add_rounds_once_if_the_cpu_can(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "has_fma", lambda context: fused)
    compiled = numba.njit(lambda a, b, c: _multiply_add(a, b, c))
    a = np.float32(1 + 2**-12)
    assert compiled(a, a, np.float32(-1)) == 2**-11 + (2**-24 if fused else 0)


def test_only_what_rounds_nothing_leaves_its_order_to_the_compiler() -> None:
    kernels = {name: kernel for name, kernel in vars(cpu_kernels).items() if hasattr(kernel, "targetoptions")}
    assert len(kernels) > 10
    free = {name for name, kernel in kernels.items() if kernel.targetoptions["fastmath"]}
    assert free == {"_maximum"}
