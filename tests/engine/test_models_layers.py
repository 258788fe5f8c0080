"""The small parts against their definitions, in float64."""

from __future__ import annotations

import torch

from engine.models.layers import TorchLinear, TorchNorm, silu_and_mul


def test_linear() -> None:
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    torch.testing.assert_close(TorchLinear(weight)(x), x @ weight.T)
    torch.testing.assert_close(TorchLinear(weight, bias)(x), x @ weight.T + bias)


def test_rms_norm_rounds_once_at_the_end() -> None:
    x, weight = torch.randn(3, 64) * 1e-3, torch.randn(64)
    exact = x.double() / (x.double().square().mean(dim=1, keepdim=True) + 1e-6).sqrt() * weight.double()
    found = TorchNorm(weight, 1e-6, torch.float32)(x)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6)
    rounded = TorchNorm(weight, 1e-6, torch.bfloat16)(x)
    assert rounded.dtype is torch.bfloat16
    assert (rounded.double() / exact - 1).abs().max() < 2**-8 + 1e-4


def test_swiglu_takes_the_gate_from_the_first_half() -> None:
    gate, up = torch.randn(3, 8), torch.randn(3, 8)
    both = torch.cat([gate, up], dim=1)
    before = both.clone()
    torch.testing.assert_close(silu_and_mul(both), gate * torch.sigmoid(gate) * up)
    assert torch.equal(both, before)
