"""What holds for every kernel of the CPU."""

from __future__ import annotations

import re
from pathlib import Path

import engine

_COMPILES = re.compile(r"\b(njit|vectorize|guvectorize|cfunc)\b")


def test_all_that_is_compiled_is_compiled_in_one_way() -> None:
    """Which leaves no rounding to the compiler."""
    package = Path(engine.__file__).parent
    compiling = {path for path in package.rglob("*.py") if _COMPILES.search(path.read_text())}
    assert compiling == {package / "compiled" / "jit.py"}
