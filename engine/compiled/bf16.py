"""bfloat16 in compiled code, which knows the type only by its bits: a uint16, the upper half of a float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.compiled.jit import jit, specialize


def widen(value: Any) -> Any:
    """A float32 as it is, or the float32 whose upper half are these bf16 bits."""
    raise NotImplementedError("compiled code only")


@specialize(widen)
def _widen_overload(value: Any) -> Any:
    if str(value) == "uint16":

        def widen(value: Any) -> Any:
            return np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    else:

        def widen(value: Any) -> Any:
            return value

    return widen


@jit()
def _bits(value: Any) -> Any:
    """Bits of the nearest bf16, ties to even."""
    bits = np.float32(value).view(np.uint32)
    rounded = np.uint32(bits + np.uint32(0x7FFF) + (np.uint32(bits >> np.uint32(16)) & np.uint32(1)))
    if value != value:  # rounding could carry a NaN's mantissa away
        rounded = np.uint32(0x7FC00000)
    return np.uint16(rounded >> np.uint32(16))


def store(row: Any, index: Any, value: Any) -> None:
    """``row[index] = value`` in the row's own format (float32, or bf16 bits in uint16)."""
    raise NotImplementedError("compiled code only")


@specialize(store)
def _store_overload(row: Any, index: Any, value: Any) -> Any:
    if str(row.dtype) == "uint16":

        def store(row: Any, index: Any, value: Any) -> None:
            row[index] = _bits(value)
    else:

        def store(row: Any, index: Any, value: Any) -> None:
            row[index] = value

    return store
