"""RoPE and the write of K and V: every row where its slot says, and offsets that no 32 bits hold."""

from __future__ import annotations

import math
import mmap

import pytest
import torch

from engine.attention.base import AttentionShape
from engine.attention.triton.backend import kernel_shape
from engine.attention.triton.configs import KernelShape, extend_tile
from engine.attention.triton.decode import decode
from engine.attention.triton.extend import extend
from engine.attention.triton.rotate_store import rotate_store
from engine.attention.triton.splits import SplitPlan
from tests.support.paged_attention import make_batch, metadata

MAP_NORESERVE = 0x4000  # Linux: memory that is only mapped counts for nothing
FAR_BLOCK = 150
FAR_STRIDE = 2**24  # elements between blocks: the last is 2^31 elements away, and more


@pytest.mark.parametrize("head_dim", [16, 80, 128])
@pytest.mark.parametrize("heads", [(1, 1), (14, 2), (32, 8)])
def test_q_k_and_v_are_each_treated_as_such(head_dim: int, heads: tuple[int, int]) -> None:
    num_heads, num_kv_heads = heads
    batch = make_batch([(5, 3)], AttentionShape(num_heads, num_kv_heads, head_dim), torch.float32)
    query = torch.full((3, num_heads, head_dim), math.nan)
    shape = kernel_shape(batch.pool, batch.shape)
    slots = batch.metadata.slot_mapping
    rotate_store(batch.qkv, batch.cos, batch.sin, slots, query, batch.pool[:, 1], shape)
    keys, values = batch.stored()
    assert torch.equal(values, batch.values)
    torch.testing.assert_close(keys, batch.keys, rtol=1e-6, atol=1e-6)
    low, high = batch.qkv.view(3, -1, head_dim)[:, :num_heads].chunk(2, dim=-1)
    cos, sin = batch.cos[:, None], batch.sin[:, None]
    expected = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
    torch.testing.assert_close(query, expected, rtol=1e-6, atol=1e-6)


def far_pool(head_dim: int) -> tuple[torch.Tensor, KernelShape]:
    """The first block of a pool whose blocks are so far apart that the memory between them is only mapped.

    There is as much before it, where an offset that wrapped around would end.
    """
    assert 2**31 < FAR_BLOCK * FAR_STRIDE < 2**32
    before = 2**31 * 2
    num_bytes = before + (FAR_BLOCK + 1) * FAR_STRIDE * 2
    region = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    near = torch.frombuffer(region, dtype=torch.float16, count=2 * 2 * 16 * head_dim, offset=before)
    kv = near.view(1, 2, 2, 16, head_dim)
    shape = AttentionShape(4, 2, head_dim)
    inner = kernel_shape(kv[:, None], shape)
    far = KernelShape(**{**{f: getattr(inner, f) for f in inner.__slots__}, "block_stride": FAR_STRIDE})
    return kv, far


def test_a_pool_may_have_more_elements_than_32_bits_count() -> None:
    """Store into a far block and attend it by both kernels, as if it were near."""
    head_dim, length = 16, 16
    shape = AttentionShape(4, 2, head_dim)
    batch = make_batch([(0, length)], shape, torch.float16)
    kv, far = far_pool(head_dim)
    found = metadata([(0, length)], [[FAR_BLOCK]], 16)
    query = torch.empty(length, 4, head_dim, dtype=torch.float16)
    rotate_store(batch.qkv, batch.cos, batch.sin, found.slot_mapping, query, kv, far)
    assert (kv == 0).all(), "a far row was stored in a near block"
    out = torch.full_like(query, math.nan)
    extend(query, kv, found, 0, out, None, far, extend_tile(far, length))
    torch.testing.assert_close(out.flatten(1).double(), batch.expected, rtol=4e-3, atol=4e-3)
    last, decoded = query[-1:].clone(), torch.full_like(query[-1:], math.nan)
    plan = SplitPlan.allocate(far, 1, 1, torch.device("cpu"))
    plan.make(found.seq_lens, 1, far)
    decode(last, kv, found.block_tables, plan, 1, decoded, None, far)
    torch.testing.assert_close(decoded[0].flatten().double(), batch.expected[-1], rtol=4e-3, atol=4e-3)
