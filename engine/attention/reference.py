"""Paged attention in plain torch: gathers each sequence's K and V, then calls torch's own attention.

Runs on: step thread. Works on any device and dtype and copies the context of every sequence, so it is
the yardstick of the tests and the fallback where no kernel of ours fits, not the fast path.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.attention.base import AttentionBackend, AttentionMetadata, AttentionShape


class ReferenceAttention(AttentionBackend):
    """Attention over a pool ``[N, L, 2, Hkv, block_size, D]`` by gathering."""

    name = "torch-gather"

    def __init__(self, pool: torch.Tensor, shape: AttentionShape) -> None:
        self._pool = pool
        self._shape = shape
        self._block_size = pool.shape[4]

    def begin_step(self, metadata: AttentionMetadata, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self._cos, self._sin = cos[:, None, :], sin[:, None, :]
        self._stored = (metadata.slot_mapping >= 0).nonzero()[:, 0]
        slots = metadata.slot_mapping[self._stored].long()
        self._slot_blocks, self._slot_offsets = slots // self._block_size, slots % self._block_size
        self._tables = metadata.block_tables.long()
        starts = metadata.query_start.tolist()
        self._spans = list(zip(starts[:-1], starts[1:], metadata.seq_lens.tolist(), strict=True))

    def forward(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        shape = self._shape
        heads = qkv.view(qkv.shape[0], -1, shape.head_dim)  # [T, Hq + 2 Hkv, D]
        sizes = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        query, key, value = torch.split(heads, sizes, dim=1)
        query = self._rotate(query)
        self._pool[self._slot_blocks, layer, 0, :, self._slot_offsets] = self._rotate(key)[self._stored]
        self._pool[self._slot_blocks, layer, 1, :, self._slot_offsets] = value[self._stored]
        rows = [self._attend(layer, index, query) for index in range(len(self._spans))]
        return torch.cat(rows).reshape(qkv.shape[0], -1)

    def _rotate(self, heads: torch.Tensor) -> torch.Tensor:
        low, high = heads.float().chunk(2, dim=-1)
        rotated = (low * self._cos - high * self._sin, high * self._cos + low * self._sin)
        return torch.cat(rotated, dim=-1).to(heads.dtype)

    def _attend(self, layer: int, index: int, query: torch.Tensor) -> torch.Tensor:
        """``[rows, Hq, D]`` of one sequence."""
        first, last, seq_len = self._spans[index]
        if not seq_len:
            return torch.zeros_like(query[first:last])
        table = self._tables[index, : -(-seq_len // self._block_size)]
        context = self._pool[table, layer]  # [blocks, 2, Hkv, block_size, D]
        keys, values = context.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :seq_len]
        attended = F.scaled_dot_product_attention(
            query[first:last].transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=self._mask(last - first, seq_len),
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)

    def _mask(self, num_rows: int, seq_len: int) -> torch.Tensor:
        """Which of ``seq_len`` positions each of the last ``num_rows`` may see."""
        positions = torch.arange(seq_len, device=self._pool.device)
        rows = positions[-num_rows:, None]
        mask = positions <= rows
        if self._shape.sliding_window is not None:
            mask &= positions > rows - self._shape.sliding_window
        return mask
