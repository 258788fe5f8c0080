"""The model of a check in an engine, put together as a server does it but for the weights.

In a dry run it is put together of the GPU's parts too, with interpreted kernels on CPU tensors, but without
what chooses them, warm-up and CUDA graphs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.gpu_check.attention_inputs import attention_shape, make_pool
from benchmarks.gpu_check.attention_rates import triton_attention
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.dummy_weights import DummyWeights
from benchmarks.gpu_check.engines import Engine
from benchmarks.gpu_check.scales import BLOCK_SIZE
from benchmarks.gpu_check.workload import prompts
from engine.config import EngineConfig
from engine.execution.gpu_runner import GpuRunner
from engine.execution.hardware import Hardware, default_threads
from engine.execution.parts import Parts
from engine.execution.step_buffers import StepLimits
from engine.fused.ops import TritonOps
from engine.loading.weights import load_weights
from engine.models.layers import Ops
from engine.models.llama import LlamaModel, LlamaWeights
from engine.models.rope import RopeTable
from engine.schedule import Executor
from tiering.transfers import TransferEngine

_SPARE_SHARE = 16  # one block in so many more than are needed: the scheduler keeps the very last ones


def load_engine(
    context: Context, max_num_seqs: int, sequence_len: int, transfers: TransferEngine | None = None
) -> Engine:
    """With room for so many sequences of ``sequence_len`` tokens at a time."""
    blocks = max_num_seqs * -(-sequence_len // BLOCK_SIZE)
    blocks += blocks // _SPARE_SHARE + 2
    window = min(context.scale.model.max_position_embeddings, blocks * BLOCK_SIZE)
    step_tokens = max(context.scale.step_tokens, max_num_seqs)
    build = _Builder(context, max_num_seqs, step_tokens, window)
    runner = build.on_gpu(blocks) if context.on_gpu else build.interpreted(blocks)
    return Engine(context, runner, blocks, max_num_seqs, step_tokens, window, transfers)


def load_decoding_engine(
    context: Context, prompt_len: int, num_steps: int, transfers: TransferEngine | None = None
) -> Engine:
    """With the batch that is judged, all of whose sequences decode for ``num_steps`` steps to come."""
    scale, batch = context.scale, context.scale.judged_batch
    prefills = -(-batch * prompt_len // scale.step_tokens)  # in which the first sequences decode already
    output_len = 2 * prefills + 2 + num_steps
    engine = load_engine(context, batch, prompt_len + output_len, transfers)
    engine.begin(prompts(batch, prompt_len, scale.model.vocab_size, seed=0), output_len)
    while engine.step().num_tokens < batch:
        pass
    return engine


@dataclass(frozen=True, slots=True)
class _Builder:
    context: Context
    max_num_seqs: int
    step_tokens: int
    window: int

    def on_gpu(self, num_blocks: int) -> Executor:
        """As a server puts it together, for as many sequences and tokens a step as are measured."""
        context = self.context
        config = EngineConfig(
            model="",
            device="cuda",
            block_size=BLOCK_SIZE,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.step_tokens,
            max_model_len=self.window,
        )
        parts = Parts(Hardware(context.device, context.dtype, default_threads()), config)
        weights, pool = self._weights(parts.ops()), self._pool(num_blocks)
        attention = parts.attention(pool, attention_shape(context.scale.model))
        model = LlamaModel(weights, self._rope(), attention)
        runner, notes = parts.runner(model, None, pool, self.window, lambda *_: None)
        for note in notes:
            context.tell_failure("engine", note)
        return runner

    def interpreted(self, num_blocks: int) -> Executor:
        """The same classes without what needs a device."""
        context = self.context
        weights, pool = self._weights(TritonOps(context.dtype)), self._pool(num_blocks)
        attention = triton_attention(pool, attention_shape(context.scale.model), self.max_num_seqs, 1)
        model = LlamaModel(weights, self._rope(), attention)
        limits = StepLimits(self.max_num_seqs, self.step_tokens, self.window)
        return GpuRunner(model, pool, BLOCK_SIZE, limits)

    def _weights(self, ops: Ops) -> LlamaWeights:
        context = self.context
        source = DummyWeights(context.scale.model, context.dtype, context.device)
        return load_weights(context.scale.model, source, ops, context.device, lambda *_: None)

    def _pool(self, num_blocks: int) -> torch.Tensor:
        pool = make_pool(self.context, num_blocks * BLOCK_SIZE)
        if pool.shape[0] < num_blocks:
            raise RuntimeError(f"only {pool.shape[0]} of {num_blocks} KV blocks fit this card")
        return pool

    def _rope(self) -> RopeTable:
        return RopeTable(self.context.scale.model, self.window, self.context.device)
