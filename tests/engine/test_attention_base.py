"""Numbers that follow from a model's attention shape."""

from __future__ import annotations

from engine.attention.base import AttentionShape


def test_grouped_heads() -> None:
    shape = AttentionShape(num_heads=9, num_kv_heads=3, head_dim=64)
    assert shape.group_size == 3
    assert shape.qkv_size == (9 + 3 + 3) * 64
    assert shape.sliding_window is None
