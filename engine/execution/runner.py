"""Loads a runner and all that it takes: model, tokenizer, KV pool.

Runs on: step thread, once. Blocks: until all is there. ``engine.execution.parts`` says what is for which
device.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.attention.base import AttentionShape
from engine.config import ConfigError, EngineConfig, ModelConfig
from engine.execution.hardware import (
    DeviceMemory,
    Hardware,
    choose_hardware,
    device_memory,
    pool_bytes,
)
from engine.execution.parts import Parts, Runner
from engine.execution.step_memory import StepSizes, step_bytes
from engine.execution.warm_up import WARM_UP_TOKENS
from engine.loading.checkpoint import Checkpoint, open_checkpoint
from engine.loading.expected import Progress
from engine.loading.shapes import num_parameters
from engine.loading.tokenizer import TokenizerFiles, prepare_tokenizer
from engine.loading.weights import load_weights
from engine.messages import EngineInfo
from engine.models.llama import LlamaModel, LlamaWeights
from engine.models.rope import RopeTable
from engine.packed.weights import PackedWeights
from tiering.memory.device_pool import allocate_device_pool
from tiering.memory.layout import KVLayout
from tiering.movers.checksums import checksum
from tiering.movers.disk_store import FINGERPRINT_BYTES

_LEAST_USEFUL_WINDOW = 256  # a pool that cuts the model's window to less than this is taken for a mistake


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """A runner ready to step, its KV pool, and what the gateway needs to know of it.

    ``fingerprint`` (16 bytes) changes with anything that a block's bytes depend on beside its tokens.
    """

    runner: Runner
    info: EngineInfo
    pool: torch.Tensor
    layout: KVLayout
    fingerprint: bytes


def load_runner(config: EngineConfig, on_progress: Progress) -> LoadedRunner:
    """Load model and tokenizer, allocate the pool, warm up. Raises ConfigError for the user's errors."""
    hardware = choose_hardware(config)
    memory = device_memory(hardware.device)
    torch.set_num_threads(hardware.threads)
    os.environ.setdefault("NUMBA_NUM_THREADS", str(hardware.threads))  # read as numba is loaded, and no later
    checkpoint = open_checkpoint(config.model, config.load_format, config.seed)
    model = checkpoint.config
    _check_window(config.max_model_len, model)
    if hardware.device.type == "cpu":  # a GPU's pool is what the weights leave; RAM is known before
        _Window.fit(config, model, hardware)
    tokenizer = prepare_tokenizer(checkpoint)
    parts = Parts(hardware, config)
    packed = parts.packed_weights(model, checkpoint.tensors, on_progress)
    beside = packed if packed is not None and parts.packed_steps().are_all else None
    weights = load_weights(
        model,
        checkpoint.tensors,
        parts.ops(),
        hardware.device,
        on_progress,
        beside=beside,
    )
    looked_at = _LookedAt.once(weights, packed, beside)  # before the pool takes the memory that is left
    window = _Window.fit(config, model, hardware)
    pool = allocate_device_pool(
        window.layout,
        window.num_blocks,
        hardware.dtype,
        hardware.device,
        take_pages=config.device_kv is not None,
    )
    attention = parts.attention(pool, _attention_shape(model, window.max_model_len))
    rope = RopeTable(model, max(window.max_model_len, WARM_UP_TOKENS), hardware.device)
    runner, notes = parts.runner(
        LlamaModel(weights, rope, attention), packed, pool, window.max_model_len, on_progress
    )
    window = replace(window, notes=(*window.notes, *notes))
    return LoadedRunner(
        runner,
        _describe(hardware, memory, checkpoint, looked_at, window, attention.name, tokenizer),
        pool,
        window.layout,
        _fingerprint(config, model, looked_at, window.layout, hardware, parts.arithmetic(packed, attention)),
    )


@dataclass(frozen=True, slots=True)
class _LookedAt:
    """What there is to tell of all weights. To look at a prepacked one takes its memory again, for that long.

    ``checksums`` are of each weight once: in the model's dtype, but for those that are ``beside`` alone.
    """

    num_bytes: int
    checksums: tuple[bytes, ...]

    @classmethod
    def once(
        cls, weights: LlamaWeights, packed: PackedWeights | None, beside: PackedWeights | None
    ) -> _LookedAt:
        num_bytes, checksums = 0 if packed is None else packed.num_bytes, list[bytes]()
        for tensor in weights.tensors():
            num_bytes += tensor.nbytes
            block = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            checksums.append(checksum(block))
        for array in () if beside is None else beside.arrays():
            checksums.append(checksum(array.reshape(-1).view(np.uint8)))
        return cls(num_bytes, tuple(checksums))


def _fingerprint(
    config: EngineConfig,
    model: ModelConfig,
    weights: _LookedAt,
    layout: KVLayout,
    hardware: Hardware,
    way: str,
) -> bytes:
    """Of the weights as loaded, the model's shape, the KV's type and layout, and the way it is computed."""
    hasher = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    is_exact = config.deterministic
    device = _device_name(hardware.device) if is_exact else hardware.device.type
    threads = hardware.threads if is_exact else None
    path = (hardware.dtype, device, way, is_exact, threads)
    hasher.update(repr((model, layout, path)).encode())
    for found in weights.checksums:
        hasher.update(found)
    return hasher.digest()


def _describe(
    hardware: Hardware,
    memory: DeviceMemory,
    checkpoint: Checkpoint,
    weights: _LookedAt,
    window: _Window,
    attention_backend: str,
    tokenizer: TokenizerFiles,
) -> EngineInfo:
    return EngineInfo(
        model_name=checkpoint.name,
        architecture=checkpoint.config.architecture,
        device=_device_name(hardware.device),
        dtype=str(hardware.dtype).removeprefix("torch."),
        num_parameters=num_parameters(checkpoint.config),
        vocab_size=checkpoint.config.vocab_size,
        max_model_len=window.max_model_len,
        block_size=window.layout.block_size,
        num_blocks=window.num_blocks,
        kv_bytes=window.num_blocks * window.layout.block_bytes,
        weight_bytes=weights.num_bytes,
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
        wanted = config.max_model_len or model.max_position_embeddings
        reserved = 0
        if hardware.device.type == "cuda":
            sizes = StepSizes(config.max_num_batched_tokens, config.max_num_seqs, wanted)
            reserved = step_bytes(model, sizes, hardware.dtype.itemsize)
        num_blocks = layout.num_blocks(pool_bytes(config.device_kv, hardware.device, reserved))
        capacity = num_blocks * config.block_size
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


def _attention_shape(model: ModelConfig, max_model_len: int) -> AttentionShape:
    needs_window = model.sliding_window is not None and model.sliding_window < max_model_len
    return AttentionShape(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        sliding_window=model.sliding_window if needs_window else None,
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
