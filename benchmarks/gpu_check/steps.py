"""What a decode step costs beside the kernels: the time in which the device waits for the host.

The time of whole steps (schedule, execute, update) is taken by the clock; and in other steps of the same run,
half of the timed ones before them and half after, since contexts grow, how long the device was at work in
each, from a trace of what it executed. The difference is the overhead: it has the host's work that hides
behind no kernel, and the gaps between kernels.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.engines import Engine
from benchmarks.gpu_check.models import load_decoding_engine
from benchmarks.gpu_check.timing import Timing

_TARGET_MS = 1.0
_TRACED_STEPS = 10


def measure(context: Context) -> None:
    batch, steps = context.scale.judged_batch, context.scale.steps
    name = f"step overhead outside kernels, batch {batch}"
    with context.case(name):
        num_steps = steps // 2 + steps + 1 + _TRACED_STEPS
        engine = load_decoding_engine(context, context.scale.workload.prompt_len, num_steps)
        for _ in range(steps // 2):
            engine.step()
        wall_s, busy_s = _around(engine, steps, _busy_s if context.on_gpu else _never_busy_s)
        step_ms, busy_ms = 1000 * statistics.median(wall_s), 1000 * busy_s
        context.tell_ms(f"decode step, batch {batch}", Timing.of(wall_s))
        context.tell(f"device at work in it, batch {batch}", busy_ms, "ms")
        context.tell(name, step_ms - busy_ms, "ms", target=_TARGET_MS, is_ceiling=True)


def _around(engine: Engine, steps: int, measure: Callable[[Engine], float]) -> tuple[list[float], float]:
    """Seconds of ``steps`` steps, and what was measured in the middle of them."""
    before = [engine.step().seconds for _ in range(steps // 2)]
    measured = measure(engine)
    return before + [engine.step().seconds for _ in range(steps - steps // 2)], measured


def _never_busy_s(_: Engine) -> float:
    return 0.0


def _busy_s(engine: Engine) -> float:
    """Seconds of a step in which the device was at work, on average."""
    engine.step()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        for _ in range(_TRACED_STEPS):
            engine.step()
        torch.cuda.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in trace.events()
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    ]
    if not spans:
        raise RuntimeError("the trace has nothing that the device executed; is the profiler's library there?")
    return covered(spans) / 1e6 / _TRACED_STEPS


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
