"""Whether kernels are interpreted in this process, which has to be settled before the first is imported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def interpret_kernels() -> None:
    """Have Triton interpret kernels on CPU tensors, unless there is a GPU to compile them for.

    To be called before triton is loaded. ``TRITON_INTERPRET=1`` in the environment interprets them anyway.
    """
    if not any(device.exists() for device in _DEVICES):
        os.environ["TRITON_INTERPRET"] = "1"


def are_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def multiply_rows_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the interpreter's products summed in one order for every row.

    It leaves them to BLAS, where a row's sum depends on its place in the tile; a tensor core has one order.
    """
    from triton.runtime import interpreter

    def create_dot(_: Any, a: Any, b: Any, acc: Any, *precision: Any) -> Any:
        left, right, total = a.data.astype(np.float32), b.data.astype(np.float32), acc.data.copy()
        for k in range(left.shape[1]):
            total += left[:, k : k + 1] * right[k]
        return interpreter.TensorHandle(total, acc.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
