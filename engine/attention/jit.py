"""How the CPU kernels are compiled: numba with an on-disk cache wherever one can be written.

numba looks for ``NUMBA_CACHE_DIR``, then ``__pycache__`` beside the source, then the user's cache
directory. Where none of them can be written (a read-only install and no home) it refuses to define
the function at all; such a process compiles in memory instead.

The compiler may change no rounding: it may not reorder sums, nor fuse a product with a sum. With such
leave, bits would depend on what else a process compiled or loaded before. For numba optimises a function
anew in every module that calls it, each time with other instructions, and the linker takes whichever copy
it met first: in a process that compiles not the same as in one that loads from the cache. So what vector
registers need, fused products and sums in lanes, stands in the kernels' source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numba.extending

P = ParamSpec("P")
R = TypeVar("R")

# What a search for the largest number needs for vector registers.
_ANY_ORDER = {"nnan", "nsz"}


def jit(*, parallel: bool = False, any_order: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """``numba.njit`` with our flags, cached on disk if possible.

    ``any_order`` is for a function that only compares, and so rounds nothing. It may overlook a NaN.
    """
    options: dict[str, Any] = {
        "parallel": parallel,
        "fastmath": _ANY_ORDER if any_order else False,
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


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """``numba.extending.intrinsic``: what compiled code has for a call, as LLVM's instructions."""
    return cast(Callable[..., Any], numba.extending.intrinsic(function))


def has_fma(context: Any) -> bool:
    """Whether the CPU that ``context`` compiles for has fused multiply-add, as all but old x86 ones do.

    Without, LLVM would call the C library for each.
    """
    triple, _, features = context.codegen().magic_tuple()
    return not triple.startswith("x86") or "+fma" in features.split(",")
