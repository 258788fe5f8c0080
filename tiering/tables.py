"""What the block manager knows of a sequence: its tables, and the answers it gives about it. Plain values."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tiering.outlook import NO_OUTLOOK, Outlook
from tiering.restore import Restore
from tiering.types import BlockHash, BlockId, TransferId


class Refusal(enum.Enum):
    """Why a sequence got no blocks. ``PENDING``: some are on their way for another; ask again soon."""

    NO_ROOM = "no room"
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Member:
    """A sequence that asks for blocks for ``capacity_tokens``, of which it knows ``num_tokens``.

    ``names`` are those of its full blocks, ``outlook`` is for all that it uses.
    """

    sequence_id: str
    names: Sequence[BlockHash]
    num_tokens: int
    capacity_tokens: int
    outlook: Outlook = NO_OUTLOOK


@dataclass(frozen=True, slots=True)
class PendingBranch:
    """A sequence that waits until ``parent_id`` has computed ``num_shared_tokens``, which it will share.

    ``blocks`` are what it will have beyond those.
    """

    parent_id: str
    num_shared_tokens: int
    blocks: list[BlockId]


@dataclass(frozen=True, slots=True)
class Admission:
    """A group of sequences got its blocks; the first ``num_cached_tokens`` of each are on the device.

    ``restoring``: more are on their way; ``overlaps``: and the front is computed meanwhile.
    ``num_forgone_tokens`` were found below the device and are to be computed instead.
    """

    num_cached_tokens: tuple[int, ...]
    restoring: bool = False
    overlaps: bool = False
    num_forgone_tokens: int = 0


class SequenceEvent(enum.Enum):
    """What the end of a move meant for a sequence."""

    SWAPPED_OUT = "swapped out"
    SWAP_OUT_FAILED = "swap-out failed"
    RESTORE_FAILED = "restore failed"


class BlockTable:
    """Logical to device blocks of one sequence. The first ``num_published`` are full and settled."""

    __slots__ = ("blocks", "num_published", "outlook", "restore")

    def __init__(self, blocks: list[BlockId], num_published: int, outlook: Outlook = NO_OUTLOOK) -> None:
        self.blocks = blocks
        self.num_published = num_published
        self.outlook = outlook
        self.restore: Restore | None = None


class ParkedTable:
    """Host slots of a preempted sequence, with ``num_tokens`` computed tokens in them.

    ``group`` is the number of those that were parked together.
    """

    __slots__ = ("group", "moves", "num_tokens", "slots")

    def __init__(self, slots: list[BlockId], num_tokens: int, group: int) -> None:
        self.slots = slots
        self.num_tokens = num_tokens
        self.group = group
        self.moves: set[TransferId] = set()
