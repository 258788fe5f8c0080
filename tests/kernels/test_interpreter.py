"""The ground that the tests beside stand on: kernels are interpreted, and what that can and cannot show."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from engine.kernels.jit import jit


@jit(varying=["count"])
def add_product_kernel(
    left: tl.tensor, right: tl.tensor, out: tl.tensor, count: tl.tensor, SIZE: tl.constexpr
) -> None:
    rows = tl.arange(0, SIZE)
    places = rows[:, None] * SIZE + rows[None, :]
    sums = tl.zeros([SIZE, SIZE], tl.float32)
    for _ in range(count):
        sums = tl.dot(tl.load(left + places), tl.load(right + places), sums, input_precision="ieee")
    tl.store(out + places, sums)


def product(dtype: torch.dtype, count: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    left, right = torch.randn(16, 16).to(dtype), torch.randn(16, 16).to(dtype)
    out = torch.full((16, 16), float("nan"))
    add_product_kernel[(1,)](left, right, out, count, SIZE=16, num_warps=4, enable_fp_fusion=True)
    return out, count * (left.double() @ right.double()).float()


def test_kernels_are_interpreted_and_run_on_cpu_tensors() -> None:
    assert isinstance(add_product_kernel, InterpretedFunction)
    assert not torch.empty(1).is_cuda


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_products_of_these_types_are_right(dtype: torch.dtype) -> None:
    found, expected = product(dtype)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_products_of_bf16_are_wrong_and_so_are_left_to_the_device() -> None:
    """Should this fail, the interpreter has learnt it, and bf16 belongs into the tests beside."""
    found, expected = product(torch.bfloat16)
    assert not torch.allclose(found, expected, rtol=0.1, atol=0.1)


def test_loops_with_bounds_of_run_time_need_this_numpy() -> None:
    assert tuple(map(int, np.__version__.split(".")[:2])) < (2, 4)
