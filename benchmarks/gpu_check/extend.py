"""Extend attention: operations of one layer's causal attention by the time it takes, beside a bf16 matmul.

torch's own attention over contiguous K/V, without a cache behind it, stands beside it as a yardstick.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.gpu_check.attention_inputs import make_pool
from benchmarks.gpu_check.attention_rates import time_attention
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.figures import MATMUL
from benchmarks.gpu_check.floors import extend_operations
from benchmarks.gpu_check.scales import Extension
from benchmarks.gpu_check.timing import timed_in_graph

_TARGET = 0.60


def measure(context: Context) -> None:
    scale = context.scale
    pool = make_pool(context, max(case.num_new + case.context for case in scale.extensions))
    for case in scale.extensions:
        name = f"extend {case.num_new} behind {case.context}"
        with context.case(name):
            timing = time_attention(context, pool, [(case.context, case.num_new)])
            target = _TARGET if case == scale.judged_extension else None
            context.tell_rate(
                name, _operations(context, case), timing, "TFLOP/s", beside=MATMUL, target=target
            )
    name = f"torch's attention, {scale.judged_extension.num_new} behind 0"
    with context.case(name):
        _yardstick(context, name)


def _operations(context: Context, case: Extension) -> int:
    model = context.scale.model
    return extend_operations(case.num_new, case.context, model.num_heads, model.head_dim)


def _yardstick(context: Context, name: str) -> None:
    model, num_new = context.scale.model, context.scale.judged_extension.num_new

    def heads(count: int) -> torch.Tensor:
        return torch.randn((1, count, num_new, model.head_dim), device=context.device).to(context.dtype)

    query, key, value = heads(model.num_heads), heads(model.num_kv_heads), heads(model.num_kv_heads)

    def attend(_: int) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    with torch.inference_mode():
        timing = timed_in_graph(attend, context.device, context.scale.repeats, 2)
    operations = _operations(context, Extension(num_new, 0))
    context.tell_rate(name, operations, timing, "TFLOP/s", beside=MATMUL)
