"""Matrix products whose rows depend on nothing but themselves, bit for bit, for deterministic mode.

A library picks tiles, and in how many parts a sum is cut, by the number of rows; another number then sums in
another order. Here the tile is fixed by the weight alone, one program sums all of a result's products in
order of depth, and rows past the end are zeros in the same instruction. float32 is multiplied in IEEE
float32, never in tf32. Runs on: step thread; launches only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from engine.fused.configs import matmul_launch, matmul_programs
from engine.kernels.jit import jit
from engine.models.layers import Linear


@jit()
def tile_of_program(
    num_row_tiles: tl.tensor, num_column_tiles: tl.constexpr, TOGETHER: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Row and column tile of this program: column by column through groups of ``TOGETHER`` row tiles."""
    program = tl.program_id(0)
    per_group = TOGETHER * num_column_tiles
    first = program // per_group * TOGETHER
    height = tl.minimum(num_row_tiles - first, TOGETHER)
    within = program % per_group
    return first + within % height, within // height


@jit(varying=["num_rows"])
def fixed_tile_matmul_kernel(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, out: tl.tensor, num_rows: tl.tensor,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr, TOGETHER: tl.constexpr,
) -> None:  # fmt: skip
    """One tile of ``x @ weight.T + bias``, summed in float32: the grid is all tiles."""
    row_tile, column_tile = tile_of_program(
        tl.cdiv(num_rows, TILE_ROWS), (COLUMNS + TILE_COLUMNS - 1) // TILE_COLUMNS, TOGETHER
    )
    rows = row_tile * TILE_ROWS + tl.arange(0, TILE_ROWS)
    columns = column_tile * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    is_row, is_column = (rows < num_rows)[:, None], columns < COLUMNS
    steps = tl.arange(0, TILE_DEPTH)
    x_tile = x + rows.to(tl.int64)[:, None] * DEPTH + steps[None, :]
    weight_tile = weight + columns.to(tl.int64)[None, :] * DEPTH + steps[:, None]
    total = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
    for start in range(0, DEPTH, TILE_DEPTH):
        if DEPTH % TILE_DEPTH == 0:
            left = tl.load(x_tile + start, mask=is_row, other=0.0)
            right = tl.load(weight_tile + start, mask=is_column[None, :], other=0.0)
        else:
            is_step = start + steps < DEPTH
            left = tl.load(x_tile + start, mask=is_row & is_step[None, :], other=0.0)
            right = tl.load(weight_tile + start, mask=is_column[None, :] & is_step[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    places = rows.to(tl.int64)[:, None] * COLUMNS + columns[None, :]
    tl.store(out + places, total.to(out.dtype.element_ty), mask=is_row & is_column[None, :])


def fixed_tile_matmul(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias`` of ``[T, K]`` and ``[N, K]``, in their dtype."""
    (num_rows, depth), num_columns = x.shape, len(weight)
    assert x.dtype is weight.dtype and weight.shape[1] == depth
    assert x.is_contiguous() and weight.is_contiguous()
    out = x.new_empty((num_rows, num_columns))
    if num_rows:
        grid = (matmul_programs(x.element_size(), num_rows, num_columns),)
        launch = matmul_launch(x.element_size(), num_columns, depth)
        fixed_tile_matmul_kernel[grid](x, weight, bias, out, num_rows, **launch.keywords())
    return out


@dataclass(frozen=True, slots=True)
class FixedTileLinear(Linear):
    """The product as a part of the model."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return fixed_tile_matmul(x, self.weight, self.bias)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)
