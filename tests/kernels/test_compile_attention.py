"""Attention kernels compiled for GPUs that are not there: no spills, the right instructions, room as planned.

The bounded sample has each kernel in its commonest shape on Hopper, and some on the others; the full count
has every variant of the register, on all that it is launched on.
"""

from __future__ import annotations

import os

import pytest

from engine.attention.triton.variants import variants
from tests.support.compiled_kernels import compile_all, faults

REGISTRY = "engine.attention.triton.variants:variants"
VARIANTS = {variant.name: variant for variant in variants()}
HOPPER = (
    "decode-bf16-d128-g4", "decode-fp32-d128-g4", "extend-bf16-d128-g4-some", "extend-bf16-d128-g4-many",
    "extend-bf16-d128-g4-invariant", "extend-bf16-d64-g4-window-few", "extend-fp32-d64-g4-few",
    "rotate-store-bf16-d128-g4", "combine-bf16-d128-g4", "merge-bf16-d128-g4", "splits-bf16-d128-g4",
)  # fmt: skip
OTHERS = (
    ("decode-bf16-d128-g4", 80), ("extend-bf16-d128-g4-some-ampere", 80), ("extend-bf16-d128-g4-many", 100),
)  # fmt: skip
pytestmark = pytest.mark.timeout(3600 if os.environ.get("TIDEGATE_SLOW") else 180)  # the first compiles all
if os.environ.get("TIDEGATE_SLOW"):
    WANTED = [(name, capability) for name in VARIANTS for capability in VARIANTS[name].capabilities]
else:
    WANTED = [*((name, 90) for name in HOPPER), *OTHERS]


@pytest.mark.parametrize(("name", "capability"), WANTED)
def test_a_binary_is_as_it_was_planned(name: str, capability: int) -> None:
    compiled = compile_all(REGISTRY, WANTED)[name, capability]
    assert faults(VARIANTS[name], capability, compiled) == [], compiled


@pytest.mark.parametrize(
    ("name", "capability"), [pair for pair in WANTED if pair[0].startswith(("decode", "extend"))]
)
def test_keys_and_values_are_under_way_while_others_are_multiplied(name: str, capability: int) -> None:
    """Where a stride is not seen to be one of 16 bytes, or loads are not pipelined, half the rate is lost."""
    assert compile_all(REGISTRY, WANTED)[name, capability].num_wide_loads >= 2


def test_the_batch_invariant_rounds_every_operation() -> None:
    """Where a product is fused with a sum is the compiler's choice, and need not be one for every tile."""
    name = "extend-bf16-d128-g4-invariant"
    assert "fma.rn.f32" not in compile_all(REGISTRY, WANTED)[name, 90].ptx
    assert "fma.rn.f32" in compile_all(REGISTRY, WANTED)["extend-bf16-d128-g4-some", 90].ptx
