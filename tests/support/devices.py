"""Tests that run on a GPU where there is one, and in small without: then they cannot fail there on
themselves."""

from __future__ import annotations

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
_GPU_MARKS = (pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="there is no CUDA device here"))
ON_ANY_DEVICE = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(HAS_GPU, reason="the GPU is tested")),
        pytest.param("cuda", marks=_GPU_MARKS),
    ],
)
