"""How the CPU kernels are compiled: numba with an on-disk cache wherever one can be written.

numba looks for ``NUMBA_CACHE_DIR``, then ``__pycache__`` beside the source, then the user's cache
directory. Where none of them can be written (a read-only install and no home) it refuses to define
the function at all; such a process compiles in memory instead. What a kernel calls may stand in another
file of its directory or of this one, though numba looks for changes in the kernel's own file only: the name
under which it is cached has a digest of them all.

The compiler may change no rounding: it may not reorder sums, nor fuse a product with a sum. With such
leave, bits would depend on what else a process compiled or loaded before. For numba optimises a function
anew in every module that calls it, each time with other instructions, and the linker takes whichever copy
it met first: in a process that compiles not the same as in one that loads from the cache. So what vector
registers need, fused products and sums in lanes, stands in the kernels' source.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numba.extending

P = ParamSpec("P")
R = TypeVar("R")


def jit(
    *, parallel: bool = False, inline: bool = False, wrapped: bool = True
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """``numba.njit`` with our flags, cached on disk if possible.

    ``inline`` is for a function with one caller, of which it becomes a part: LLVM optimises all that a
    function calls once more with each caller, so every level of calls costs seconds. Without ``wrapped``
    Python cannot call it, and need not wait for code that would take its arguments apart.
    """
    options: dict[str, Any] = {
        "parallel": parallel,
        "fastmath": False,
        "error_model": "numpy",
        "nogil": True,
        "inline": "always" if inline else "never",
        "no_cpython_wrapper": not wrapped,
        "no_cfunc_wrapper": not wrapped,
    }

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        function.__qualname__ += "_" + sources_digest(Path(function.__code__.co_filename).parent)
        try:
            compiled = numba.njit(function, cache=True, **options)
        except RuntimeError:
            compiled = numba.njit(function, **options)
        return cast(Callable[P, R], compiled)

    return decorate


@functools.cache
def sources_digest(directory: Path) -> str:
    """Of the Python files in a directory and in this one's: 16 hexadecimal digits."""
    hasher = hashlib.blake2b(digest_size=8)
    for path in (*sorted(Path(__file__).parent.glob("*.py")), *sorted(directory.glob("*.py"))):
        source = path.read_bytes()
        hasher.update(f"{path.name} {len(source)} ".encode() + source)
    return hasher.hexdigest()


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
    triple, _, _ = context.codegen().magic_tuple()
    return not triple.startswith("x86") or has_feature(context, "fma")


def has_wide_registers(context: Any) -> bool:
    """Whether the CPU that ``context`` compiles for has 32 vector registers of 512 bits."""
    return has_feature(context, "avx512f")


def has_feature(context: Any, name: str) -> bool:
    """Whether the CPU that ``context`` compiles for has what LLVM calls by that name."""
    return f"+{name}" in context.codegen().magic_tuple()[2].split(",")
