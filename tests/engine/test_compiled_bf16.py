"""bf16 bits that compiled code rounds itself."""

from __future__ import annotations

import numpy as np
import torch

from engine.compiled import bf16


def test_bf16_bits_round_like_torch() -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    halfway = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    values = np.concatenate([bits, halfway]).view(np.float32)
    values = values[~np.isnan(values)]
    ours = np.array([bf16._bits(value) for value in values], dtype=np.uint16)
    theirs = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    assert np.array_equal(ours, theirs)


def test_bf16_bits_keep_nan_and_infinity() -> None:
    def through(value: np.float32) -> float:
        bits = np.uint32(bf16._bits(value)) << np.uint32(16)
        return float(np.array([bits], dtype=np.uint32).view(np.float32)[0])

    quiet_low_mantissa = np.array([0x7F800001], dtype=np.uint32).view(np.float32)[0]
    assert np.isnan(through(np.float32(np.nan)))
    assert np.isnan(through(quiet_low_mantissa))
    assert through(np.float32(-np.inf)) == -np.inf
