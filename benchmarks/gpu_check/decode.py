"""Decode attention: K/V bytes of one layer by the time it takes, beside the device's copy bandwidth.

A copy writes as much as it reads, which decodes do not; so the judged size also stands beside reads alone.
What it costs that a row's bits depend on the row alone, in deterministic mode, is told for the judged size.
"""

from __future__ import annotations

from benchmarks.gpu_check.attention_inputs import make_pool
from benchmarks.gpu_check.attention_rates import invariant_attention, time_attention
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.figures import COPY, READ
from benchmarks.gpu_check.floors import decode_bytes

_TARGET = 0.80


def measure(context: Context) -> None:
    scale = context.scale
    pool = make_pool(context, max(batch * length for batch, length in scale.decodes))
    for batch, length in scale.decodes:
        name = f"decode {batch} × {length}"
        with context.case(name):
            timing = time_attention(context, pool, [(length - 1, 1)] * batch)
            target = _TARGET if (batch, length) == scale.judged_decode else None
            read = _bytes(context, batch * length)
            context.tell_rate(name, read, timing, "GB/s", beside=COPY, target=target)
            if (batch, length) == scale.judged_decode:
                context.tell_rate(f"{name}, beside reads", read, timing, "GB/s", beside=READ)
    batch, length = scale.judged_decode
    name = f"decode {batch} × {length}, deterministic"
    with context.case(name):
        timing = time_attention(context, pool, [(length - 1, 1)] * batch, invariant_attention)
        context.tell_rate(name, _bytes(context, batch * length), timing, "GB/s", beside=COPY)


def _bytes(context: Context, num_tokens: int) -> int:
    model = context.scale.model
    return decode_bytes(num_tokens, model.num_kv_heads, model.head_dim, context.dtype.itemsize)
