"""Products of tiles as a device computes them: a row's result does not depend on where in the tile it is.

That of numpy, which Triton's interpreter takes, depends on it; so what claims that rows stand alone is
tested with this one in its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def multiply_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the interpreter compute each row of a product by itself."""
    monkeypatch.setattr(InterpreterBuilder, "create_dot", _product_by_row)


def _product_by_row(_: Any, left: Any, right: Any, total: Any, *options: Any) -> Any:
    rows = [np.matmul(row[None], right.data, dtype=np.float32)[0] for row in left.data]
    return TensorHandle(np.stack(rows) + total.data, total.dtype.scalar)
