"""Marks of tests that need a GPU, and of those that run on one where there is one, and in small without:
then they cannot fail there on themselves."""

from __future__ import annotations

import pytest
import torch

from tests.support.interpreter import are_interpreted

HAS_GPU = torch.cuda.is_available()
assert not (HAS_GPU and are_interpreted()), "the GPU's kernels must not be interpreted"
GPU_MARKS = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="there is no CUDA device here")]
ON_ANY_DEVICE = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(HAS_GPU, reason="the GPU is tested")),
        pytest.param("cuda", marks=GPU_MARKS),
    ],
)
