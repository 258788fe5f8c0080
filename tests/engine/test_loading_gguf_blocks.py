"""Blocks read as they are have the values that the gguf library decodes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from engine.loading.gguf_blocks import quantized_matrix
from tests.support.packed_matrices import quantized


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0])
def test_values_are_those_that_the_library_decodes(kind: Type) -> None:
    values = np.random.default_rng(0).normal(0, 1, (7, 96)).astype(np.float32)
    values[3] = 0
    values[4, 40:] = 1e-3
    data = quantized(values, kind)
    matrix = quantized_matrix(data, kind)
    assert matrix is not None
    decoded = gguf.quants.dequantize(data, kind)
    # A minimum is a scale times a whole number: the same values, but for the rounding of a sum in float32.
    np.testing.assert_allclose(matrix.values(), decoded, rtol=0, atol=1e-5 * np.abs(decoded).max())
    assert (matrix.num_outputs, matrix.num_inputs) == values.shape


@pytest.mark.parametrize("kind", [Type.Q5_1, Type.Q6_K, Type.F16])
def test_other_types_have_no_kernel(kind: Type) -> None:
    assert quantized_matrix(np.zeros((2, 420), np.uint8), kind) is None
