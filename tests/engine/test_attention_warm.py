"""Warming compiles exactly what engines run, and as a program it leaves a cache behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from engine.attention import cpu_kernels
from engine.attention.base import AttentionShape
from engine.attention.cpu import CpuAttention
from engine.attention.warm import warm_cpu_kernels
from tests.support.paged_attention import make_batch

ROOT = Path(__file__).parent.parent.parent


def test_nothing_is_left_to_compile_for_real_batches() -> None:
    warm_cpu_kernels()
    kernels = (cpu_kernels.rotate_and_store, cpu_kernels.attend)
    compiled = [len(kernel.signatures) for kernel in kernels]  # type: ignore[attr-defined]
    assert compiled == [2, 2]
    for dtype in (torch.float32, torch.bfloat16):
        for shape in (AttentionShape(1, 1, 16), AttentionShape(6, 2, 80, sliding_window=9)):
            for spans in ([(0, 1)], [(0, 100), (5, 1)]):
                batch = make_batch(spans, shape, dtype)
                batch.run(CpuAttention(batch.pool, shape, 2))
    assert [len(kernel.signatures) for kernel in kernels] == compiled  # type: ignore[attr-defined]


def test_it_runs_as_a_program() -> None:
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    subprocess.run(
        [sys.executable, "-m", "engine.attention.warm"], cwd=ROOT, check=True, env=environment, timeout=120
    )
