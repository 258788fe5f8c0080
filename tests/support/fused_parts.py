"""What norms, SwiGLU, products and copies on the device must be, against float64, in any dtype."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from engine.fused.activation import silu_and_mul
from engine.fused.block_copy import copy_blocks
from engine.fused.matmul import FixedTileLinear
from engine.fused.norm import TritonNorm

EPS = 1e-5
GUARD = 64  # elements
ROUNDING = {torch.float32: 2**-19, torch.float16: 2**-10, torch.bfloat16: 2**-7}  # relative, with margin


def noise(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def guarded(values: torch.Tensor) -> tuple[torch.Tensor, Callable[[], bool]]:
    """A copy with NaN on both sides of it, and whether those are still there."""
    region = values.new_full((values.numel() + 2 * GUARD,), float("nan"))
    inner = region[GUARD : GUARD + values.numel()].view(values.shape).copy_(values)

    def is_whole() -> bool:
        return bool(region[:GUARD].isnan().all() and region[-GUARD:].isnan().all())

    return inner, is_whole


def assert_near(found: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, num_terms: int = 1) -> None:
    """``num_terms``: of the float32 sums that it is made of."""
    assert found.dtype is dtype
    rounding = ROUNDING[dtype]
    scale = float(exact.abs().mean()) if exact.numel() else 0.0
    absolute = (rounding + 2**-22 * math.sqrt(num_terms)) * scale
    torch.testing.assert_close(found.double(), exact, rtol=rounding, atol=absolute)


def exact_norm(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    hidden = hidden.double()
    return hidden / (hidden.square().mean(dim=1, keepdim=True) + EPS).sqrt() * weight.double()


def assert_norm(num_rows: int, width: int, dtype: torch.dtype, device: str = "cpu") -> None:
    """Alone and after an add, in place and within bounds."""
    weight = 1 + 0.2 * noise(width, device=device)
    norm = TritonNorm(weight, EPS, dtype)
    hidden, is_whole = guarded(3 * noise(num_rows, width, seed=1, device=device))
    before = hidden.clone()
    assert_near(norm(hidden), exact_norm(before, weight), dtype)
    assert torch.equal(hidden, before)
    delta = noise(num_rows, width, seed=2, dtype=dtype, device=device)
    found = norm.after(hidden, delta)
    assert torch.equal(hidden, before + delta.float()), (
        "the sum of two float32 numbers is exact or rounded once"
    )
    assert_near(found, exact_norm(hidden, weight), dtype)
    assert is_whole()


def assert_swiglu(num_rows: int, width: int, dtype: torch.dtype, device: str = "cpu") -> None:
    both, is_whole = guarded(3 * noise(num_rows, 2 * width, dtype=dtype, device=device))
    before = both.clone()
    gate, up = before.double().chunk(2, dim=1)
    assert_near(silu_and_mul(both), gate * torch.sigmoid(gate) * up, dtype)
    assert torch.equal(both, before) and is_whole()


def assert_product(
    num_rows: int, columns: int, depth: int, dtype: torch.dtype, device: str = "cpu", *, biased: bool = False
) -> None:
    x, _ = guarded(noise(num_rows, depth, seed=1, dtype=dtype, device=device))
    weight, _ = guarded(noise(columns, depth, seed=2, dtype=dtype, device=device))
    bias = guarded(noise(columns, seed=3, dtype=dtype, device=device))[0] if biased else None
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert_near(FixedTileLinear(weight, bias)(x), exact, dtype, num_terms=depth)


def assert_by_row(operation: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> None:
    """However rows are cut and in whatever order they are, each has the same result, bit for bit."""
    expected, num_rows = operation(rows.clone()), len(rows)
    for sizes in ([1, 1, 1, num_rows - 3], [num_rows - 1, 1], [num_rows // 2, -(-num_rows // 2)]):
        found = torch.cat([operation(part.clone()) for part in rows.split(sizes)])
        assert torch.equal(found, expected), sizes
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0)).to(rows.device)
    assert torch.equal(operation(rows[order]), expected[order])


def assert_copies(pool: torch.Tensor, num_pairs: int, seed: int = 0) -> None:
    """Whole blocks arrive, pairs without a target do nothing, and nothing else changes."""
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))
    sources, targets = order[:num_pairs].to(pool.device), order[num_pairs : 2 * num_pairs].to(pool.device)
    expected = pool.clone()
    expected[targets] = pool[sources]
    padding = torch.tensor([-1], device=pool.device)
    copy_blocks(pool, torch.cat([sources, order[:1].to(pool.device)]), torch.cat([targets, padding]))
    assert torch.equal(pool.view(torch.uint8), expected.view(torch.uint8))
