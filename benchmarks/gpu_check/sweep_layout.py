"""Decode attention over pools in other orders of the same blocks, to see what the order of ours costs.

Ours has a block contiguous over all layers, so that a swap is one copy; then each layer's attention touches a
small piece of every block, in as many pages. Strides are arguments of the kernels, so a view in another order
will do.
"""

from __future__ import annotations

import torch

from benchmarks.gpu_check.attention_inputs import make_pool
from benchmarks.gpu_check.attention_rates import time_attention
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.figures import COPY
from benchmarks.gpu_check.floors import decode_bytes

# From the order [N, L, 2, Hkv, block_size, D] to the order in memory.
_ORDERS = {
    "a block contiguous over all layers": (0, 1, 2, 3, 4, 5),
    "a pool for each layer": (1, 0, 2, 3, 4, 5),
    "a pool for each layer's K and V": (1, 2, 0, 3, 4, 5),
    "heads within a token": (0, 1, 2, 4, 3, 5),
}


def measure(context: Context) -> None:
    scale, model = context.scale, context.scale.model
    pool = make_pool(context, max(batch * length for batch, length in scale.swept_decodes))
    for batch, length in scale.swept_decodes:
        read = decode_bytes(batch * length, model.num_kv_heads, model.head_dim, context.dtype.itemsize)
        for order, places in _ORDERS.items():
            name = f"decode {batch} × {length}, {order}"
            with context.case(name):
                timing = time_attention(context, _in_order(pool, places), [(length - 1, 1)] * batch)
                context.tell_rate(name, read, timing, "GB/s", beside=COPY)


def _in_order(pool: torch.Tensor, places: tuple[int, ...]) -> torch.Tensor:
    """The memory of a contiguous pool, seen as one of the same blocks in another order."""
    shape = [pool.shape[place] for place in places]
    back = [places.index(dimension) for dimension in range(pool.dim())]
    return pool.view(shape).permute(back)
