"""Times the attention backend over layers of a pool as large as a server's: RoPE, K/V write and attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from benchmarks.gpu_check.attention_inputs import attention_shape, make_batch
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.floors import decode_bytes
from benchmarks.gpu_check.timing import Timing, timed_in_graph
from engine.attention.base import AttentionBackend, AttentionShape
from engine.attention.triton.backend import TritonAttention

MakeBackend = Callable[[torch.Tensor, AttentionShape, int, int], AttentionBackend]
_CACHES = 2  # full of K/V between two reads of the same
_FEW_MULTIPROCESSORS = 1  # where there are none: kernels run in the interpreter


def triton_attention(
    pool: torch.Tensor, shape: AttentionShape, max_num_seqs: int, num_multiprocessors: int
) -> AttentionBackend:
    """The backend as the engine makes it."""
    return TritonAttention(pool, shape, max_num_seqs=max_num_seqs, num_multiprocessors=num_multiprocessors)


def invariant_attention(
    pool: torch.Tensor, shape: AttentionShape, max_num_seqs: int, num_multiprocessors: int
) -> AttentionBackend:
    """The backend of an engine in deterministic mode."""
    return TritonAttention(
        pool,
        shape,
        max_num_seqs=max_num_seqs,
        batch_invariant=True,
        num_multiprocessors=num_multiprocessors,
    )


def time_attention(
    context: Context,
    pool: torch.Tensor,
    spans: Sequence[tuple[int, int]],
    make: MakeBackend = triton_attention,
) -> Timing:
    """Of one layer, in a graph that goes through several, whose K/V together no cache holds."""
    shape = attention_shape(context.scale.model)
    backend = make(pool, shape, len(spans), num_multiprocessors(context))
    batch = make_batch(context, shape, pool.shape[0], spans)
    backend.begin_step(batch.metadata, batch.cos, batch.sin)
    num_tokens = sum(before + rows for before, rows in spans)
    layer_bytes = decode_bytes(num_tokens, shape.num_kv_heads, shape.head_dim, context.dtype.itemsize)
    num_layers = layers_beyond_cache(
        layer_bytes, cache_bytes(context), context.scale.num_layers_measured, pool.shape[1]
    )

    def layer(number: int) -> torch.Tensor:
        return backend.forward(number, batch.queries[number % len(batch.queries)])

    with torch.inference_mode():
        return timed_in_graph(layer, context.device, context.scale.repeats, num_layers)


def layers_beyond_cache(layer_bytes: int, cache_bytes: int, least: int, there_are: int) -> int:
    """How many layers to go through so that one's K/V is out of the cache when its turn comes again."""
    return min(there_are, max(least, -(-_CACHES * cache_bytes // layer_bytes)))


def cache_bytes(context: Context) -> int:
    """Of the device's largest cache."""
    if not context.on_gpu:
        return 0
    size: int = torch.cuda.get_device_properties(context.device).L2_cache_size
    return size


def num_multiprocessors(context: Context) -> int:
    if not context.on_gpu:
        return _FEW_MULTIPROCESSORS
    return torch.cuda.get_device_properties(context.device).multi_processor_count
