"""Carries out a step: plan to tensors, one forward, one sampling. Also loads what that takes.

Runs on: step thread, sole user of model and pool. Blocks: for the length of a step.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.attention.base import AttentionBackend, AttentionShape
from engine.attention.reference import ReferenceAttention
from engine.config import ConfigError, EngineConfig, ModelConfig
from engine.execution.batch import build_model_input
from engine.execution.grammars import GrammarError, GrammarMasks, Mask
from engine.execution.hardware import (
    DeviceMemory,
    Hardware,
    choose_hardware,
    device_memory,
    pool_bytes,
)
from engine.execution.sampler import sample
from engine.execution.scoring import score
from engine.loading.checkpoint import Checkpoint, open_checkpoint
from engine.loading.tokenizer import TokenizerFiles, prepare_tokenizer
from engine.loading.weights import load_weights
from engine.messages import EngineInfo, SamplingParams
from engine.models.layers import TorchOps
from engine.models.llama import LlamaModel, LlamaWeights
from engine.models.rope import RopeTable
from engine.schedule import Sample, SampleSpec, ScheduledChunk, SchedulerOutput, StepOutput
from tiering.memory.device_pool import allocate_device_pool, copy_blocks
from tiering.memory.layout import KVLayout
from tiering.movers.checksums import checksum
from tiering.movers.disk_store import FINGERPRINT_BYTES

Progress = Callable[[str, int, int], None]
_WARM_UP_TOKENS = 3  # positions that the warm-up computes, be the window ever so short
_LEAST_USEFUL_WINDOW = 256  # a pool that cuts the model's window to less than this is taken for a mistake


class ModelRunner:
    """Executes plans on one model and one KV pool. Without ``masks`` no plan may have grammars."""

    def __init__(self, model: LlamaModel, pool: torch.Tensor, block_size: int) -> None:
        self._model = model
        self._pool = pool
        self._block_size = block_size
        self._device = pool.device
        self.masks: GrammarMasks | None = None

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> StepOutput:
        """Copy blocks, compute every chunk's tokens into the pool; draw and score where chunks ask for it."""
        if plan.copies:
            copy_blocks(self._pool, plan.copies)
        if not plan.chunks:
            return StepOutput(samples=())
        inputs = build_model_input(plan, self._block_size, self._device)
        hidden = self._model.hidden(inputs)
        scores = score(plan, hidden, self._model.logits, self._model.vocab_size)
        asking = [chunk for chunk in plan.chunks if chunk.sample is not None]
        if not asking:
            if self._device.type == "cuda":  # else this step's time would be booked on the next one
                torch.cuda.synchronize(self._device)
            return StepOutput(samples=(), scores=scores)
        logits = self._model.logits(hidden[inputs.logit_rows])
        return StepOutput(samples=self._sample(logits, asking), scores=scores)

    def _sample(self, logits: torch.Tensor, asking: Sequence[ScheduledChunk]) -> tuple[Sample, ...]:
        specs = [chunk.sample for chunk in asking if chunk.sample is not None]
        masks: list[Mask | None] = []
        errors: list[str | None] = []
        for chunk, spec in zip(asking, specs, strict=True):
            mask, error = self._mask(chunk.sequence_id, spec)
            masks.append(mask)
            errors.append(error)
        drawn = sample(logits, specs, masks)
        return tuple(
            Sample(chunk.sequence_id, tokens if error is None else (), error)
            for chunk, tokens, error in zip(asking, drawn, errors, strict=True)
        )

    def _mask(self, sequence_id: str, spec: SampleSpec) -> tuple[Mask | None, str | None]:
        """What a grammar allows next, or why it cannot be followed any further."""
        if spec.params.grammar is None:
            return None, None
        assert self.masks is not None
        try:
            return self.masks.mask(sequence_id, spec), None
        except GrammarError as error:
            return None, str(error)


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """A runner ready to step, its KV pool, and what the gateway needs to know of it.

    ``fingerprint`` (16 bytes) changes with anything that a block's bytes depend on beside its tokens.
    """

    runner: ModelRunner
    info: EngineInfo
    pool: torch.Tensor
    layout: KVLayout
    fingerprint: bytes


def load_runner(config: EngineConfig, on_progress: Progress) -> LoadedRunner:
    """Load model and tokenizer, allocate the pool, warm up. Raises ConfigError for the user's errors."""
    hardware = choose_hardware(config)
    memory = device_memory(hardware.device)
    torch.set_num_threads(hardware.threads)
    checkpoint = open_checkpoint(config.model, config.load_format, config.seed)
    model = checkpoint.config
    _check_window(config.max_model_len, model)
    if hardware.device.type == "cpu":  # a GPU's pool is what the weights leave; RAM is known before
        _Window.fit(config, model, hardware)
    tokenizer = prepare_tokenizer(checkpoint)
    ops = TorchOps(hardware.dtype, deterministic=config.deterministic)
    weights = load_weights(model, checkpoint.tensors, ops, hardware.device, on_progress)
    window = _Window.fit(config, model, hardware)
    pool = allocate_device_pool(
        window.layout,
        window.num_blocks,
        hardware.dtype,
        hardware.device,
        take_pages=config.device_kv is not None,
    )
    attention = _attention_backend(pool, model, window, hardware)
    rope = RopeTable(model, max(window.max_model_len, _WARM_UP_TOKENS), hardware.device)
    runner = ModelRunner(LlamaModel(weights, rope, attention), pool, config.block_size)
    _warm_up(runner)
    return LoadedRunner(
        runner,
        _describe(hardware, memory, checkpoint, weights, window, attention.name, tokenizer),
        pool,
        window.layout,
        _fingerprint(config, model, weights, window.layout, hardware, attention.name),
    )


def _fingerprint(
    config: EngineConfig,
    model: ModelConfig,
    weights: LlamaWeights,
    layout: KVLayout,
    hardware: Hardware,
    attention_backend: str,
) -> bytes:
    """Of the weights as loaded, the model's shape, the KV's type and layout, and the way it is computed."""
    hasher = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    threads = hardware.threads if config.deterministic else None
    path = (hardware.dtype, hardware.device.type, attention_backend, config.deterministic, threads)
    hasher.update(repr((model, layout, path)).encode())
    for tensor in weights.tensors():
        block = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        hasher.update(checksum(block))
    return hasher.digest()


def _describe(
    hardware: Hardware,
    memory: DeviceMemory,
    checkpoint: Checkpoint,
    weights: LlamaWeights,
    window: _Window,
    attention_backend: str,
    tokenizer: TokenizerFiles,
) -> EngineInfo:
    tensors = weights.tensors()
    return EngineInfo(
        model_name=checkpoint.name,
        architecture=checkpoint.config.architecture,
        device=_device_name(hardware.device),
        dtype=str(hardware.dtype).removeprefix("torch."),
        num_parameters=sum(tensor.numel() for tensor in tensors),
        vocab_size=checkpoint.config.vocab_size,
        max_model_len=window.max_model_len,
        block_size=window.layout.block_size,
        num_blocks=window.num_blocks,
        kv_bytes=window.num_blocks * window.layout.block_bytes,
        weight_bytes=sum(tensor.nbytes for tensor in tensors),
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        threads=hardware.threads,
        attention_backend=attention_backend,
        tokenizer_dir=str(tokenizer.directory),
        chat_template=tokenizer.chat_template,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        stop_token_ids=checkpoint.config.eos_token_ids,
        sampling_defaults=checkpoint.sampling_defaults,
        notes=window.notes,
    )


@dataclass(frozen=True, slots=True)
class _Window:
    """How long a sequence may get, and the pool that holds at least one such."""

    layout: KVLayout
    num_blocks: int
    max_model_len: int
    notes: tuple[str, ...]

    @classmethod
    def fit(cls, config: EngineConfig, model: ModelConfig, hardware: Hardware) -> _Window:
        """Size the pool. A window that was asked for must fit it; the model's own is cut to it."""
        layout = KVLayout(
            num_layers=model.num_layers,
            num_kv_heads=model.num_kv_heads,
            block_size=config.block_size,
            head_dim=model.head_dim,
            dtype_bytes=hardware.dtype.itemsize,
        )
        num_blocks = layout.num_blocks(pool_bytes(config.device_kv, hardware.device))
        capacity = num_blocks * config.block_size
        wanted = config.max_model_len or model.max_position_embeddings
        if capacity >= wanted:
            return cls(layout, num_blocks, wanted, ())
        if config.max_model_len is not None:
            raise ConfigError(
                f"--device-kv holds {capacity} tokens, less than one sequence of --max-model-len {wanted};"
                f" raise the one or lower the other."
            )
        if capacity < _LEAST_USEFUL_WINDOW:
            raise ConfigError(
                f"--device-kv holds only {capacity} tokens of this model, too few for one sequence; raise it"
                f" to at least {_LEAST_USEFUL_WINDOW * layout.token_bytes} bytes."
            )
        note = f"the window is cut from {wanted} to {capacity} tokens, which is what --device-kv holds."
        return cls(layout, num_blocks, capacity, (note,))


def _check_window(max_model_len: int | None, model: ModelConfig) -> None:
    if max_model_len is not None and max_model_len > model.max_position_embeddings:
        raise ConfigError(
            f"--max-model-len {max_model_len} is more than this model's {model.max_position_embeddings}."
        )


def _attention_backend(
    pool: torch.Tensor, model: ModelConfig, window: _Window, hardware: Hardware
) -> AttentionBackend:
    needs_window = model.sliding_window is not None and model.sliding_window < window.max_model_len
    shape = AttentionShape(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        sliding_window=model.sliding_window if needs_window else None,
    )
    if hardware.device.type != "cpu":
        return ReferenceAttention(pool, shape)
    os.environ.setdefault("NUMBA_NUM_THREADS", str(hardware.threads))
    from engine.attention.cpu import CpuAttention

    return CpuAttention(pool, shape, hardware.threads)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _warm_up(runner: ModelRunner) -> None:
    """Run a prefill and a decode, so that compiling and first allocations are not a request's to wait for.

    Writes into block 0, which is free and may hold anything.
    """
    for start, token_ids in ((0, (0, 0)), (2, (0,))):
        spec = SampleSpec(
            params=SamplingParams(max_tokens=1, seed=0, top_p=0.9),
            seeds=(0,),
            position=start + len(token_ids),
            prompt_token_ids=(0,),
            output_token_ids=(),
            banned_token_ids=(),
        )
        chunk = ScheduledChunk("warm-up", token_ids, start, (0,), spec)
        runner.execute(SchedulerOutput(chunks=(chunk,)))
