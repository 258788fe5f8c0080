"""Products with quantized tiles against float64, and what a row's result may depend on: the row.

What lesser CPUs do is tried by processes that compile for one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest
from numba.core.registry import cpu_target

from engine.packed import kernels
from engine.packed.layout import (
    GROUP,
    LANES,
    QuantizedMatrix,
    empty_tiles,
    interleaved,
    pack_into,
    scales_of_inputs,
)
from engine.packed.products import has_byte_products
from tests.support.packed_matrices import random_matrix

Floats = npt.NDArray[np.float32]
KINDS = (np.float32, np.int8) if has_byte_products() else (np.float32,)
# Of the largest result. A norm in float32 may fall to the other side of a step than one in float64.
TOLERANCE = {np.float32: 3e-6, np.int8: 2e-3}
Kind = type[np.generic]
ROWS = (1, 2, 3, 7, 8, 9, 17)


@pytest.fixture(autouse=True)
def two_numba_threads() -> None:
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))


def packed(matrix: QuantizedMatrix) -> npt.NDArray[np.uint8]:
    tiles = empty_tiles(1, matrix)
    pack_into(tiles[0], matrix)
    return tiles[0]


def rows_of(num_rows: int, width: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(0, 1, (num_rows, width)).astype(np.float32)


def room(rows: Floats, kind: Kind) -> tuple[npt.NDArray[Any], Floats]:
    """As it may be found: with anything in it."""
    num_rows, width = rows.shape
    return np.full((num_rows, width), 77, kind), np.full((num_rows, width // GROUP, 2), np.nan, np.float32)


def as_multiplied(rows: npt.NDArray[Any], kind: Kind) -> npt.NDArray[np.float64]:
    """The rows that products are of: of bytes, rounded to 255 steps a group."""
    rows = rows.astype(np.float32)
    if kind is np.float32:
        return rows.astype(np.float64)
    groups = rows.reshape(len(rows), -1, GROUP)
    scales = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    steps = np.rint(groups * (np.float32(1) / scales))
    return (steps.astype(np.float64) * scales).reshape(rows.shape)


def product(matrix: QuantizedMatrix, rows: Floats, kind: Kind, lanes: int = 2) -> Floats:
    out = np.zeros((len(rows), matrix.num_outputs), np.float32)
    scales = scales_of_inputs(matrix.bits)
    kernels.add_projected(rows, packed(matrix), matrix.bits, scales, *room(rows, kind), out, lanes)
    return out


def assert_near(found: Floats, exact: npt.NDArray[np.float64], terms: npt.NDArray[np.float64]) -> None:
    """Within what float32 sums of terms of this size may be off."""
    assert (np.abs(found - exact) <= 3e-7 * terms + 1e-30).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_rows", ROWS)
def test_a_product_is_that_of_the_values(kind: Kind, bits: int, num_rows: int) -> None:
    matrix, rows = random_matrix(bits, 71, 3 * GROUP), rows_of(num_rows, 3 * GROUP)
    values = matrix.values().astype(np.float64)
    # A weight is the sum of two parts, each of which may be larger than it.
    size = np.abs(matrix.scales.astype(float)) * (2**bits - 1) + np.abs(matrix.minima.astype(float))
    multiplied = as_multiplied(rows, kind)
    terms = np.abs(multiplied) @ np.repeat(size, GROUP, axis=1).T
    assert_near(product(matrix, rows, kind), multiplied @ values.T, terms)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [4, 8])
def test_every_weight_meets_its_input(kind: Kind, bits: int) -> None:
    """One input at a time, so that nothing is summed."""
    matrix = random_matrix(bits, 5, 2 * GROUP)
    matrix.minima[:] = 0
    found = product(matrix, np.eye(2 * GROUP, dtype=np.float32), kind)
    np.testing.assert_allclose(found.T, matrix.values(), rtol=3e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sums_of_a_group_are_whole(kind: Kind, bits: int, sign: int) -> None:
    matrix = random_matrix(bits, 40, GROUP)
    matrix.words[:], matrix.scales[:], matrix.minima[:] = 2**32 - 1, 1, 0
    found = product(matrix, np.full((3, GROUP), sign * 127, np.float32), kind)
    np.testing.assert_array_equal(found, sign * 127 * GROUP * (2**bits - 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_depends_neither_on_its_neighbours_nor_on_threads(kind: Kind, bits: int) -> None:
    matrix, rows = random_matrix(bits, 71, 3 * GROUP), rows_of(17, 3 * GROUP)
    together = product(matrix, rows, kind, lanes=2)
    np.testing.assert_array_equal(together, product(matrix, rows, kind, lanes=1))
    for start, end in ((0, 1), (3, 5), (4, 9), (5, 16)):
        np.testing.assert_array_equal(together[start:end], product(matrix, rows[start:end], kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_broken_row_stays_alone(kind: Kind, broken: float) -> None:
    matrix, rows = random_matrix(4, 40, GROUP), rows_of(9, GROUP)
    sound = product(matrix, rows, kind)
    rows[4, 7] = broken
    found = product(matrix, rows, kind)
    assert not np.isfinite(found[4]).any()
    np.testing.assert_array_equal(np.delete(found, 4, axis=0), np.delete(sound, 4, axis=0))


def normed(rows: Floats, weight: Floats, eps: float) -> npt.NDArray[np.float64]:
    wide = rows.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_rows", ROWS)
def test_a_product_of_normed_rows(kind: Kind, num_rows: int) -> None:
    matrix, rows = random_matrix(4, 40, 3 * GROUP), 30 * rows_of(num_rows, 3 * GROUP)
    weight = rows_of(1, 3 * GROUP, seed=9)[0]
    out = np.full((num_rows, 40), np.nan, np.float32)
    kernels.project_normed(
        rows, weight, np.float32(1e-5), packed(matrix), 4, scales_of_inputs(4), *room(rows, kind), out, 2
    )
    exact = as_multiplied(normed(rows, weight, 1e-5), kind) @ matrix.values().astype(np.float64).T
    np.testing.assert_allclose(out, exact, rtol=0, atol=TOLERANCE[kind] * np.abs(exact).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gate_bits", [4, 8])
@pytest.mark.parametrize(("num_rows", "width"), [(1, 32), (2, 64), (9, 96)])
def test_an_mlp(kind: Kind, num_rows: int, width: int, gate_bits: int) -> None:
    hidden = rows_of(num_rows, 64)
    gate, up = random_matrix(gate_bits, width, 64, seed=1), random_matrix(gate_bits, width, 64, seed=2)
    down = random_matrix(4, 64, width, seed=3)
    weight = rows_of(1, 64, seed=9)[0]
    rows = as_multiplied(normed(hidden, weight, 1e-5), kind)
    gates = rows @ gate.values().astype(np.float64).T
    activated = gates / (1 + np.exp(-gates)) * (rows @ up.values().astype(np.float64).T)
    exact = hidden + as_multiplied(activated, kind) @ down.values().astype(np.float64).T
    found = hidden.copy()
    kernels.add_mlp(
        found, weight, np.float32(1e-5),
        packed(interleaved(gate, up)), gate_bits, scales_of_inputs(gate_bits),
        packed(down), 4, scales_of_inputs(4),
        *room(hidden, kind), np.full((num_rows, width), np.nan, np.float32),
        *room(np.empty((num_rows, width), np.float32), kind), 2,
    )  # fmt: skip
    np.testing.assert_allclose(found, exact, rtol=0, atol=TOLERANCE[kind] * np.abs(exact).max())


def test_the_gate_is_right_far_from_zero() -> None:
    """Through a product whose gates are the inputs themselves, times one."""
    gates = np.array([-200, -88, -20, -1, -1e-6, 0, 1e-6, 1, 20, 88, 200, 3e4], np.float32)
    wide = gates.astype(np.float64)
    exact = wide / (1 + np.exp(-wide))
    padded = np.zeros(LANES, np.float32)
    padded[: len(gates)] = gates
    kernels._silu(padded)
    np.testing.assert_allclose(padded[: len(gates)], exact, rtol=1e-6, atol=1e-34)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_zeros_or_of_tiny_numbers_is_zero(kind: Kind) -> None:
    matrix, rows = random_matrix(4, 5, 2 * GROUP), rows_of(1, 2 * GROUP)
    alone = product(matrix, rows * np.repeat(np.float32([1, 0]), GROUP), kind)
    assert np.isfinite(alone).all()
    tiny = product(matrix, rows * np.repeat(np.float32([1, 1e-38]), GROUP), kind)
    np.testing.assert_array_equal(alone, tiny)


LESSER_CPUS = {
    "vectors of 256 bits": ("avx512",),
    "vectors of 128 bits, no fused products": (
        "avx",
        "fma",
        "f16c",
        "vaes",
        "vpclmulqdq",
        "xop",
    ),  # what brings AVX along, too
}


@pytest.mark.slow
@pytest.mark.parametrize("lacking", LESSER_CPUS.values(), ids=LESSER_CPUS)
def test_the_same_holds_on_a_lesser_cpu(lacking: tuple[str, ...], tmp_path: Path) -> None:
    """All the tests above, compiled for it."""
    features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    left = [f"-{name[1:]}" if name[1:].startswith(lacking) else name for name in features]
    environment = os.environ | {"NUMBA_CPU_FEATURES": ",".join(left), "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", __file__]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
