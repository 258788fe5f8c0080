"""RoPE of Q and K and the write of K and V into the pool, one launch a layer.

Every element of the projection is read once and written once. Runs on: step thread; launches only.
"""

from __future__ import annotations

import torch
import triton.language as tl

from engine.attention.triton.configs import KernelShape, rotate_store_launch, rotate_store_programs
from engine.kernels.jit import jit


@jit(varying=["slot_mapping"])
def rotate_store_kernel(
    qkv: tl.tensor, cos: tl.tensor, sin: tl.tensor, slot_mapping: tl.tensor, query: tl.tensor, kv: tl.tensor,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, PADDED_HALF: tl.constexpr,
    HEADS_OF_PROGRAM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr,
    PART_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr, SLOT_STRIDE: tl.constexpr,
) -> None:  # fmt: skip
    """Some heads of one row: the grid is (rows, parts of a row). Heads are Q's, then K's, then V's."""
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS_OF_PROGRAM + tl.arange(0, HEADS_OF_PROGRAM)
    pairs = tl.arange(0, PADDED_HALF)
    is_pair = pairs < HALF
    is_head = (heads < HEADS + 2 * KV_HEADS)[:, None] & is_pair[None, :]
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + heads)[:, None] * (2 * HALF) + pairs[None, :]
    low = tl.load(source, mask=is_head, other=0.0)
    high = tl.load(source + HALF, mask=is_head, other=0.0)
    c = tl.load(cos + row * HALF + pairs, mask=is_pair, other=0.0)[None, :]
    s = tl.load(sin + row * HALF + pairs, mask=is_pair, other=0.0)[None, :]
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    turned_low = (wide_low * c - wide_high * s).to(low.dtype)
    turned_high = (wide_high * c + wide_low * s).to(low.dtype)
    is_value = (heads >= HEADS + KV_HEADS)[:, None]  # V is not rotated
    low = tl.where(is_value, low, turned_low)
    high = tl.where(is_value, high, turned_high)

    is_query = is_head & (heads < HEADS)[:, None]
    target = query + (row * HEADS + heads)[:, None] * (2 * HALF) + pairs[None, :]
    tl.store(target, low, mask=is_query)
    tl.store(target + HALF, high, mask=is_query)

    slot = tl.load(slot_mapping + row)
    is_stored = is_head & (heads >= HEADS)[:, None] & (slot >= 0)
    block = (slot // BLOCK_SIZE).to(tl.int64)  # a pool has more than 2^31 elements
    part, kv_head = (heads - HEADS) // KV_HEADS, (heads - HEADS) % KV_HEADS
    inner = part * PART_STRIDE + kv_head * HEAD_STRIDE + slot % BLOCK_SIZE * SLOT_STRIDE
    target = kv + block * BLOCK_STRIDE + inner[:, None] + pairs[None, :]
    tl.store(target, low, mask=is_stored)
    tl.store(target + HALF, high, mask=is_stored)


def rotate_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    query: torch.Tensor,
    kv: torch.Tensor,
    shape: KernelShape,
) -> None:
    """Rotate Q of ``qkv`` ``[T, (Hq + 2 Hkv) * D]`` into ``query`` ``[T, Hq, D]``, store K and V in ``kv``.

    ``cos`` and ``sin``: float32 ``[T, D / 2]``, halves paired as in Hugging Face's layout. A row of slot -1
    is rotated and not stored. ``kv`` is a layer's view ``[N, 2, Hkv, block_size, D]``.
    """
    assert qkv.is_contiguous() and cos.is_contiguous() and sin.is_contiguous()
    rotate_store_kernel[(qkv.shape[0], rotate_store_programs(shape))](
        qkv, cos, sin, slot_mapping, query, kv, **rotate_store_launch(shape).keywords()
    )
