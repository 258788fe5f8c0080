"""What every attention backend offers: rotate, write K/V into the pool, attend through block tables.

A sequence is (rows of this step, position of its first row, block table); decode, chunked prefill
and a prefix hit are one case that differs only in these numbers.
Runs on: step thread. Invariant: what pool slots at or past a sequence's length hold, NaN included,
shows in no result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Ragged batch of B sequences over T rows. All tensors are int32 on the pool's device."""

    query_start: torch.Tensor  # [B + 1] first row of each sequence; the last entry is T
    context_start: torch.Tensor  # [B] position of each sequence's first row
    seq_lens: torch.Tensor  # [B] tokens known after this step
    block_tables: torch.Tensor  # [B, max_blocks] device block ids, padded with 0
    slot_mapping: torch.Tensor  # [T] block * block_size + offset of each row's K/V
    num_decodes: int  # how many sequences, from the first on, have one row; those after may have one too


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Head counts and window of a model's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None

    @property
    def group_size(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_size(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


class AttentionBackend(ABC):
    """Attention over one KV pool ``[N, L, 2, Hkv, block_size, D]``, which it fills and reads."""

    name: str

    @property
    def arithmetic(self) -> str:
        """Changes with anything that may change a bit of a result."""
        return self.name

    @abstractmethod
    def begin_step(self, metadata: AttentionMetadata, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Take in one step's batch. ``cos`` and ``sin``: float32 ``[T, D / 2]``, one row a position."""

    @abstractmethod
    def forward(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Rotate Q and K of ``qkv`` ``[T, (Hq + 2 Hkv) * D]``, store K and V, return ``[T, Hq * D]``."""
