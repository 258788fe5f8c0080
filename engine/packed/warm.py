"""Compiles the packed decoder's kernels and fills numba's on-disk cache: ``python -m engine.packed.warm``.

Run at install, so that not even the first start waits for a compiler. What differs between models, their
sizes and the bits of their weights, are numbers to a kernel: it is compiled once.
"""

from __future__ import annotations

import numpy as np

from engine.packed import kernels
from engine.packed.layout import GROUP, Bytes, QuantizedMatrix, empty_tiles, pack_into, scales_of_inputs
from engine.packed.products import has_byte_products

_ROWS = 2


def warm_packed_kernels(threads: int = 1) -> None:
    """Compile, or load from the cache, what steps need. Some twenty seconds the first time."""
    for dtype in (np.float32, np.int8) if has_byte_products() else (np.float32,):
        _warm(dtype, threads)


def _warm(dtype: type[np.generic], threads: int) -> None:
    square, gates = _matrix(GROUP), _matrix(2 * GROUP)
    scales, eps = scales_of_inputs(4), np.float32(1e-5)
    rows, norm = np.ones((_ROWS, GROUP), np.float32), np.ones(GROUP, np.float32)
    x = np.empty(rows.shape, dtype)
    stats, out = np.empty((_ROWS, 1, 2), np.float32), np.empty_like(rows)
    kernels.project_normed(rows, norm, eps, square, 4, scales, x, stats, out, threads)
    kernels.add_projected(rows, square, 4, scales, x, stats, out, threads)
    kernels.add_mlp(
        rows, norm, eps, gates, 4, scales, square, 4, scales, x, stats, out, x.copy(), stats.copy(), threads
    )


def _matrix(num_outputs: int) -> Bytes:
    ones = np.ones((num_outputs, 1), np.float16)
    matrix = QuantizedMatrix(4, np.zeros((num_outputs, 1, 4), np.uint32), ones, ones)
    stack = empty_tiles(1, matrix)
    pack_into(stack[0], matrix)
    tiles: Bytes = stack[0]
    return tiles


if __name__ == "__main__":
    warm_packed_kernels()
