"""How much slower sequences decode while blocks are swapped both ways as fast as the link can.

The same engine decodes alone and beside swaps, in turn; the swaps are of other blocks than those it reads, so
all that they share is the device's memory, its copy engines and the host. How fast they went meanwhile is
told beside.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

from benchmarks.gpu_check.attention_inputs import make_pool
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.engines import Engine
from benchmarks.gpu_check.figures import PINNED_BOTH
from benchmarks.gpu_check.link import Link
from benchmarks.gpu_check.models import load_decoding_engine
from benchmarks.gpu_check.scales import BLOCK_SIZE
from tiering.types import TransferKind

_TARGET_PERCENT = 5.0
_WAYS = (TransferKind.SWAP_OUT, TransferKind.SWAP_IN)


def measure(context: Context) -> None:
    scale = context.scale
    with context.case("decode beside swaps"):
        engine = load_decoding_engine(context, scale.context, 2 * scale.rounds * scale.steps)
        link = Link(context, make_pool(context, 2 * scale.swap_blocks * BLOCK_SIZE))
        found = _take_turns(engine, link, scale.rounds, scale.steps)
        link.close()
        _tell(context, found, f"batch {scale.judged_batch} × {scale.context}")


@dataclass(slots=True)
class _Found:
    """Seconds of steps, alone and beside swaps, and what was swapped in which time."""

    alone_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)
    swapped_bytes: int = 0
    swapping_s: float = 0.0


def _take_turns(engine: Engine, link: Link, rounds: int, steps: int) -> _Found:
    found = _Found()
    link.move(*_WAYS)
    for _ in range(rounds):
        found.alone_s += [engine.step().seconds for _ in range(steps)]
        _step_beside_swaps(engine, link, steps, found)
    return found


def _step_beside_swaps(engine: Engine, link: Link, steps: int, found: _Found) -> None:
    """There are always more moves under way than a step could take."""
    pending = 0
    started = time.perf_counter()
    for number in range(steps):
        while pending <= len(_WAYS) * link.num_moved:
            pending += _submit(link)
        step = engine.step()
        ended = link.poll()
        pending -= ended
        if number:  # in the first the link has only begun
            found.beside_s.append(step.seconds)
        found.swapped_bytes += ended * link.block_bytes
    found.swapping_s += time.perf_counter() - started
    link.wait(pending)


def _submit(link: Link) -> int:
    jobs = [job for kind in _WAYS for job in link.jobs(kind)]
    link.mover.submit(jobs)
    return len(jobs)


def _tell(context: Context, found: _Found, what: str) -> None:
    alone_s, beside_s = statistics.median(found.alone_s), statistics.median(found.beside_s)
    context.tell(f"decode step alone, {what}", 1000 * alone_s, "ms")
    context.tell(f"decode step beside swaps, {what}", 1000 * beside_s, "ms")
    slower = 100 * (beside_s / alone_s - 1)
    context.tell(f"slower beside swaps, {what}", slower, "%", target=_TARGET_PERCENT, is_ceiling=True)
    rate = found.swapped_bytes / found.swapping_s / 1e9
    context.tell("swapped both ways beside decode", rate, "GB/s", beside=PINNED_BOTH)
