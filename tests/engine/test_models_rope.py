"""Rotary frequencies against transformers', and the Llama 3 scaling against its GGUF spelling."""

from __future__ import annotations

import math

import pytest
import torch

from engine.config import ModelConfig, RopeScaling
from engine.models.rope import RopeTable, inverse_frequencies


def config(scaling: RopeScaling | None = None, head_dim: int = 64) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=10,
        hidden_size=head_dim,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=scaling or RopeScaling(),
    )


@pytest.mark.parametrize("factor", [8.0, 32.0])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_llama3_frequencies_equal_those_of_transformers(factor: float, head_dim: int) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    numbers = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    theirs = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 500000.0, "original_max_position_embeddings": 8192, **numbers
        },
    )  # fmt: skip
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, torch.device("cpu"))
    scaling = RopeScaling(kind="llama3", original_max_position_embeddings=8192, **numbers)
    torch.testing.assert_close(inverse_frequencies(config(scaling, head_dim)), expected, rtol=1e-6, atol=0)


def test_plain_and_linear_and_factors() -> None:
    plain = inverse_frequencies(config())
    expected = [500000.0 ** (-2 * i / 64) for i in range(32)]
    torch.testing.assert_close(plain.double(), torch.tensor(expected).double(), rtol=1e-6, atol=0)
    linear = inverse_frequencies(config(RopeScaling(kind="linear", factor=4.0)))
    torch.testing.assert_close(linear, plain / 4)
    factors = tuple(1.0 + i for i in range(32))
    divided = inverse_frequencies(config(RopeScaling(kind="factors", factors=factors)))
    torch.testing.assert_close(divided, plain / torch.tensor(factors))


def test_the_table_holds_every_position() -> None:
    table = RopeTable(config(), 300, torch.device("cpu"))
    cos, sin = table.at(torch.tensor([299, 0]))
    assert cos.shape == sin.shape == (2, 32)
    assert cos.dtype is torch.float32
    assert cos[1].tolist() == [1.0] * 32
    assert float(cos[0, 0]) == pytest.approx(math.cos(299), abs=1e-5)
    assert float(sin[0, 0]) == pytest.approx(math.sin(299), abs=1e-5)
