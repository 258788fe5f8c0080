"""numba kernel of the CPU backend for what comes before attention: RoPE, and K and V into the pool.

A bf16 pool is passed as its uint16 bits; all arithmetic is float32. The kernel of decodes does the same to
its rows by the same functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from engine.compiled.bf16 import store
from engine.compiled.jit import jit


@jit()
def rotate_head(source: Any, target: Any, cos: Any, sin: Any, scale: Any) -> None:
    """Rotate one float32 head ``[D]``, halves paired as in Hugging Face's layout, times ``scale``."""
    half = cos.shape[0]
    for d in range(half):
        low, high = source[d], source[d + half]
        store(target, d, (low * cos[d] - high * sin[d]) * scale)
        store(target, d + half, (high * cos[d] + low * sin[d]) * scale)


@jit(inline=True)
def store_head(
    row: Any, num_heads: int, head: int, cos: Any, sin: Any, slot: int, pool: Any, layer: int
) -> None:
    """Write one KV head of a row of ``qkv`` into the pool, K rotated."""
    num_kv_heads, block_size, head_dim = pool.shape[3:]
    block, offset = slot // block_size, slot % block_size
    k = (num_heads + head) * head_dim
    v = k + num_kv_heads * head_dim
    rotate_head(row[k : k + head_dim], pool[block, layer, 0, head, offset], cos, sin, np.float32(1.0))
    value = pool[block, layer, 1, head, offset]
    for d in range(head_dim):  # a slice's assignment takes seconds longer to compile
        store(value, d, row[v + d])


@jit(inline=True)
def _rotate_rows(
    first: int, last: int, qkv: Any, cos: Any, sin: Any, slots: Any,
    pool: Any, layer: int, query: Any, scale: Any,
) -> None:  # fmt: skip
    num_kv_heads, head_dim = pool.shape[3], pool.shape[5]
    group = query.shape[1] // qkv.shape[0]
    num_heads = num_kv_heads * group
    for t in range(first, last):
        for h in range(num_heads):
            target = query[h // group, t * group + h % group]
            rotate_head(qkv[t, h * head_dim : (h + 1) * head_dim], target, cos[t], sin[t], scale)
        for h in range(num_kv_heads):
            store_head(qkv[t], num_heads, h, cos[t], sin[t], slots[t], pool, layer)


@jit(parallel=True)
def rotate_and_store(
    qkv: Any, cos: Any, sin: Any, slots: Any, pool: Any, layer: int,
    query: Any, scale: Any, lanes: int,
) -> None:  # fmt: skip
    """Rotate Q of ``qkv`` into ``query``, times ``scale``, and K into the pool beside V.

    ``query`` is ``[Hkv, T * group, D]``: a KV head's queries row by row. All but the pool are float32.
    """
    num_rows = qkv.shape[0]
    for lane in prange(lanes):
        first, last = lane * num_rows // lanes, (lane + 1) * num_rows // lanes
        _rotate_rows(first, last, qkv, cos, sin, slots, pool, layer, query, scale)
