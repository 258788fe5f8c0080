"""Measures kernels in other tiles than they choose, to find out which they should choose.

A variant is put in by replacing the function that chooses, for as long as it is measured. One that the
compiler or the card refuses, for want of shared memory or registers, is printed to the log and left out.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.timing import Timing
from engine.attention.triton.configs import Tile


def describe(tile: Tile) -> str:
    """In few words."""
    return (
        f"{tile.rows} rows × {tile.tokens} tokens, {tile.num_warps} warps, {tile.num_stages} stages,"
        f" {tile.programs} programs"
    )


@contextlib.contextmanager
def replaced(owner: ModuleType | type, name: str, function: Callable[..., object]) -> Iterator[None]:
    """Have a module, or a class, use another function."""
    before = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, before)


def measured(
    tiles: Sequence[Tile], module: ModuleType, name: str, measure: Callable[[], Timing]
) -> list[tuple[Tile, Timing]]:
    """Those that could be measured, the fastest first. Raises RuntimeError if none could."""
    found = []
    for tile in tiles:
        try:
            with replaced(module, name, lambda *_, tile=tile: tile):
                found.append((tile, measure()))
        except Exception:
            print(f"{describe(tile)} is left out:")
            traceback.print_exc(limit=1)
    if not found:
        raise RuntimeError("no variant could be measured; the log says why")
    return sorted(found, key=lambda entry: entry[1].median_s)


def tell_variants(
    context: Context,
    what: str,
    chosen: Timing,
    variants: Sequence[tuple[Tile, Timing]],
    amount: float,
    unit: str,
) -> None:
    """The chosen tile's rate, and beside it that of each variant."""
    context.tell_rate(f"{what}, as it is", amount, chosen, unit)
    limit = amount / chosen.median_s / context.unit_of(unit)
    for tile, timing in variants:
        value = amount / timing.median_s / context.unit_of(unit)
        name = f"{what}, {describe(tile)}"
        context.tell(name, value, unit, beside="as it is", limit=limit, spread=timing.spread)
