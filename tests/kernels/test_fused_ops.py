"""A whole model of fused parts, in the interpreter, beside one of torch's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import ConfigError
from engine.fused.configs import WIDEST_ROW
from engine.fused.matmul import FixedTileLinear
from engine.fused.norm import TritonNorm
from engine.fused.ops import TritonOps
from engine.loading.checkpoint import open_checkpoint
from engine.models.layers import TorchLinear, TorchNorm
from tests.support import tiny_models
from tests.support.interpreted_products import multiply_by_row
from tests.support.tiny_models import Loaded, make_model, random_tokens


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    make_model(attention_bias=True).save_pretrained(tmp_path)
    return str(tmp_path)


def load(checkpoint: str, *, deterministic: bool = False) -> Loaded:
    return Loaded(open_checkpoint(checkpoint, "auto", 0), deterministic=deterministic)


def test_which_parts_there_are() -> None:
    weight = torch.ones(3, 4)
    assert isinstance(TritonOps(torch.float32).linear(weight), TorchLinear)
    assert isinstance(TritonOps(torch.float32, deterministic=True).linear(weight), FixedTileLinear)
    norm = TritonOps(torch.float16).norm(torch.ones(4), 1e-5)
    assert isinstance(norm, TritonNorm)
    assert norm.dtype is torch.float16


def test_hidden_states_that_no_program_can_hold() -> None:
    assert isinstance(TritonOps(torch.float32).norm(torch.ones(WIDEST_ROW), 1e-5), TritonNorm)
    wider = torch.ones(WIDEST_ROW + 64)
    assert isinstance(TritonOps(torch.float32).norm(wider, 1e-5), TorchNorm)
    with pytest.raises(ConfigError, match=r"--deterministic .* 16448 .*\.$"):
        TritonOps(torch.float32, deterministic=True).norm(wider, 1e-5)


@pytest.mark.parametrize("deterministic", [False, True])
def test_logits_are_those_of_torch(
    checkpoint: str, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = random_tokens(9)
    expected = load(checkpoint).logits(prompt)
    monkeypatch.setattr(tiny_models, "TorchOps", TritonOps)
    found = load(checkpoint, deterministic=deterministic).logits(prompt)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_logits_and_kv_are_the_same_for_every_cut_of_a_prompt(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply_by_row(monkeypatch)
    monkeypatch.setattr(tiny_models, "TorchOps", TritonOps)
    loaded, prompt = load(checkpoint, deterministic=True), random_tokens(40)
    expected = loaded.logits(prompt)
    kv = loaded.pool.clone()
    for sizes in ([1, 39], [33, 7]):
        loaded.pool.fill_(float("nan"))
        assert torch.equal(loaded.logits(prompt, sizes), expected)
        assert torch.equal(loaded.pool.nan_to_num(7.0), kv.nan_to_num(7.0))
