"""Which device gets which operations, attention and runner. Decided here and nowhere else.

Runs on: step thread, once, at load. What is for a GPU is imported only where there is one: it needs Triton.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from engine.attention.base import AttentionBackend, AttentionShape
from engine.attention.reference import ReferenceAttention
from engine.config import ConfigError, EngineConfig, ModelConfig
from engine.execution.cuda_graphs import CudaRecorder, MemoryUse, Progress, Recorder
from engine.execution.grammars import GrammarMasks
from engine.execution.hardware import Hardware
from engine.execution.model_runner import ModelRunner
from engine.execution.warm_up import SHORTEST_PROMPT, warm_up, warm_up_prompt
from engine.loading.packed_weights import pack_weights
from engine.loading.source import TensorSource
from engine.models.layers import Ops, TorchOps
from engine.models.llama import Decoder, LlamaModel
from engine.packed.weights import PackedWeights
from engine.schedule import Executor

if TYPE_CHECKING:
    from engine.packed.llama import PackedSteps

logger = logging.getLogger(__name__)


class Runner(Executor, Protocol):
    """Executes plans. Without ``masks`` no plan may have grammars."""

    masks: GrammarMasks | None


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine on ``hardware`` is made of."""

    hardware: Hardware
    config: EngineConfig

    @property
    def _is_gpu(self) -> bool:
        return self.hardware.device.type == "cuda"

    def ops(self) -> Ops:
        """What makes the model's layers."""
        dtype, deterministic = self.hardware.dtype, self.config.deterministic
        if not self._is_gpu:
            return TorchOps(dtype, deterministic=deterministic)
        from engine.fused.ops import TritonOps

        return TritonOps(dtype, deterministic=deterministic)

    def packed_weights(
        self, config: ModelConfig, source: TensorSource, on_progress: Progress
    ) -> PackedWeights | None:
        """``source`` as it is quantized, for steps to read it so; None where they do not, or it is not."""
        return None if self._is_gpu else pack_weights(config, source, on_progress)

    def packed_steps(self) -> PackedSteps:
        """Which steps read packed weights, where there are any.

        All do with ``deterministic``: a result may not depend on a step's rows, and torch rounds differently.
        """
        from engine.packed.llama import packed_steps

        return packed_steps(self.config.dtype, self._max_rows, must_be_all=self.config.deterministic)

    def arithmetic(self, packed: PackedWeights | None, attention: AttentionBackend) -> str:
        """By which products and which attention K and V come about.

        With ``deterministic`` it changes with anything that may change a bit of them, but for threads.
        """
        is_exact = self.config.deterministic
        attended = attention.arithmetic if is_exact else attention.name
        if packed is None:
            return attended
        steps = self.packed_steps()
        return f"{steps.arithmetic if is_exact else steps.kind}, {attended}"

    @property
    def _max_rows(self) -> int:
        """Of a step, be it one of the warm-up's."""
        return max(self.config.max_num_batched_tokens, SHORTEST_PROMPT)

    def attention(self, pool: torch.Tensor, shape: AttentionShape) -> AttentionBackend:
        """Attention over ``pool``. Raises ConfigError if there is none that keeps ``--deterministic``."""
        if self._is_gpu:
            return self._gpu_attention(pool, shape)
        from engine.attention.cpu import CpuAttention

        return CpuAttention(pool, shape, self.hardware.threads)

    def _gpu_attention(self, pool: torch.Tensor, shape: AttentionShape) -> AttentionBackend:
        from engine.attention.triton.backend import TritonAttention, is_supported

        if is_supported(shape, pool.dtype):
            properties = torch.cuda.get_device_properties(pool.device)
            return TritonAttention(
                pool,
                shape,
                max_num_seqs=self.config.max_num_seqs,
                batch_invariant=self.config.deterministic,
                num_multiprocessors=properties.multi_processor_count,
            )
        if self.config.deterministic:
            raise ConfigError(f"--deterministic knows no heads of size {shape.head_dim} on a GPU.")
        return ReferenceAttention(pool, shape)

    def runner(
        self,
        model: LlamaModel,
        packed: PackedWeights | None,
        pool: torch.Tensor,
        max_model_len: int,
        on_progress: Progress,
    ) -> tuple[Runner, tuple[str, ...]]:
        """A runner that is ready to step, and what its user should know of it.

        ``packed``: what ``packed_weights`` gave for the model's weights.
        """
        block_size = self.config.block_size
        if not self._is_gpu:
            return self._cpu_runner(model, packed, pool, max_model_len), ()
        from engine.execution.gpu_runner import GpuRunner
        from engine.execution.step_buffers import StepLimits

        limits = StepLimits(self.config.max_num_seqs, self._max_rows, max_model_len)
        lengths = prompt_lengths(self._max_rows, max_model_len)
        with _memory_that_lasts():
            runner = GpuRunner(model, pool, block_size, limits)
            warm_up(runner, block_size, len(pool), lengths)
            if isinstance(model.attention, ReferenceAttention):
                return runner, (
                    f"{model.attention.name} attention fits no CUDA graphs, so steps take longer.",
                )
            notes = _capture(runner.capture_graphs, pool.device, on_progress)
            warm_up_prompt(runner, block_size, lengths[-1])  # for captures give back the memory that it took
        return runner, notes

    def _cpu_runner(
        self, model: LlamaModel, packed: PackedWeights | None, pool: torch.Tensor, max_model_len: int
    ) -> Runner:
        """By ``model``, or by the same model's quantized weights, as ``packed_steps`` says."""
        decoder: Decoder = model
        lengths = [SHORTEST_PROMPT]
        if packed is not None:
            from engine.packed.llama import MixedLlama, PackedLlama

            steps = self.packed_steps()
            decoder = by_packed = PackedLlama(
                packed, model, steps.max_rows, self.hardware.threads, of_bytes=steps.of_bytes
            )
            if not steps.are_all:
                decoder = MixedLlama(by_packed, model, steps.max_rows)
                longest = min(max_model_len, len(pool) * self.config.block_size)
                # torch's first use, too
                lengths.append(max(SHORTEST_PROMPT, min(steps.max_rows + 1, longest)))
        runner = ModelRunner(decoder, pool, self.config.block_size)
        warm_up(runner, self.config.block_size, len(pool), lengths)
        return runner


@contextlib.contextmanager
def _memory_that_lasts() -> Iterator[None]:
    """Steps that the GPU has no memory for are the user's to make smaller."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            "the GPU has too little memory for a step beside weights and KV pool; lower --device-kv,"
            " --max-num-batched-tokens or --max-num-seqs."
        ) from error


def _capture(
    capture: Callable[[Recorder, Progress], None], device: torch.device, on_progress: Progress
) -> tuple[str, ...]:
    """Capture CUDA graphs, if it can be done; returns what the user should know.

    Slower is better than not at all. But a capture that the driver broke off may leave torch's allocator
    believing that one is under way, and it then gives none of its memory back.
    """
    use = MemoryUse(device)
    try:
        capture(CudaRecorder(device), on_progress)
    except RuntimeError as error:  # as torch's CUDA errors are
        logger.warning("capturing CUDA graphs failed", exc_info=error)
        return (
            "no CUDA graphs could be made of decode steps, which therefore take longer, and memory may run"
            " short; see the log.",
        )
    logger.info("CUDA graphs of decode steps took %s", use)
    return ()


def prompt_lengths(max_num_rows: int, max_model_len: int) -> tuple[int, ...]:
    """Of prompts for which kernels choose other tiles, up to the longest that a step can have."""
    longest = max(SHORTEST_PROMPT, min(max_num_rows, max_model_len))
    lengths = [length for length in (SHORTEST_PROMPT, 16, 128, 1024) if length < longest]
    return (*lengths, longest)
