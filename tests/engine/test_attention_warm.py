"""Warming compiles exactly what engines run, and leaves a cache behind. What is loaded computes the same."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.attention import cpu_decode, cpu_prompt, cpu_rotate
from engine.attention.base import AttentionShape
from engine.attention.cpu import CpuAttention
from engine.attention.warm import warm_cpu_kernels
from tests.support.paged_attention import make_batch

ROOT = Path(__file__).parent.parent.parent

# Prints how many kernels a process compiled, and the bits of a step with decodes and extensions.
ENGINE = """
import hashlib, sys, torch
from engine.attention import cpu_decode, cpu_prompt, cpu_rotate
from engine.attention.base import AttentionShape
from engine.attention.cpu import CpuAttention
from tests.support.paged_attention import make_batch

bits = hashlib.sha256()
batch = make_batch([(70, 1), (200, 1), (0, 70), (40, 33)], AttentionShape(6, 2, 64), torch.bfloat16)
for tensor in (batch.run(CpuAttention(batch.pool, batch.shape, 2)), *batch.stored()):
    bits.update(tensor.contiguous().view(torch.uint8).numpy())
kernels = (cpu_rotate.rotate_and_store, cpu_prompt.attend, cpu_decode.decode)
print(sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels), bits.hexdigest())
"""


def test_nothing_is_left_to_compile_for_real_batches() -> None:
    warm_cpu_kernels()
    kernels = (cpu_rotate.rotate_and_store, cpu_prompt.attend, cpu_decode.decode)
    compiled = [len(kernel.signatures) for kernel in kernels]  # type: ignore[attr-defined]
    assert compiled == [2, 2, 2]
    for dtype, activations in ((torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)):
        for shape in (AttentionShape(1, 1, 16), AttentionShape(6, 2, 80, sliding_window=9)):
            for spans in ([(0, 1)], [(0, 100), (5, 1)], [(700, 1)] * 3):
                batch = make_batch(spans, shape, dtype)
                batch = replace(batch, qkv=batch.qkv.to(activations))
                batch.run(CpuAttention(batch.pool, shape, 2))
    assert [len(kernel.signatures) for kernel in kernels] == compiled  # type: ignore[attr-defined]


def test_it_runs_as_a_program() -> None:
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    subprocess.run(
        [sys.executable, "-m", "engine.attention.warm"], cwd=ROOT, check=True, env=environment, timeout=120
    )


@pytest.mark.timeout(600)  # the first start compiles, beside other tests
def test_compiled_or_loaded_the_kernels_give_the_same_bits(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    compiled, bits = start_engine(environment)
    loaded, bits_again = start_engine(environment)
    assert (compiled, loaded) == ("3", "0")
    assert bits == bits_again


def start_engine(environment: dict[str, str]) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", ENGINE],
        cwd=ROOT, check=True, env=environment, timeout=480, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
