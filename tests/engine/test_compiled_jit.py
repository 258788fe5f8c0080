"""Compilation falls back to memory where no cache can be written, and changes no rounding."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.attention import cpu_decode
from engine.compiled import jit as jit_module
from engine.compiled.jit import has_fma, has_wide_registers, jit, sources_digest

PACKAGE = Path(cpu_decode.__file__).parent


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


def test_a_change_of_any_file_beside_a_kernel_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba looks at the kernel's own file only. What all kernels share counts for each."""
    digests = []
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(jit_module, "__file__", str(shared / "jit.py"))
    changes = (("a.py", "1"), ("b.py", "2"), ("b.py", "3"), ("shared/c.py", "4"), ("notes.txt", "5"))
    for name, source in changes:
        (tmp_path / name).write_text(source)
        sources_digest.cache_clear()
        digests.append(sources_digest(tmp_path))
    assert len(set(digests[:4])) == 4 and digests[4] == digests[3]
    monkeypatch.undo()
    sources_digest.cache_clear()
    kernels = [kernel for kernel in vars(cpu_decode).values() if hasattr(kernel, "targetoptions")]
    assert all(kernel.py_func.__qualname__.endswith(sources_digest(PACKAGE)) for kernel in kernels)
    assert {path.name for path in PACKAGE.glob("*.py")} >= {"cpu_prompt.py", "cpu_rotate.py"}


def test_nan_keeps_its_meaning() -> None:
    def is_nan(x: float) -> bool:
        return x != x

    compiled = jit()(is_nan)
    assert compiled(np.nan) and not compiled(1.0)


def test_the_compiler_changes_no_rounding() -> None:
    def product_and_sum(a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    def in_order(row: Any) -> Any:
        total = np.float32(0.0)
        for t in range(row.shape[0]):
            total += row[t]
        return total

    a = np.float32(1 + 2**-12)
    assert jit()(product_and_sum)(a, a, np.float32(-1)) == 2**-11, "rounded once: 2**-11 + 2**-24"
    row = np.random.default_rng(1).standard_normal(1000, np.float32)
    assert jit()(in_order)(row) == np.cumsum(row)[-1]


def test_wide_registers_are_those_of_avx512() -> None:
    for features, wide in (("+avx,+avx512f", True), ("+avx,-avx512f,+avx512fp16", False), ("", False)):
        codegen = SimpleNamespace(magic_tuple=lambda features=features: ("", "cpu", features))
        assert has_wide_registers(SimpleNamespace(codegen=lambda codegen=codegen: codegen)) is wide


@pytest.mark.parametrize(
    ("triple", "features", "has"),
    [
        ("x86_64-unknown-linux-gnu", "+avx,+fma,+sse2", True),
        ("x86_64-unknown-linux-gnu", "+avx,-fma,+fma4", False),
        ("aarch64-unknown-linux-gnu", "", True),
    ],
)
def test_old_x86_has_no_fma(triple: str, features: str, has: bool) -> None:
    codegen = SimpleNamespace(magic_tuple=lambda: (triple, "cpu", features))
    assert has_fma(SimpleNamespace(codegen=lambda: codegen)) is has
