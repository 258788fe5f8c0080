"""``triton.jit`` with types, and with one rule: what varies from step to step never makes another binary.

Triton compiles a kernel anew for an integer that is 1 and for one that 16 divides. In a serving process
that is a stall of a second in the middle of a stream, and a second binary may round in another way than
the first. So integers that vary are passed as ``varying``; what is fixed for a model is a ``constexpr``.
Where the environment has ``TRITON_INTERPRET=1`` as this is imported, kernels run in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import triton


class Kernel(Protocol):
    """A function on the device: ``kernel[grid](*arguments, **constants)`` launches it.

    From within another kernel it is called like any function.
    """

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...

    def __call__(self, *arguments: Any, **constants: Any) -> Any: ...


def jit(*, varying: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorator for a kernel. ``varying``: integers and pointers that differ between launches.

    A varying pointer may have any alignment; all others are divisible by 16.
    """
    names = list(varying)
    decorate = triton.jit(do_not_specialize=names, do_not_specialize_on_alignment=names)
    return cast(Callable[[Callable[..., Any]], Kernel], decorate)
