"""The vector instructions of the CPU kernels against numpy, and where they round."""

from __future__ import annotations

import itertools
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest

from engine.compiled import vectors
from engine.compiled.vectors import LANES, add_products, largest, load_transposed, multiply_add

FORMATS = pytest.mark.parametrize("bits", [np.float32, np.uint16], ids=["fp32", "bf16"])


@numba.njit
def transposed(source: Any, target: Any) -> None:
    load_transposed(source, target)


def random(*shape: int, bits: Any = np.float32) -> npt.NDArray[Any]:
    numbers = np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)
    return numbers if bits is np.float32 else (numbers.view(np.uint32) >> 16).astype(np.uint16)


def widened(numbers: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return numbers if numbers.dtype == np.float32 else (numbers.astype(np.uint32) << 16).view(np.float32)


@FORMATS
@pytest.mark.parametrize("width", [16, 32, 48, 64, 80, 128])
def test_a_transposition_fills_its_columns_and_no_others(bits: Any, width: int) -> None:
    source, target = random(LANES + 5, width, bits=bits), np.full((width, 64), 7.0, np.float32)
    transposed(source[3 : 3 + LANES], target[:, 16:])
    assert np.array_equal(target[:, 16:32], widened(source)[3 : 3 + LANES].T)
    assert (target[:, :16] == 7.0).all() and (target[:, 32:] == 7.0).all()


@FORMATS
@pytest.mark.parametrize("wide", [True, False], ids=["wide", "narrow"])
def test_products_are_added_in_order(bits: Any, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, one number of ``rows`` after the other, whatever registers the CPU has."""
    monkeypatch.setattr(vectors, "has_wide_registers", lambda context: wide)
    monkeypatch.setattr(vectors, "has_fma", lambda context: False)
    added = numba.njit(lambda rows, matrix, out: add_products(rows, matrix, out))
    for num_rows, width in itertools.product((1, 2, 3, 4, 5, 8, 11), (16, 64, 80)):
        rows, matrix = random(num_rows, 9), random(9, width, bits=bits)
        out = random(num_rows, width + 16)
        expected = out.copy()
        for n in range(9):
            expected[:, :width] += rows[:, n : n + 1] * widened(matrix)[n]
        added(rows, matrix, out)
        assert np.array_equal(out, expected), (num_rows, width)


@pytest.mark.parametrize("width", [16, 32, 64, 80])
def test_the_largest_is_found_wherever_it_is(width: int) -> None:
    found = numba.njit(lambda rows, row: largest(rows, row))
    rows = random(3, width + 16)[:, :width]
    rows[::2] = 9.0
    for place in range(width):
        rows[1, place] += 8.0
        assert found(rows, 1) == rows[1].max()
        rows[1, place] -= 8.0
    rows[1] = np.nan
    assert found(rows, 1) == -np.inf
    rows[1, 5] = -7.0
    assert found(rows, 1) == -7.0


@pytest.mark.parametrize("fused", [True, False])
def test_multiply_add_rounds_once_if_the_cpu_can(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of numbers and of vectors."""
    monkeypatch.setattr(vectors, "has_fma", lambda context: fused)
    number = numba.njit(lambda a, b, c: multiply_add(a, b, c))
    vector = numba.njit(lambda rows, matrix, out: add_products(rows, matrix, out))
    a = np.float32(1 + 2**-12)
    expected = 2**-11 + (2**-24 if fused else 0)
    assert number(a, a, np.float32(-1)) == expected
    out = np.full((1, LANES), -1, np.float32)
    vector(np.full((1, 1), a), np.full((1, LANES), a), out)
    assert (out == expected).all()
