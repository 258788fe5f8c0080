"""How much memory steps are left: by hand, for a model of eight billion weights."""

from __future__ import annotations

from dataclasses import replace

from engine.config import ModelConfig
from engine.execution.step_memory import StepSizes, step_bytes

MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
)
SMALL = StepSizes(max_num_rows=512, max_num_seqs=64, window=8192)


def test_a_row_a_logit_and_a_position() -> None:
    of_row = 2 * 4 * 4096 + 2 * (3 * 4096 + 3 * 14336 + (3 * 32 + 2 * 8) * 128)
    least = step_bytes(MODEL, SMALL, 2)
    assert 2**30 < least < 1.5 * 2**30
    assert step_bytes(MODEL, replace(SMALL, max_num_rows=8192), 2) - least == (8192 - 512) * of_row
    assert step_bytes(MODEL, replace(SMALL, window=131072), 2) - least == (131072 - 8192) * 128 * 4
    more_seqs = step_bytes(MODEL, replace(SMALL, max_num_seqs=65), 2) - least
    assert more_seqs == of_row + 128256 * (4 + 2 * (2 + 4) + 24)


def test_wider_elements_take_more() -> None:
    assert step_bytes(MODEL, SMALL, 4) > step_bytes(MODEL, SMALL, 2)
