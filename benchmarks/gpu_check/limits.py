"""What the card and its link can do: the limits that all other figures stand beside.

Through torch, on random data (a matrix product of zeros is faster), on several sets of it beyond the caches,
when the device has multiplied matrices for long enough to have raised its clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.figures import COPY, MATMUL, PINNED_BOTH, PINNED_IN, PINNED_OUT, READ
from benchmarks.gpu_check.timing import Timing, keep_busy, timed

_NUM_SETS = 2
_RAISING_S = 0.5


def measure(context: Context) -> None:
    for name, measure_limit in DEVICE_LIMITS.items():
        with context.case(name):
            measure_limit(context, name)
    with context.case(PINNED_OUT):
        _pinned(context)


def _random(context: Context, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=context.dtype, device=context.device).normal_()


def _copy(context: Context, name: str) -> None:
    """Bytes read and bytes written both count."""
    size = context.scale.copy_bytes // context.dtype.itemsize
    sources = [_random(context, size) for _ in range(_NUM_SETS)]
    target = torch.empty_like(sources[0])
    timing = _time(context, lambda number: target.copy_(sources[number % _NUM_SETS]))
    _tell_limit(context, COPY, name, 2 * target.nbytes, timing, "GB/s")


def _read(context: Context, name: str) -> None:
    """The sum of a tensor: what a kernel that only reads can hope for."""
    size = context.scale.copy_bytes // context.dtype.itemsize
    sources = [_random(context, size) for _ in range(_NUM_SETS)]
    timing = _time(context, lambda number: sources[number % _NUM_SETS].sum(dtype=torch.float32))
    _tell_limit(context, READ, name, sources[0].nbytes, timing, "GB/s")


def _matmul(context: Context, name: str) -> None:
    size = context.scale.matmul_size
    pairs = [(_random(context, size, size), _random(context, size, size)) for _ in range(_NUM_SETS)]
    out = _random(context, size, size)
    timing = _time(context, lambda number: torch.mm(*pairs[number % _NUM_SETS], out=out))
    _tell_limit(context, MATMUL, name, 2 * size**3, timing, "TFLOP/s")


def _tell_limit(context: Context, first: str, name: str, amount: float, timing: Timing, unit: str) -> None:
    """Beside what was measured ``first``, if this is not that."""
    context.tell_rate(name, amount, timing, unit, beside="" if name == first else first)


def _time(context: Context, work: Callable[[int], object]) -> Timing:
    _raise_clocks(context)
    return timed(work, context.device, context.scale.repeats)


def _raise_clocks(context: Context) -> None:
    """Have an idle device work for a while."""
    if not context.on_gpu:
        return
    matrix = _random(context, context.scale.matmul_size, context.scale.matmul_size)
    out = torch.empty_like(matrix)
    keep_busy(lambda _: torch.mm(matrix, matrix, out=out), context.device, _RAISING_S)


DEVICE_LIMITS: dict[str, Callable[[Context, str], None]] = {COPY: _copy, READ: _read, MATMUL: _matmul}
"""By name, what measures a limit and tells it under another, or the same."""


def _pinned(context: Context) -> None:
    link = _Link(context)
    for name, directions in (
        (PINNED_OUT, (link.copy_out,)),
        (PINNED_IN, (link.copy_in,)),
        (PINNED_BOTH, (link.copy_out, link.copy_in)),
    ):
        timing = _time(context, partial(link.at_once, directions))
        context.tell_rate(name, len(directions) * context.scale.pinned_bytes, timing, "GB/s")


class _Link:
    """Large copies between pinned memory and the device, each direction on a stream of its own."""

    def __init__(self, context: Context) -> None:
        size = context.scale.pinned_bytes // context.dtype.itemsize
        self._device = [_random(context, size) for _ in range(2)]
        self._host = [torch.empty(size, dtype=context.dtype, pin_memory=context.on_gpu) for _ in range(2)]
        self._streams = [torch.cuda.Stream(context.device) for _ in range(2)] if context.on_gpu else []

    def copy_out(self) -> None:
        self._host[0].copy_(self._device[0], non_blocking=True)

    def copy_in(self) -> None:
        self._device[1].copy_(self._host[1], non_blocking=True)

    def at_once(self, directions: Sequence[Callable[[], None]], _: int) -> None:
        """Begin all after what is enqueued; what is enqueued later comes after all."""
        if not self._streams:
            for copy in directions:
                copy()
            return
        current = torch.cuda.current_stream()
        for copy, stream in zip(directions, self._streams, strict=False):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                copy()
        for stream in self._streams:
            current.wait_stream(stream)
