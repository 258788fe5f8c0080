"""Decode attention in other tiles, and with other numbers of programs that share the device."""

from __future__ import annotations

from itertools import product

from benchmarks.gpu_check.attention_inputs import attention_shape, make_pool
from benchmarks.gpu_check.attention_rates import time_attention
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.floors import decode_bytes
from benchmarks.gpu_check.timing import Timing
from benchmarks.gpu_check.variants import measured, tell_variants
from engine.attention.triton import configs
from engine.attention.triton.backend import kernel_shape
from engine.attention.triton.configs import Tile


def measure(context: Context) -> None:
    scale, model = context.scale, context.scale.model
    pool = make_pool(context, max(batch * length for batch, length in scale.swept_decodes))
    rows = configs.decode_tile(kernel_shape(pool, attention_shape(model))).rows
    tiles = [Tile(rows, *numbers) for numbers in product(*scale.swept_decode_tiles)]
    for batch, length in scale.swept_decodes:
        what = f"decode {batch} × {length}"
        with context.case(what):
            spans = [(length - 1, 1)] * batch

            def time(spans: list[tuple[int, int]] = spans) -> Timing:
                return time_attention(context, pool, spans)

            chosen, variants = time(), measured(tiles, configs, "decode_tile", time)
            read = decode_bytes(batch * length, model.num_kv_heads, model.head_dim, context.dtype.itemsize)
            tell_variants(context, what, chosen, variants, read, "GB/s")
