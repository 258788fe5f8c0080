"""CUDA graphs of whole decode steps, one for each of a few batch sizes, to which batches are padded.

Runs on: step thread. Launching the kernels of a small step one by one takes the host longer than the device
takes to run them; a graph is one launch. What is captured reads and writes memory at fixed addresses, and
depends on nothing that the host knows of a step but its size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

Progress = Callable[[str, int, int], None]
_FINE_STEP, _FINE_UP_TO = 8, 256
_COARSE_STEP = 32


class Graph(Protocol):
    """Work that was captured."""

    def replay(self) -> None:
        """Enqueue it again."""
        ...


class Recorder(Protocol):
    """Captures work."""

    def record(self, work: Callable[[], None]) -> Graph:
        """Capture what ``work`` enqueues. It is called more than once, and must come to nothing else."""
        ...


class CudaRecorder:
    """Captures into one pool of memory, which all graphs share: only one of them runs at a time.

    So what a graph computes must be copied to where others do not compute, within the graph.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._memory = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], None]) -> Graph:
        """Compile kernels and load libraries by a first run, which cannot be done during a capture."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()
        current.wait_stream(self._stream)
        with torch.cuda.stream(current):  # which a capture that fails would not make the current one again
            return self._capture(work)

    def _capture(self, work: Callable[[], None]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as those that wait for copies, may call the driver meanwhile.
        with torch.cuda.graph(
            graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"
        ):
            work()
        return graph


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes to capture, ascending: close enough to each other that padding costs little."""
    sizes = {1, 2, 4, max_num_seqs}
    sizes.update(range(_FINE_STEP, _FINE_UP_TO + 1, _FINE_STEP))
    sizes.update(range(_FINE_UP_TO, max_num_seqs, _COARSE_STEP))
    return tuple(sorted(size for size in sizes if size <= max_num_seqs))


class DecodeGraphs:
    """Graphs of ``work(size)``, a decode step of ``size`` sequences.

    ``prepare(size)`` sends a step for it to compute, which a capture runs but must not contain.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        prepare: Callable[[int], None],
        work: Callable[[int], None],
        recorder: Recorder,
    ) -> None:
        self._sizes = tuple(sizes)
        self._prepare = prepare
        self._work = work
        self._recorder = recorder
        self._graphs: dict[int, Graph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def capture(self, on_progress: Progress) -> None:
        """Capture all sizes, the largest first: the others then find its memory in the pool.

        Raises RuntimeError, as torch does, for want of memory or for work that cannot be captured.
        """
        for count, size in enumerate(reversed(self._sizes), start=1):
            self._prepare(size)
            self._graphs[size] = self._recorder.record(partial(self._work, size))
            on_progress("graphs", count, len(self._sizes))

    def size_for(self, num_seqs: int) -> int | None:
        """The least captured size that so many sequences fit; None: there is none."""
        return next((size for size in self._sizes if size >= num_seqs and size in self._graphs), None)

    def replay(self, size: int) -> None:
        """Enqueue a decode step of ``size`` sequences."""
        self._graphs[size].replay()


class MemoryUse:
    """What the device has less of, and how long it has been, since this was made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free_bytes = self._free()
        self._started = time.perf_counter()

    def _free(self) -> int:
        torch.cuda.synchronize(self._device)
        return torch.cuda.mem_get_info(self._device)[0]

    def __str__(self) -> str:
        taken = self._free_bytes - self._free()
        return f"{taken / 2**20:.0f} MiB in {time.perf_counter() - self._started:.1f} s"
