"""A checkpoint of a tiny Llama with random weights, without transformers, which takes seconds to load."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.config import ModelConfig, RopeScaling
from engine.loading.checkpoint import Checkpoint
from engine.loading.shapes import tensor_shapes
from engine.messages import SamplingDefaults
from tests.support import tiny_tokenizers

TINY = ModelConfig(
    architecture="LlamaForCausalLM", vocab_size=512, hidden_size=64, intermediate_size=96, num_layers=3,
    num_heads=4, num_kv_heads=2, head_dim=16, max_position_embeddings=256, rms_norm_eps=1e-5,
    rope_theta=1e4, rope_scaling=RopeScaling(), tie_word_embeddings=True, attention_bias=False,
    mlp_bias=False, sliding_window=None, bos_token_id=1, eos_token_ids=(2,),
)  # fmt: skip


class RandomTensors:
    """Implements TensorSource: of each name always the same weights."""

    def __init__(self, config: ModelConfig) -> None:
        self._shapes = tensor_shapes(config)

    def names(self) -> set[str]:
        return set(self._shapes)

    def size_bytes(self, name: str) -> int:
        return 0

    def load(self, name: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(len(name))
        return torch.randn(self._shapes[name], generator=generator).to(torch.bfloat16)


def tiny_checkpoint(directory: Path) -> Checkpoint:
    """Its directory, which is made, has a tokenizer and nothing else."""
    directory.mkdir()
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), directory)
    return Checkpoint("tiny", directory, TINY, RandomTensors(TINY), SamplingDefaults())
