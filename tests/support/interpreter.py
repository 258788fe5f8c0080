"""Whether kernels are interpreted in this process, which has to be settled before the first is imported."""

from __future__ import annotations

import os
from pathlib import Path

_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def interpret_kernels() -> None:
    """Have Triton interpret kernels on CPU tensors, unless there is a GPU to compile them for.

    To be called before triton is loaded. ``TRITON_INTERPRET=1`` in the environment interprets them anyway.
    """
    if not any(device.exists() for device in _DEVICES):
        os.environ["TRITON_INTERPRET"] = "1"


def are_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
