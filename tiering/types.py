"""Identifiers, states, values and errors of KV blocks. Plain values: no torch, no threads, no clock."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

BlockId = NewType("BlockId", int)
"""Index of a block in the pool of one tier."""

BlockHash = NewType("BlockHash", bytes)
"""Name of a full block: a keyed hash of everything its KV depends on (see ``tiering.hashing``)."""

TransferId = NewType("TransferId", int)
"""Number of one block's move from a tier to its neighbour."""


class Tier(enum.StrEnum):
    """Where a block's bytes are, fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class BlockState(enum.Enum):
    """``FILLING``: owned by one sequence and not full, or full and nameless. ``READY``: named and immutable.

    ``COPYING_OUT``: as before, and being read by a copy. ``COPYING_IN``: being written by a copy.
    """

    FREE = "free"
    FILLING = "filling"
    READY = "ready"
    COPYING_OUT = "copying_out"
    COPYING_IN = "copying_in"


class BlockEvent(enum.Enum):
    """What can happen to a block; ``tiering.residency`` says when it may."""

    ALLOCATE = "allocate"
    PUBLISH = "publish"
    DISCARD = "discard"
    EVICT = "evict"
    FORGET = "forget its name"
    COPY_OUT = "copy out"
    COPIED_NAMED = "end a copy of a named block"
    COPIED_NAMELESS = "end a copy of a nameless block"
    COPY_IN = "copy in"
    ARRIVE_NAMED = "arrive with a name"
    ARRIVE_NAMELESS = "arrive without a name"
    ABANDON = "abandon a copy"


class IllegalTransitionError(RuntimeError):
    """A block or request was asked to do what its state forbids; nothing was changed."""


@dataclass(frozen=True, slots=True)
class BlockLabel:
    """What a full block is: its name, and its index in the token history (0 is the first block)."""

    name: BlockHash
    depth: int


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one device block to another: a sequence is about to write into what it shares (copy-on-write)."""

    source: BlockId
    target: BlockId


class TransferKind(enum.StrEnum):
    """Direction of a move. Members are also the values of the ``kind`` label of metrics."""

    SWAP_OUT = "swap_out"
    SWAP_IN = "swap_in"
    DEMOTE = "demote"
    PROMOTE = "promote"

    @property
    def source(self) -> Tier:
        return _ENDS[self][0]

    @property
    def target(self) -> Tier:
        return _ENDS[self][1]

    @property
    def is_load(self) -> bool:
        """Towards the device: someone waits for it."""
        return self in (TransferKind.SWAP_IN, TransferKind.PROMOTE)


_ENDS = {
    TransferKind.SWAP_OUT: (Tier.DEVICE, Tier.HOST),
    TransferKind.SWAP_IN: (Tier.HOST, Tier.DEVICE),
    TransferKind.DEMOTE: (Tier.HOST, Tier.DISK),
    TransferKind.PROMOTE: (Tier.DISK, Tier.HOST),
}


@dataclass(frozen=True, slots=True)
class TransferJob:
    """Move one block. ``label`` is None for one without a name, as a sequence's last, partly filled one."""

    transfer_id: TransferId
    kind: TransferKind
    source: BlockId
    target: BlockId
    label: BlockLabel | None


class TransferOutcome(enum.Enum):
    """``CORRUPT``: the source is not what its name says. ``CANCELLED``: the copy was never begun."""

    DONE = "done"
    FAILED = "failed"
    CORRUPT = "corrupt"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TransferResult:
    """How a move ended.

    ``copy_s``: seconds of the copy; ``queue_s``: from submission to its start; ``cpu_s``: processor time.
    """

    transfer_id: TransferId
    outcome: TransferOutcome
    copy_s: float = 0.0
    queue_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """Blocks by use. ``cached`` ones are READY, referenced by nobody and can be evicted at once.

    ``copying`` ones are an end of a move; the rest of those referenced is ``in_use``.
    """

    free: int = 0
    cached: int = 0
    in_use: int = 0
    copying: int = 0

    @property
    def available(self) -> int:
        return self.free + self.cached
