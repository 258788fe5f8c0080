"""The small parts against their definitions, in float64."""

from __future__ import annotations

import pytest
import torch

from engine.models.layers import (
    PrepackedLinear,
    TorchLinear,
    TorchNorm,
    TorchOps,
    silu_and_mul,
)


def test_linear() -> None:
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    torch.testing.assert_close(TorchLinear(weight)(x), x @ weight.T)
    torch.testing.assert_close(TorchLinear(weight, bias)(x), x @ weight.T + bias)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(7, 5), (96, 64), (576, 1536)])
def test_a_prepacked_product_is_the_product_and_gives_its_weight_back(
    shape: tuple[int, int], has_bias: bool
) -> None:
    weight = torch.randn(shape).to(torch.bfloat16)
    bias = torch.randn(shape[0]).to(torch.bfloat16) if has_bias else None
    if not PrepackedLinear.is_possible(weight):
        pytest.skip("oneDNN has no bfloat16 products on this CPU")
    linear = PrepackedLinear(weight.clone(), bias)
    for num_rows in (0, 1, 3, 130):
        x = torch.randn(num_rows, shape[1]).to(torch.bfloat16)
        exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        torch.testing.assert_close(linear(x).double(), exact, rtol=2**-8, atol=2**-5)
    given_back = linear.tensors()
    assert torch.equal(given_back[0], weight) and len(given_back) == 1 + has_bias
    assert bias is None or given_back[1] is bias


def test_weights_are_prepacked_where_that_costs_no_memory() -> None:
    weight = torch.randn(8, 4).to(torch.bfloat16)
    is_possible = PrepackedLinear.is_possible(weight)
    assert isinstance(TorchOps(torch.bfloat16).linear(weight), PrepackedLinear) == is_possible
    assert isinstance(TorchOps(torch.bfloat16).linear(weight, is_shared=True), TorchLinear)
    assert isinstance(TorchOps(torch.float32).linear(weight.float()), TorchLinear)


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
