"""What stands in for CUDA graphs where there is no GPU: work that is called again instead of replayed.

A graph that was captured does the same whatever the host has become meanwhile. So a replay here fails if what
it enqueues is not, call by call, what the capture enqueued: the same operations and kernels on tensors of the
same shapes at the same addresses, with the same numbers. And nothing of a step may be left over for the next,
so what the work is to write is spoilt before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import InterpretedFunction

_READS = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__")


class _Trace(TorchDispatchMode):
    """What is enqueued while it is active, as values."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []
        self._made: dict[int, int] = {}  # address of a storage: which it is of those made here
        self._found: set[int] = set()
        self._kept: list[torch.Tensor] = []  # so that no address is used twice

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.note(str(func), args, kwargs or {})
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                address = tensor.untyped_storage().data_ptr()
                if address not in self._found:
                    self._made.setdefault(address, len(self._made))
                    self._kept.append(tensor)
        return out

    def note(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *(self._described(leaf) for leaf in tree_leaves(arguments))))

    def _described(self, leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor):
            return repr(leaf)
        address = leaf.untyped_storage().data_ptr()
        if address not in self._made:
            self._found.add(address)
        place = self._made.get(address, f"at {address:x}")
        return (place, leaf.storage_offset(), tuple(leaf.shape), leaf.stride(), leaf.dtype)


def _no_reads(self: torch.Tensor, *_: object) -> None:
    raise AssertionError("the host reads what is on the device, within a graph")


@contextlib.contextmanager
def _tracing() -> Iterator[_Trace]:
    trace, run = _Trace(), InterpretedFunction.run

    def noted(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> None:
        trace.note(kernel.__name__, grid, arguments, constants)
        with _disable_current_modes(), _reading(allowed=True):
            run(kernel, *arguments, grid=grid, warmup=warmup, **constants)

    with mock.patch.object(InterpretedFunction, "run", noted), _reading(allowed=False), trace:
        yield trace


_ALLOWED = {name: getattr(torch.Tensor, name) for name in _READS}


@contextlib.contextmanager
def _reading(*, allowed: bool) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, read in _ALLOWED.items():
            stack.enter_context(mock.patch.object(torch.Tensor, name, read if allowed else _no_reads))
        yield


class RepeatedGraph:
    """Calls work again, over spoilt tensors."""

    def __init__(
        self, work: Callable[[], None], spoilt: Sequence[torch.Tensor], trace: _Trace | None
    ) -> None:
        self._work = work
        self._spoilt = spoilt
        self._trace = trace
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1
        for tensor in self._spoilt:
            spoil(tensor)
        if self._trace is None:
            self._work()
            return
        with _tracing() as trace:
            self._work()
        assert trace.calls == self._trace.calls, "a graph would not do this"


class RepeatingRecorder:
    """Records work for ``RepeatedGraph``. ``spoilt`` is what the work must write before it reads it.

    Not ``is_strict``: what the work enqueues may depend on what it finds on the device, and it may look.
    """

    def __init__(self, spoilt: Sequence[torch.Tensor], *, is_strict: bool) -> None:
        self._spoilt = spoilt
        self._is_strict = is_strict
        self.graphs: list[RepeatedGraph] = []

    def record(self, work: Callable[[], None]) -> RepeatedGraph:
        work()
        trace = None
        if self._is_strict:
            with _tracing() as trace:
                work()
        self.graphs.append(RepeatedGraph(work, self._spoilt, trace))
        return self.graphs[-1]

    @property
    def num_replays(self) -> int:
        return sum(graph.num_replays for graph in self.graphs)


def spoil(tensor: torch.Tensor) -> None:
    """Fill with what gives another result, wherever it is read, and no address outside of a small pool."""
    tensor.fill_(float("nan") if tensor.is_floating_point() else 1)
