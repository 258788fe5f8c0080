"""Steps by CUDA graphs against steps launched kernel by kernel, bit for bit, whatever a plan may be.

In deterministic mode, where a row's result depends neither on its neighbours nor on padding. Without a GPU it
is tried in small, over kernels that are interpreted and what stands in for graphs.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.execution.cuda_graphs import CudaRecorder
from engine.loading.checkpoint import open_checkpoint
from tests.support.devices import GPU_MARKS, HAS_GPU
from tests.support.gpu_runners import make_whole, repeat_for_graphs
from tests.support.random_lives import Lives
from tests.support.tiny_models import make_model
from tests.support.tiny_tokenizers import byte_level, save

NUM_SEQS, NUM_ROWS = (6, 64) if HAS_GPU else (2, 12)


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        pytest.param("cpu", torch.float32, marks=pytest.mark.skipif(HAS_GPU, reason="the GPU is tested")),
        pytest.param("cuda", torch.float32, marks=GPU_MARKS),
        pytest.param("cuda", torch.bfloat16, marks=GPU_MARKS),
    ],
)
def test_graphs_compute_what_kernels_launched_one_by_one_do(
    tmp_path: Path, device: str, dtype: torch.dtype
) -> None:
    """Beside chunks, forks with copies on write, preemptions, tables exchanged in place, and scores."""
    make_model(num_hidden_layers=3 if HAS_GPU else 1, max_position_embeddings=128).save_pretrained(tmp_path)
    save(byte_level(), tmp_path)
    checkpoint = open_checkpoint(str(tmp_path), "auto", 0)
    (eager, eager_pool), (graphed, pool) = (
        make_whole(checkpoint, NUM_SEQS, deterministic=True, dtype=dtype, device=torch.device(device))
        for _ in range(2)
    )
    if device == "cuda":
        graphed.capture_graphs(CudaRecorder(pool.device))
    else:
        repeat_for_graphs(graphed, is_strict=True)
    num_rows: list[int] = []

    @settings(max_examples=60 if HAS_GPU else 4, derandomize=True, database=None)
    @given(st.data())
    def live(data: st.DataObject) -> None:
        for each in (eager_pool, pool):
            each.fill_(math.nan)
        lives = Lives(data, (eager, graphed), (eager_pool, pool))
        for _ in range(data.draw(st.integers(3, 20 if HAS_GPU else 5))):
            num_rows.append(lives.step(NUM_SEQS, NUM_ROWS))

    live()
    assert sum(num_rows) > 10
