"""The list of tensors equals what transformers' models are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.loading.hf_config import parse_model_config
from engine.loading.shapes import tensor_shapes, usable_token_ids
from tests.support.tiny_models import make_model


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("Llama", {}),
        ("Llama", {"tie_word_embeddings": True}),
        ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
        ("Mistral", {"head_dim": 8}),
    ],
)
def test_names_and_shapes_are_those_of_transformers(architecture: str, changes: dict[str, object]) -> None:
    model = make_model(architecture, **changes)
    raw = {**model.config.to_dict(), "architectures": [f"{architecture}ForCausalLM"]}
    shapes = tensor_shapes(parse_model_config(raw, {}, Path("config.json")))
    assert shapes == {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def test_usable_token_ids() -> None:
    assert usable_token_ids([3, -1, 3, 9, 10, 0], vocab_size=10) == (3, 9, 0)
