"""Which row of the device's block tables each sequence has, and what of it the device was not told yet.

Runs on: step thread. Pure. The device keeps tables from step to step and is sent what has changed. Nothing is
assumed of what may become of a table between two steps: it is compared with what was sent. Both refer to the
same integers, which makes that a comparison of pointers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableChange:
    """A sequence's row, and its entries from ``first`` to its end, as the device is to be told them."""

    row: int
    first: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Told:
    """What the device knows of a sequence."""

    row: int
    blocks: list[int]


class TableRows:
    """Rows of ``width`` entries for the sequences of a step, of which there are at most ``num_rows``.

    The others keep theirs until it is needed; those go first that were not in a step for longest.
    """

    def __init__(self, num_rows: int, width: int) -> None:
        self._width = width
        self._free = list(range(num_rows - 1, -1, -1))
        self._told: OrderedDict[str, _Told] = OrderedDict()  # whose turn it is to lose its row comes first

    def place(self, sequence_id: str, table: Sequence[int]) -> TableChange:
        """The row of a sequence in this step. What it says has changed must then be told to the device."""
        told = self._told.get(sequence_id)
        if told is not None:
            self._told.move_to_end(sequence_id)
            if told.blocks == table:
                return TableChange(told.row, len(table), ())
        assert len(table) <= self._width
        blocks = list(table)
        row = self._take_row() if told is None else told.row
        first = 0 if told is None else _first_difference(told.blocks, blocks)
        self._told[sequence_id] = _Told(row, blocks)
        return TableChange(row, first, blocks[first:])

    def _take_row(self) -> int:
        if self._free:
            return self._free.pop()
        return self._told.popitem(last=False)[1].row


def _first_difference(old: list[int], new: list[int]) -> int:
    """Index of the first entry of ``new`` that ``old`` has not got there, by bisection."""
    low, high = 0, min(len(old), len(new))
    if old[:high] == new[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle
    return low
