"""Which binaries launches would take on a GPU, by Triton's own rule, of kernels that are interpreted here."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature

Binary = tuple[str, ...]  # the kernel, types and divisibility of its arguments, constants and options


@functools.cache
def _binder(kernel: InterpretedFunction[Any]) -> Callable[..., Any]:
    """What Triton finds out with whether it has compiled a launch before."""
    compiled: Any = JITFunction(kernel.fn, **kernel.kwargs)
    backend = make_backend(GPUTarget("cuda", 90, 32))
    return create_function_from_signature(compiled.signature, compiled.params, backend)


@contextlib.contextmanager
def noting_binaries() -> Iterator[set[Binary]]:
    """The binaries of all that is launched meanwhile."""
    found: set[Binary] = set()
    run = InterpretedFunction.run

    def noted(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> None:
        _, specialization, options = _binder(kernel)(*arguments, **constants)
        found.add((kernel.__name__, *map(repr, specialization), repr(sorted(options.items()))))
        run(kernel, *arguments, grid=grid, warmup=warmup, **constants)

    with mock.patch.object(InterpretedFunction, "run", noted):
        yield found
