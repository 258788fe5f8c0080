"""How the CPU kernels are compiled: numba with an on-disk cache wherever one can be written.

numba looks for ``NUMBA_CACHE_DIR``, then ``__pycache__`` beside the source, then the user's cache
directory. Where none of them can be written (a read-only install and no home) it refuses to define
the function at all; such a process compiles in memory instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numba.extending

P = ParamSpec("P")
R = TypeVar("R")

# Sums may be reordered and fused, which vector registers need. NaN and infinity keep their meaning
# ("nnan" and "ninf" are left out): a broken row must show as NaN, not as a plausible number.
_FASTMATH = {"reassoc", "contract", "nsz", "arcp"}


def jit(*, parallel: bool = False, no_nans: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """``numba.njit`` with our flags, cached on disk if possible."""
    options: dict[str, Any] = {
        "parallel": parallel,
        "fastmath": _FASTMATH | {"nnan"} if no_nans else _FASTMATH,
        "error_model": "numpy",
        "nogil": True,
    }

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        try:
            compiled = numba.njit(function, cache=True, **options)
        except RuntimeError:
            compiled = numba.njit(function, **options)
        return cast(Callable[P, R], compiled)

    return decorate


def specialize(stub: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """``numba.extending.overload``: what compiled code inlines for ``stub``, by argument type."""
    return cast(Callable[[Callable[P, R]], Callable[P, R]], numba.extending.overload(stub, inline="always"))
