"""Sizes of KV pools that hold the same tokens on every machine."""

from __future__ import annotations

from functools import cache

from engine.config import EngineConfig
from engine.execution.hardware import choose_hardware


@cache
def _scale() -> int:
    """1 where the CPU has bfloat16, the default then; elsewhere float32 is, and takes twice the room."""
    return choose_hardware(EngineConfig(model="", device="cpu")).dtype.itemsize // 2


def kv_bytes(num_bfloat16: int) -> int:
    """Bytes for KV that takes so many in bfloat16, in the dtype that models have on a CPU like this."""
    return num_bfloat16 * _scale()


def kv_mib(num_bfloat16: int) -> str:
    """The same for a server's options, in MiB."""
    return f"{kv_bytes(num_bfloat16)}MiB"
