"""Where the bytes of a KV block are. The same on every tier; imports no torch.

One block is contiguous over all layers, ``[num_layers, 2, kv_heads, block_size, head_dim]`` (2: keys,
then values), so that moving it between tiers is one copy. A layer's attention reads a strided view.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of one block. ``dtype_bytes`` is the size of one element."""

    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype_bytes: int

    @property
    def block_shape(self) -> tuple[int, ...]:
        return (self.num_layers, 2, self.num_kv_heads, self.block_size, self.head_dim)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * self.dtype_bytes

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_size

    def num_blocks(self, pool_bytes: int) -> int:
        """Whole blocks that fit ``pool_bytes``."""
        return pool_bytes // self.block_bytes
