"""What is launched for whom: plain conditions, and constants that fit the hardware's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.attention.triton.configs import (
    KernelShape,
    decode_launch,
    decode_tile,
    extend_launch,
    extend_tile,
    invariant_tile,
    max_pieces,
    programs_at_once,
    query_block,
    split_budget,
)
from engine.attention.triton.variants import shape_of, variants

SHAPES = [
    shape_of(dtype, head_dim, group)
    for dtype in ("fp16", "fp32")
    for head_dim in (16, 64, 80, 96, 128, 256)
    for group in (1, 3, 8, 71)
]


def is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tiles_are_powers_of_two_and_hold_a_group(shape: KernelShape) -> None:
    tiles = [decode_tile(shape), invariant_tile(shape), *(extend_tile(shape, rows) for rows in (1, 64, 8192))]
    for tile in tiles:
        assert is_power_of_two(tile.rows) and is_power_of_two(tile.tokens) and tile.tokens >= 16
        assert tile.rows >= max(16, shape.group_size) and query_block(shape, tile) >= 1


def test_more_rows_get_larger_tiles() -> None:
    shape = shape_of("bf16", 128, 4)
    assert [extend_tile(shape, rows).rows for rows in (1, 15, 16, 255, 256, 8192)] == [
        16,
        16,
        64,
        64,
        128,
        128,
    ]


def test_few_sequences_are_cut_once_around_the_device_and_many_finer() -> None:
    shape = shape_of("bf16", 128, 4)
    at_once = programs_at_once(shape, 132)
    assert at_once == 132 * decode_tile(shape).programs // shape.num_kv_heads
    assert programs_at_once(shape, 1) == 1
    assert split_budget(at_once, 1) == at_once and split_budget(at_once, 64) == 4 * at_once
    assert all(split_budget(at_once, n) + n <= max_pieces(at_once, 256) for n in range(1, 257))


def test_only_the_batch_invariant_rounds_each_operation() -> None:
    shape = shape_of("bf16", 128, 4)
    tile = invariant_tile(shape)
    assert extend_launch(shape, tile).fuse and not extend_launch(shape, tile, batch_invariant=True).fuse


def test_what_a_launch_is_compiled_with_is_made_once() -> None:
    """A step without graphs launches hundreds of kernels, and has the device wait for the host."""
    one, other = (shape_of("bf16", 128, 4) for _ in range(2))
    assert decode_launch(one).keywords() is decode_launch(other).keywords()
    launch = decode_launch(one)
    assert launch.keywords() == {**launch.constants, **launch.options()}
    assert replace(launch, num_warps=8).keywords()["num_warps"] == 8 != launch.num_warps


def test_the_register_has_every_kernel_with_every_head_size_and_dtype() -> None:
    names = {variant.name for variant in variants()}
    for kernel in ("decode", "extend", "rotate-store", "combine", "merge", "splits"):
        for head_dim in (64, 80, 96, 128, 256):
            for dtype in ("bf16", "fp32"):
                assert any(name.startswith(f"{kernel}-{dtype}-d{head_dim}-") for name in names)
    assert sum("window" in name for name in names) >= 9 and any("fp16" in name for name in names)
