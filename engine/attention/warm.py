"""Compiles the CPU kernels and fills numba's on-disk cache: ``python -m engine.attention.warm``.

Run at install, so that not even the first start waits for a compiler. An engine that finds no cache compiles
what it needs as it loads, and computes the same.
"""

from __future__ import annotations

import torch

from engine.attention.base import AttentionMetadata, AttentionShape
from engine.attention.cpu import CpuAttention

_SHAPE = AttentionShape(num_heads=2, num_kv_heads=1, head_dim=16)


def warm_cpu_kernels(threads: int = 1) -> None:
    """Compile, or load from the cache, what float32 and bfloat16 pools need. Seconds the first time."""
    for dtype in (torch.float32, torch.bfloat16):
        pool = torch.zeros((2, 1, 2, 1, 16, 16), dtype=dtype)
        backend = CpuAttention(pool, _SHAPE, threads)
        for num_rows in (1, 2):  # a decode, and a prompt
            backend.begin_step(_metadata(num_rows), torch.ones((num_rows, 8)), torch.zeros((num_rows, 8)))
            backend.forward(0, torch.zeros((num_rows, _SHAPE.qkv_size), dtype=dtype))


def _metadata(num_rows: int) -> AttentionMetadata:
    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return AttentionMetadata(
        query_start=ints(0, num_rows),
        context_start=ints(0),
        seq_lens=ints(num_rows),
        block_tables=ints(1).view(1, 1),
        slot_mapping=ints(*range(16, 16 + num_rows)),
        num_decodes=int(num_rows == 1),
    )


if __name__ == "__main__":
    warm_cpu_kernels()
