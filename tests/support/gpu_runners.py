"""Tiny models in the GPU's runner, on any device: what is for a GPU is interpreted where there is none."""

from __future__ import annotations

import math

import torch

from engine.attention.base import AttentionBackend, AttentionShape
from engine.attention.triton.backend import TritonAttention
from engine.execution.gpu_runner import GpuRunner
from engine.execution.step_buffers import StepLimits
from engine.fused.ops import TritonOps
from engine.loading.checkpoint import Checkpoint
from engine.loading.weights import load_weights
from engine.models.layers import Ops
from engine.models.llama import LlamaModel
from engine.models.rope import RopeTable
from tests.support.repeated_graphs import RepeatingRecorder

WINDOW, BLOCK_SIZE, NUM_BLOCKS = 128, 16, 40
EXPANDED = (
    "token_ids", "positions", "slot_mapping", "query_start", "context_start", "seq_lens", "block_tables",
    "logits", "tokens",
)  # fmt: skip
CPU = torch.device("cpu")


def new_pool(
    checkpoint: Checkpoint, dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> torch.Tensor:
    """With NaN in every slot."""
    model = checkpoint.config
    shape = (NUM_BLOCKS, model.num_layers, 2, model.num_kv_heads, BLOCK_SIZE, model.head_dim)
    return torch.full(shape, math.nan, dtype=dtype, device=device)


def attention_shape(checkpoint: Checkpoint) -> AttentionShape:
    model = checkpoint.config
    return AttentionShape(model.num_heads, model.num_kv_heads, model.head_dim, model.sliding_window)


def new_model(
    checkpoint: Checkpoint, attention: AttentionBackend, ops: Ops, device: torch.device = CPU
) -> LlamaModel:
    weights = load_weights(checkpoint.config, checkpoint.tensors, ops, device, lambda *_: None)
    return LlamaModel(weights, RopeTable(checkpoint.config, WINDOW, device), attention)


def make_whole(
    checkpoint: Checkpoint,
    max_num_seqs: int,
    *,
    deterministic: bool,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
) -> tuple[GpuRunner, torch.Tensor]:
    """A runner with the attention, operations and sampler of a GPU, and its pool. It has no graphs yet."""
    pool = new_pool(checkpoint, dtype, device)
    attention = TritonAttention(
        pool,
        attention_shape(checkpoint),
        max_num_seqs=max_num_seqs,
        batch_invariant=deterministic,
        num_multiprocessors=1,
    )
    model = new_model(checkpoint, attention, TritonOps(dtype, deterministic=deterministic), device)
    return GpuRunner(model, pool, BLOCK_SIZE, StepLimits(max_num_seqs, 64, WINDOW)), pool


def repeat_for_graphs(runner: GpuRunner, *, is_strict: bool) -> RepeatingRecorder:
    """Give a runner what stands in for graphs."""
    recorder = RepeatingRecorder([getattr(runner._buffers, name) for name in EXPANDED], is_strict=is_strict)
    runner.capture_graphs(recorder)
    return recorder
