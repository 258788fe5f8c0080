"""Compilation falls back to memory where no cache can be written, and gives the same function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.attention import jit as jit_module
from engine.attention.jit import jit


def double(x: float) -> float:
    return 2 * x


def test_without_a_writable_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    numba_njit, tried = jit_module.numba.njit, []

    def refusing(function: Any, **options: Any) -> Any:
        tried.append(options.get("cache", False))
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return numba_njit(function, **options)

    monkeypatch.setattr(jit_module.numba, "njit", refusing)
    assert jit()(double)(4.0) == 8.0
    assert tried == [True, False]


def test_nan_keeps_its_meaning() -> None:
    def is_nan(x: float) -> bool:
        return x != x

    compiled = jit()(is_nan)
    assert compiled(np.nan) and not compiled(1.0)
