"""What a step sends to the device, as one run of 32-bit words, and where in it each part is. Pure.

All parts but the last have lengths that follow from a few counts, so that steps with the same counts have
their parts in the same places: a CUDA graph reads where it read when it was captured. The last part, what has
changed in block tables, is found by way of the sequences' records.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.execution.draws import Draws
from engine.execution.table_rows import TableRows
from engine.fused.configs import RECORD_WORDS
from engine.schedule import ScheduledChunk
from tiering.types import BlockCopy

Words = npt.NDArray[np.int32]

_ALIGNMENT_WORDS = 4  # 16 bytes: kernels are compiled for pointers that are, or are not, multiples of that
_NO_ROW = -1


@dataclass(frozen=True, slots=True)
class StepCounts:
    """How much there is of each thing that a step sends; of changes of tables, at most."""

    num_seqs: int
    num_rows: int
    num_logit_rows: int = 0
    num_draws: int = 0
    num_copies: int = 0
    num_changes: int = 0


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Where each part begins, in words.

    Of 64 bits an entry: ``logit_rows``, ``draw_rows``, ``seeds``, ``positions``, ``copy_sources``,
    ``copy_targets``. Floats: ``temperatures``, ``top_ps``, ``min_ps``. Copies, which a graph has no part in,
    come after all that it reads.
    """

    counts: StepCounts
    logit_rows: int
    draw_rows: int
    seeds: int
    positions: int
    temperatures: int
    top_ps: int
    min_ps: int
    top_ks: int
    records: int
    token_ids: int
    copy_sources: int
    copy_targets: int
    changes: int
    end: int

    @classmethod
    def of(cls, counts: StepCounts) -> StepLayout:
        """The layout of every step with these counts."""
        draws, copies = counts.num_draws, counts.num_copies
        sizes = [
            2 * counts.num_logit_rows, 2 * draws, 2 * draws, 2 * draws, draws, draws, draws, draws,
            RECORD_WORDS * counts.num_seqs, counts.num_rows, 2 * copies, 2 * copies, counts.num_changes,
        ]  # fmt: skip
        aligned = (size + -size % _ALIGNMENT_WORDS for size in sizes)
        return cls(counts, *itertools.accumulate(aligned, initial=0))


def write_step(
    words: Words,
    layout: StepLayout,
    chunks: Sequence[ScheduledChunk],
    copies: Sequence[BlockCopy],
    draws: Draws,
    logit_rows: Sequence[int],
    tables: TableRows,
) -> int:
    """Write a step, and return how many words it takes.

    Where ``layout`` has room for more sequences than there are chunks, the rest are sequences of one row and
    no length, which neither read nor store anything.
    """
    counts = layout.counts
    assert len(draws) == counts.num_draws and len(logit_rows) == counts.num_logit_rows
    _put(words, layout.logit_rows, np.array(logit_rows, dtype=np.int64))
    _put(words, layout.draw_rows, np.array(draws.rows, dtype=np.int64))
    _put(words, layout.seeds, np.array(draws.seeds, dtype=np.uint64))
    _put(words, layout.positions, np.array(draws.positions, dtype=np.int64))
    _put(words, layout.temperatures, np.array(draws.temperatures, dtype=np.float32))
    _put(words, layout.top_ps, np.array(draws.top_ps, dtype=np.float32))
    _put(words, layout.min_ps, np.array(draws.min_ps, dtype=np.float32))
    _put(words, layout.top_ks, np.array(draws.top_ks, dtype=np.int32))
    records, changes = _records(chunks, tables, counts.num_seqs, layout.changes)
    _put(words, layout.records, np.array(records, dtype=np.int32))
    token_ids = words[layout.token_ids : layout.token_ids + counts.num_rows]
    num_tokens = counts.num_rows - (counts.num_seqs - len(chunks))
    flat = itertools.chain.from_iterable(chunk.token_ids for chunk in chunks)
    token_ids[:num_tokens] = np.fromiter(flat, dtype=np.int32, count=num_tokens)
    token_ids[num_tokens:] = 0
    _put(words, layout.copy_sources, np.array([copy.source for copy in copies], dtype=np.int64))
    _put(words, layout.copy_targets, np.array([copy.target for copy in copies], dtype=np.int64))
    assert layout.changes + len(changes) <= len(words), "tables are longer than they can get"
    _put(words, layout.changes, np.array(changes, dtype=np.int32))
    return layout.changes + len(changes)


def _records(
    chunks: Sequence[ScheduledChunk], tables: TableRows, num_seqs: int, changes_at: int
) -> tuple[list[int], list[int]]:
    """Of each sequence its first row in the step, number of rows, first position, row of the device's tables
    (or ``_NO_ROW``), first changed entry of its table, length of its table, and where its changes are.

    And the changes, which begin at the word ``changes_at``.
    """
    records: list[int] = []
    changes: list[int] = []
    first_row = 0
    for chunk in chunks:
        num_rows, table = len(chunk.token_ids), chunk.block_table
        change = tables.place(chunk.sequence_id, table)
        changed_at = changes_at + len(changes)
        records += (
            first_row, num_rows, chunk.start, change.row, change.first, len(table), changed_at, 0,
        )  # fmt: skip
        changes += change.blocks
        first_row += num_rows
    for row in range(first_row, first_row + num_seqs - len(chunks)):
        records += (row, 1, 0, _NO_ROW, 0, 0, changes_at, 0)
    return records, changes


def _put(words: Words, at: int, values: npt.NDArray[np.generic]) -> None:
    part = values.view(np.int32)
    words[at : at + len(part)] = part
