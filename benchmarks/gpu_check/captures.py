"""What the CUDA graphs of an engine cost when it is loaded: time, and memory of the device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.variants import replaced
from engine.execution.cuda_graphs import Progress, Recorder
from engine.execution.gpu_runner import GpuRunner


@contextlib.contextmanager
def captures_told(context: Context) -> Iterator[None]:
    """Have each capture of graphs told that is made meanwhile."""
    capture = GpuRunner.capture_graphs

    def measured(runner: GpuRunner, recorder: Recorder, on_progress: Progress = lambda *_: None) -> None:
        free, started = _free_bytes(context), time.perf_counter()
        capture(runner, recorder, on_progress)
        taken = free - _free_bytes(context)
        context.tell("capture of all CUDA graphs", time.perf_counter() - started, "s")
        context.tell("memory of all CUDA graphs", taken / 2**20, "MiB")

    with replaced(GpuRunner, "capture_graphs", measured):
        yield


def _free_bytes(context: Context) -> int:
    if not context.on_gpu:
        return 0
    torch.cuda.synchronize(context.device)
    return torch.cuda.mem_get_info(context.device)[0]
