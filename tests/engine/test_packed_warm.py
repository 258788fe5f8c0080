"""Warming compiles exactly what engines run, and leaves a cache behind."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType as Type

from engine.execution.model_runner import ModelRunner
from engine.loading.checkpoint import open_checkpoint
from engine.loading.packed_weights import pack_weights
from engine.packed import kernels
from engine.packed.llama import MixedLlama, PackedLlama
from engine.packed.warm import warm_packed_kernels
from tests.support.packed_matrices import OF_BYTES, write_quantized
from tests.support.tiny_models import Loaded, make_model, random_tokens

ROOT = Path(__file__).parent.parent.parent
KERNELS: tuple[Any, ...] = (kernels.project_normed, kernels.add_projected, kernels.add_mlp)

# Prints how many kernels a process compiled.
LOADER = """
from engine.packed import kernels, warm
warm.warm_packed_kernels()
print(sum(kernels.add_mlp.stats.cache_misses.values()))
"""


def test_nothing_is_left_to_compile_for_a_model(tmp_path: Path) -> None:
    warm_packed_kernels()
    compiled = [len(kernel.signatures) for kernel in KERNELS]
    assert compiled == [len(OF_BYTES)] * 3
    for kind in (Type.Q4_1, Type.Q8_0):
        path = write_quantized(tmp_path / f"{kind.name}.gguf", make_model(), {"": kind})
        opened = open_checkpoint(str(path), "auto", 0)
        for dtype, of_bytes in itertools.product((torch.float32, torch.bfloat16), OF_BYTES):
            loaded = Loaded(opened, dtype)
            weights = pack_weights(opened.config, opened.tensors, lambda *_: None)
            assert weights is not None
            packed = PackedLlama(weights, loaded.model, 8, threads=2, of_bytes=of_bytes)
            loaded.runner = ModelRunner(MixedLlama(packed, loaded.model, 8), loaded.pool, loaded.block_size)
            assert len(loaded.greedy(random_tokens(9), 3, chunk=4)) == 3
    assert [len(kernel.signatures) for kernel in KERNELS] == compiled


def test_it_runs_as_a_program_and_leaves_a_cache() -> None:
    subprocess.run([sys.executable, "-m", "engine.packed.warm"], cwd=ROOT, check=True, timeout=240)
    found = subprocess.run(
        [sys.executable, "-c", LOADER], cwd=ROOT, check=True, timeout=240, capture_output=True, text=True
    )
    assert found.stdout.strip() == "0"
