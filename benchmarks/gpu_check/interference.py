"""How much slower sequences decode while blocks are swapped both ways as fast as the link can.

The same engine decodes alone and beside swaps, in turn. The swaps are of other blocks than those it reads,
but go through the transfers of its own steps: what both share is the device's memory, its copy engines and
the step thread, whose part is told by itself. How fast they went meanwhile is told beside.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from benchmarks.gpu_check.attention_inputs import make_pool
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.engines import Engine
from benchmarks.gpu_check.figures import PINNED_BOTH
from benchmarks.gpu_check.link import Link
from benchmarks.gpu_check.models import load_decoding_engine
from benchmarks.gpu_check.scales import BLOCK_SIZE
from benchmarks.gpu_check.swap_load import WAYS, SwapLoad
from benchmarks.gpu_check.timing import Timing

_TARGET_PERCENT = 5.0


def measure(context: Context) -> None:
    scale = context.scale
    with context.case("decode beside swaps"):
        link = Link(context, make_pool(context, 2 * scale.swap_blocks * BLOCK_SIZE))
        load = SwapLoad(link)
        engine = load_decoding_engine(context, scale.context, 2 * scale.rounds * scale.steps, load)
        link.move(*WAYS)
        found = take_turns(engine, load, scale.rounds, scale.steps)
        link.close()
        _tell(context, found, f"batch {scale.judged_batch} × {scale.context}")


@dataclass(slots=True)
class Found:
    """Seconds of steps, alone and beside swaps, and of the step thread for swaps in the latter. ``first_s``:
    of steps that began to swap. ``swapped_bytes``: what was swapped in ``swapping_s``."""

    alone_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)
    host_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    swapped_bytes: int = 0
    swapping_s: float = 0.0


def take_turns(engine: Engine, load: SwapLoad, rounds: int, steps: int) -> Found:
    """A round has ``steps`` steps alone, one half before and one after as many beside swaps.

    Sequences grow from step to step, and steps take longer by that; so both are at the same length on
    average.
    """
    found = Found()
    for _ in range(rounds):
        before = steps // 2
        found.alone_s += [engine.step().seconds for _ in range(before)]
        _step_beside_swaps(engine, load, steps, found)
        found.alone_s += [engine.step().seconds for _ in range(steps - before)]
    return found


def _step_beside_swaps(engine: Engine, load: SwapLoad, steps: int, found: Found) -> None:
    load.begin()
    found.first_s.append(engine.step().seconds)
    moved, started = load.moved_bytes, time.perf_counter()
    for _ in range(steps - 1):
        host_s = load.host_s
        found.beside_s.append(engine.step().seconds)
        found.host_s.append(load.host_s - host_s)
    found.swapping_s += time.perf_counter() - started
    found.swapped_bytes += load.moved_bytes - moved
    load.end()


def _tell(context: Context, found: Found, what: str) -> None:
    alone, beside = Timing.of(found.alone_s), Timing.of(found.beside_s)
    context.tell_ms(f"decode step alone, {what}", alone)
    context.tell_ms(f"decode step beside swaps, {what}", beside)
    context.tell_ms("the step thread's work for swaps in it", Timing.of(found.host_s))
    slower = 100 * (beside.median_s / alone.median_s - 1)
    context.tell(f"slower beside swaps, {what}", slower, "%", target=_TARGET_PERCENT, is_ceiling=True)
    context.tell_ms("decode step that begins swaps", Timing.of(found.first_s))
    rate = found.swapped_bytes / found.swapping_s / 1e9
    context.tell("swapped both ways beside decode", rate, "GB/s", beside=PINNED_BOTH)
