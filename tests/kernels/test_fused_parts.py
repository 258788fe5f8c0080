"""Norms, SwiGLU, products and copies in the interpreter: values, bounds, and that rows stand alone."""

from __future__ import annotations

import mmap

import pytest
import torch

from engine.fused import configs
from engine.fused.activation import silu_and_mul
from engine.fused.block_copy import copy_blocks
from engine.fused.matmul import FixedTileLinear
from engine.fused.norm import TritonNorm
from tests.support.fused_parts import (
    EPS,
    assert_by_row,
    assert_copies,
    assert_norm,
    assert_product,
    assert_swiglu,
    noise,
)
from tests.support.interpreted_products import multiply_by_row

_NO_RESERVE = 0x4000  # MAP_NORESERVE, which Python has from 3.12 on
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])


@DTYPES
@pytest.mark.parametrize("width", [1, 100, 128, 576, 2048, 5000])
def test_norms(width: int, dtype: torch.dtype) -> None:
    for num_rows in (0, 1, 3):
        assert_norm(num_rows, width, dtype)


def test_a_norm_in_bf16_rounds_what_float32_gave() -> None:
    """The interpreter truncates: one unit in the last place, as the bound of this type has it."""
    assert_norm(3, 576, torch.bfloat16)


@DTYPES
@pytest.mark.parametrize("width", [1, 96, 1023, 1024, 1025])
def test_swiglu(width: int, dtype: torch.dtype) -> None:
    for num_rows in (0, 1, 3):
        assert_swiglu(num_rows, width, dtype)


@DTYPES
@pytest.mark.parametrize(("columns", "depth"), [(1, 1), (64, 64), (65, 100), (96, 128), (130, 63)])
def test_products(columns: int, depth: int, dtype: torch.dtype) -> None:
    for num_rows in (0, 1, 33, 64, 65):
        assert_product(num_rows, columns, depth, dtype, biased=num_rows % 2 == 1)


def test_a_product_of_many_rows_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """More row tiles than run together, and the wide tile."""
    assert_product(520, 66, 16, torch.float16)
    monkeypatch.setattr(configs, "_MANY_COLUMNS", 130)
    assert_product(65, 130, 100, torch.float16)


@DTYPES
def test_rows_stand_alone(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    multiply_by_row(monkeypatch)
    weight, bias = noise(100, 150, seed=1, dtype=dtype), noise(100, seed=2, dtype=dtype)
    assert_by_row(FixedTileLinear(weight, bias), noise(67, 150, dtype=dtype))
    assert_by_row(TritonNorm(noise(576), EPS, dtype), noise(20, 576))
    assert_by_row(silu_and_mul, noise(20, 200, dtype=dtype))


@pytest.mark.parametrize(
    "shape", [(20, 2, 2, 2, 16, 8), (9, 3, 2, 1, 4, 16), (8, 2, 2, 5, 16, 64), (9, 1, 2, 1, 1, 5)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_copies(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    pool = noise(*shape, dtype=dtype)
    pool[::3] = float("nan")  # bytes are bytes
    for num_pairs in (0, 1, len(pool) // 2):
        assert_copies(pool, num_pairs, seed=num_pairs)


def test_a_block_beyond_what_32_bits_count_in_words() -> None:
    """In a pool of 16 GiB and more, of which only the blocks that are touched take memory."""
    block_bytes, num_blocks = 2**20, 2**14 + 8
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    pool = torch.frombuffer(mmap.mmap(-1, num_blocks * block_bytes, flags=flags), dtype=torch.uint8)
    pool = pool.view(num_blocks, block_bytes)
    last = num_blocks - 1
    pool[last], pool[3] = 7, 9
    copy_blocks(pool, torch.tensor([last, 3]), torch.tensor([last - 2, last - 1]))
    assert (pool[last - 2] == 7).all() and (pool[last - 1] == 9).all()
