"""Swaps of KV blocks by the engine's mover, beside plain copies between pinned memory and the device.

Blocks are scattered on both sides, one copy each, handed in all at once.
"""

from __future__ import annotations

from benchmarks.gpu_check.attention_inputs import make_pool
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.figures import PINNED_BOTH, PINNED_IN, PINNED_OUT
from benchmarks.gpu_check.link import Link, TimedPinning
from benchmarks.gpu_check.scales import BLOCK_SIZE
from benchmarks.gpu_check.timing import Timing
from tiering.types import TransferKind

_TARGET = 0.90
_WAYS = (
    ("swap out", (TransferKind.SWAP_OUT,), PINNED_OUT),
    ("swap in", (TransferKind.SWAP_IN,), PINNED_IN),
    ("swap both ways at once", (TransferKind.SWAP_OUT, TransferKind.SWAP_IN), PINNED_BOTH),
)


def measure(context: Context) -> None:
    blocks = context.scale.swap_blocks
    with context.case("swap"):
        link = Link(context, make_pool(context, 2 * blocks * BLOCK_SIZE))
        context.tell_facts({"swaps by": link.description})
        if context.on_gpu and link.num_unpinned:
            context.tell_failure("pinned host memory", f"{link.num_unpinned} slots are not; the log says why")
        if link.pinning is not None:
            tell_pinning(context, link.pinning)
        for name, kinds, limit in _WAYS:
            with context.case(name):
                link.move(*kinds)
                timing = Timing.of([link.move(*kinds) for _ in range(context.scale.repeats)])
                moved = len(kinds) * blocks * link.block_bytes
                context.tell_rate(name, moved, timing, "GB/s", beside=limit, target=_TARGET)
        link.close()


def tell_pinning(context: Context, pinning: TimedPinning) -> None:
    """How long it takes by the GiB, and by the call, for which other calls of the driver may have to wait."""
    if not pinning.seconds:
        return
    context.tell("pinning of host memory", sum(pinning.seconds) / (pinning.num_bytes / 2**30), "s/GiB")
    context.tell_ms("one call of it", Timing.of(pinning.seconds))
