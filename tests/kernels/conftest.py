"""Kernels in Triton's interpreter, on CPU tensors (``tests.support.interpreter``).

The interpreter is numpy: it has no bf16 product, knows no race, and needs a numpy below 2.4. What it cannot
show, binaries compiled ahead of time show here too, and the tests in ``tests/gpu``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.support.interpreter import are_interpreted, multiply_rows_apart


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rows_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products whose rows do not depend on their place, as tensor cores compute them, and BLAS does not."""
    multiply_rows_apart(monkeypatch)


@pytest.fixture(autouse=True)
def interpreted(request: pytest.FixtureRequest) -> None:
    if not are_interpreted() and "compile" not in request.path.name:
        pytest.skip("kernels are compiled for the GPU here; TRITON_INTERPRET=1 has them interpreted")
