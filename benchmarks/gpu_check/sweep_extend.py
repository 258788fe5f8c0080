"""Extend attention in other tiles."""

from __future__ import annotations

from itertools import product

from benchmarks.gpu_check.attention_inputs import make_pool
from benchmarks.gpu_check.attention_rates import time_attention
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.floors import extend_operations
from benchmarks.gpu_check.scales import Extension
from benchmarks.gpu_check.timing import Timing
from benchmarks.gpu_check.variants import measured, tell_variants
from engine.attention.triton import backend
from engine.attention.triton.configs import Tile


def measure(context: Context) -> None:
    scale, model = context.scale, context.scale.model
    pool = make_pool(context, max(case.num_new + case.context for case in scale.swept_extensions))
    tiles = [Tile(*numbers) for numbers in product(*scale.swept_extend_tiles, (1,))]
    for case in scale.swept_extensions:
        what = f"extend {case.num_new} behind {case.context}"
        with context.case(what):

            def time(case: Extension = case) -> Timing:
                return time_attention(context, pool, [(case.context, case.num_new)])

            chosen, variants = time(), measured(tiles, backend, "extend_tile", time)
            operations = extend_operations(case.num_new, case.context, model.num_heads, model.head_dim)
            tell_variants(context, what, chosen, variants, operations, "TFLOP/s")
