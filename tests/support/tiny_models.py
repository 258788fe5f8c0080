"""Tiny random models made by transformers, saved as a user would have them, and run by our pieces."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.attention.base import AttentionShape
from engine.attention.cpu import CpuAttention
from engine.config import ModelConfig
from engine.execution.batch import build_model_input
from engine.execution.model_runner import ModelRunner
from engine.loading.checkpoint import Checkpoint, open_checkpoint
from engine.loading.weights import load_weights
from engine.messages import SamplingParams
from engine.models.layers import TorchOps
from engine.models.llama import LlamaModel
from engine.models.rope import RopeTable
from engine.schedule import SampleSpec, ScheduledChunk, SchedulerOutput

CPU = torch.device("cpu")
BASE = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def make_model(architecture: str = "Llama", seed: int = 0, **changes: object) -> Any:
    """A ``LlamaForCausalLM`` or ``MistralForCausalLM`` whose every parameter is random, biases included."""
    import transformers

    config = getattr(transformers, f"{architecture}Config")(**{**BASE, **changes})
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.15 * noise)
    return model


def oracle_logits(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(token_ids)])).logits[0].float()
    return logits


def oracle_greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(oracle_logits(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


def random_tokens(count: int, seed: int = 0, vocab_size: int = 101) -> list[int]:
    return np.random.default_rng(seed).integers(3, vocab_size, count).tolist()


class Loaded:
    """A checkpoint on the CPU backend with a small pool."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype = torch.float32,
        num_blocks: int = 40,
        block_size: int = 16,
        deterministic: bool = False,
    ) -> None:
        self.config: ModelConfig = checkpoint.config
        self.block_size = block_size
        ops = TorchOps(dtype, deterministic=deterministic)
        self.weights = load_weights(self.config, checkpoint.tensors, ops, CPU, lambda *_: None)
        config = self.config
        self.pool = torch.full(
            (num_blocks, config.num_layers, 2, config.num_kv_heads, block_size, config.head_dim),
            float("nan"),
            dtype=dtype,
        )
        shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, config.sliding_window)
        window = min(config.max_position_embeddings, num_blocks * block_size)
        attention = CpuAttention(self.pool, shape, 2)
        self.model = LlamaModel(self.weights, RopeTable(config, window, CPU), attention)
        self.runner = ModelRunner(self.model, self.pool, block_size)

    def chunks(
        self, token_ids: Sequence[int], sizes: Sequence[int], sample: SampleSpec | None = None
    ) -> list[ScheduledChunk]:
        """Consecutive chunks of one sequence in blocks taken from the end; the last may ask for a token."""
        count = -(-len(token_ids) // self.block_size)
        table = tuple(range(self.pool.shape[0] - 1, self.pool.shape[0] - 1 - count, -1))
        assert sum(sizes) == len(token_ids)
        starts = np.cumsum([0, *sizes]).tolist()
        return [
            ScheduledChunk("r", tuple(token_ids[a:b]), a, table, sample if b == len(token_ids) else None)
            for a, b in itertools.pairwise(starts)
        ]

    def logits(self, token_ids: Sequence[int], sizes: Sequence[int] | None = None) -> torch.Tensor:
        """Logits of every position, computed in chunks of ``sizes``."""
        parts = []
        with torch.inference_mode():
            for chunk in self.chunks(token_ids, sizes or [len(token_ids)]):
                inputs = build_model_input(SchedulerOutput((chunk,)), self.block_size, CPU)
                every = torch.arange(len(chunk.token_ids))
                parts.append(self.model.forward(dataclasses.replace(inputs, logit_rows=every)))
        return torch.cat(parts)

    def greedy(self, prompt: Sequence[int], count: int, chunk: int) -> list[int]:
        """Through ``ModelRunner.execute``: the prompt in chunks, then one token at a time."""
        ids = list(prompt)
        params = SamplingParams(max_tokens=count, seed=0, temperature=0.0)
        sizes = [min(chunk, len(prompt) - start) for start in range(0, len(prompt), chunk)]
        for _ in range(count):
            ask = SampleSpec(params, (0,), len(ids), tuple(prompt), tuple(ids[len(prompt) :]), ())
            for step in self.chunks(ids, sizes, ask)[-1 if len(ids) > len(prompt) else 0 :]:
                output = self.runner.execute(SchedulerOutput((step,)))
            (drawn,) = output.samples
            ids.append(drawn.tokens[0].token_id)
            sizes.append(1)
        return ids[len(prompt) :]


def load(path: Path, dtype: torch.dtype = torch.float32) -> Loaded:
    return Loaded(open_checkpoint(str(path), "auto", 0), dtype)
