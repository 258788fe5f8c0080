"""SwiGLU in one pass: each gate times its sigmoid times the element it gates, rounded once.

Each result is computed by itself, so it depends on its row alone. Runs on: step thread; launches only.
"""

from __future__ import annotations

import torch
import triton.language as tl

from engine.fused.configs import activation_launch, activation_programs
from engine.kernels.jit import jit


@jit()
def silu_and_mul_kernel(gate_up: tl.tensor, out: tl.tensor, WIDTH: tl.constexpr, TILE: tl.constexpr) -> None:
    """Some results of one row: the grid is (rows, parts of a row)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < WIDTH
    gates = gate_up + row * (2 * WIDTH) + columns
    gate = tl.load(gates, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gates + WIDTH, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * WIDTH + columns, value.to(out.dtype.element_ty), mask=inside)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``[T, 2 * F]`` to ``[T, F]``, the gate in the first half."""
    num_rows, both = gate_up.shape
    assert both % 2 == 0 and gate_up.is_contiguous()
    width = both // 2
    out = gate_up.new_empty((num_rows, width))
    if num_rows:
        grid = (num_rows, activation_programs(width))
        silu_and_mul_kernel[grid](gate_up, out, **activation_launch(width).keywords())
    return out
