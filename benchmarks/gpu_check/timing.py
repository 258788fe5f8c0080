"""How long work takes: device events on a GPU, the clock elsewhere; warmed up, repeated, the median told.

A device is warmed up for a while and not for a few calls: one that was idle raises its clocks slowly.

What is timed is handed a number that grows from call to call, by which it chooses its inputs: several sets
that do not fit the caches together, or a repeat would measure the cache. Small launches are captured in a
CUDA graph, so that the gaps between them, which no serving step has, do not count.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Work = Callable[[int], object]
_WARM_UPS = 3  # calls, at least
_WARM_UP_S = 0.1
_AHEAD = 8  # calls that are enqueued before the host looks how far the device is
_AT_LEAST_S = 0.0005  # of one timed region, below which events are too coarse
_MOST_CALLS = 64


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call. ``spread``: the middle half of the measurements, by their median."""

    median_s: float
    spread: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        median = statistics.median(seconds)
        if len(seconds) < 4:
            return cls(median, (max(seconds) - min(seconds)) / median)
        lower, _, upper = statistics.quantiles(seconds, n=4)
        return cls(median, (upper - lower) / median)


def timed(work: Work, device: torch.device, repeats: int) -> Timing:
    """Of ``work`` called as it is: for work that takes the device far longer than it takes to enqueue."""
    for number in range(_WARM_UPS):
        work(number)
    keep_busy(work, device, _WARM_UP_S)
    return _timed_regions(work, 1, device, repeats)


def timed_in_graph(work: Work, device: torch.device, repeats: int, num_inputs: int) -> Timing:
    """Of ``work`` within a CUDA graph that calls it with all of 0 to ``num_inputs`` - 1, in turn."""
    for number in range(max(num_inputs, _WARM_UPS)):
        work(number % num_inputs)  # compiles, and lets libraries allocate what they keep
    if device.type != "cuda":
        return _timed_regions(lambda number: work(number % num_inputs), 1, device, repeats)
    graph = capture(lambda: [work(number) for number in range(num_inputs)])
    keep_busy(lambda _: graph.replay(), device, _WARM_UP_S)
    replayed = _timed_regions(lambda _: graph.replay(), 1, device, max(3, repeats))
    return Timing(replayed.median_s / num_inputs, replayed.spread)


def keep_busy(work: Work, device: torch.device, seconds: float) -> None:
    """Have a GPU do ``work`` for so long; nothing where there is none."""
    if device.type != "cuda":
        return
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(_AHEAD):
            work(number)
            number += 1
        torch.cuda.synchronize(device)


def capture(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """``work``, which must have run before, as a graph; its results stay in the graph's memory."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _timed_regions(work: Work, first: int, device: torch.device, repeats: int) -> Timing:
    if device.type != "cuda":
        return Timing.of([_clocked(work, first + number) for number in range(repeats)])
    calls = _calls_per_region(work, device)
    events = [(_event(), _event()) for _ in range(repeats)]
    for region, (started, ended) in enumerate(events):
        started.record()
        for number in range(calls):
            work(first + region * calls + number)
        ended.record()
    torch.cuda.synchronize(device)
    return Timing.of([started.elapsed_time(ended) / 1000 / calls for started, ended in events])


def _calls_per_region(work: Work, device: torch.device) -> int:
    """So many that a region is long enough for events to tell."""
    started, ended = _event(), _event()
    started.record()
    work(0)
    ended.record()
    torch.cuda.synchronize(device)
    seconds: float = max(1e-6, started.elapsed_time(ended) / 1000)
    return max(1, min(_MOST_CALLS, math.ceil(_AT_LEAST_S / seconds)))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _clocked(work: Work, number: int) -> float:
    started = time.perf_counter()
    work(number)
    return time.perf_counter() - started
