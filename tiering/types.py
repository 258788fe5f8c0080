"""Identifiers, states and errors of KV blocks. Plain values: no torch, no threads, no clock."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

BlockId = NewType("BlockId", int)
"""Index of a block in the pool of one tier."""

BlockHash = NewType("BlockHash", bytes)
"""Name of a full block: a keyed hash of everything its KV depends on (see ``tiering.hashing``)."""


class BlockState(enum.Enum):
    """``FILLING``: owned by one sequence, not yet full. ``READY``: full, named and immutable."""

    FREE = "free"
    FILLING = "filling"
    READY = "ready"


class BlockEvent(enum.Enum):
    """What can happen to a block; ``tiering.residency`` says when it may."""

    ALLOCATE = "allocate"
    PUBLISH = "publish"
    DISCARD = "discard"
    EVICT = "evict"


class IllegalTransitionError(RuntimeError):
    """A block or request was asked to do what its state forbids; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence got its blocks; its first ``num_cached_tokens`` tokens need not be computed."""

    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """Blocks by use. ``cached`` ones are READY, referenced by nobody and can be evicted at once."""

    free: int
    cached: int
    in_use: int

    @property
    def available(self) -> int:
        return self.free + self.cached
