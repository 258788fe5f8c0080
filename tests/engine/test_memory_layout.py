"""Sizes of a block, in the numbers that the documentation gives."""

from __future__ import annotations

from tiering.memory.layout import KVLayout

LAYOUT = KVLayout(num_layers=32, num_kv_heads=8, block_size=16, head_dim=128, dtype_bytes=2)


def test_a_block_of_an_8b_model_is_two_mebibytes() -> None:
    assert LAYOUT.block_shape == (32, 2, 8, 16, 128)
    assert LAYOUT.token_bytes == 128 * 1024
    assert LAYOUT.block_bytes == 2 * 2**20


def test_only_whole_blocks_count() -> None:
    assert LAYOUT.num_blocks(2 * 2**20 - 1) == 0
    assert LAYOUT.num_blocks(2 * 2**20) == 1
    assert LAYOUT.num_blocks(7 * 2**20) == 3
