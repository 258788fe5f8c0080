"""Fused kernels compiled for GPUs that are not there: no spills, the right instructions, room as planned.

The bounded sample has each kernel in its commonest sizes on Hopper, and products on the others; the full
count has every variant of the register on all three.
"""

from __future__ import annotations

import os
import re

import pytest

from engine.fused.variants import variants
from engine.kernels.launch import CAPABILITIES
from tests.support.compiled_kernels import compile_all, faults

REGISTRY = "engine.fused.variants:variants"
VARIANTS = {variant.name: variant for variant in variants()}
HOPPER = (
    "add-norm-bf16-4096", "add-norm-bf16-16384", "norm-fp32-576", "swiglu-bf16-4096", "block-copy-262144",
    "step-inputs-16",
    "summarize-128256", "limits-128256", "chances-128256", "pick-128256",
    "matmul-bf16-4096x4096", "matmul-bf16-28672x4096-bias", "matmul-fp32-4096x4096",
)  # fmt: skip
OTHERS = ("matmul-bf16-28672x4096-bias", "matmul-fp32-4096x4096")
if os.environ.get("TIDEGATE_SLOW"):
    WANTED = [(name, capability) for name in VARIANTS for capability in CAPABILITIES]
else:
    WANTED = [(name, 90) for name in HOPPER] + [(name, other) for other in (80, 100) for name in OTHERS]


@pytest.mark.parametrize(("name", "capability"), WANTED)
def test_a_binary_is_as_it_was_planned(name: str, capability: int) -> None:
    compiled = compile_all(REGISTRY, WANTED)[name, capability]
    assert faults(VARIANTS[name], capability, compiled) == [], compiled


@pytest.mark.parametrize(
    ("name", "capability"),
    [pair for pair in WANTED if pair[0].startswith("matmul") and "x100" not in pair[0]],
)
def test_factors_are_under_way_while_others_are_multiplied(name: str, capability: int) -> None:
    assert compile_all(REGISTRY, WANTED)[name, capability].num_wide_loads >= 2


@pytest.mark.parametrize(
    "name", ["add-norm-bf16-4096", "swiglu-bf16-4096", "block-copy-262144", "limits-128256"]
)
def test_what_memory_bounds_is_read_and_written_in_accesses_of_16_bytes(name: str) -> None:
    ptx = compile_all(REGISTRY, WANTED)[name, 90].ptx
    wide = r"global[\w.:]*\.v(?:4\.(?:b|f|u)32|2\.(?:b|f|u)64)"
    assert re.search(r"\bld\." + wide, ptx)
    assert re.search(r"\bst\." + wide, ptx) or name.startswith("limits")
