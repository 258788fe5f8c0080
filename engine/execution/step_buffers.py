"""Memory on the device that steps are described in. Made once, so that CUDA graphs find it where it was.

Runs on: step thread. A step is sent in one copy (``engine.execution.staging``) and expanded by one launch
(``engine.fused.step_inputs``); what is not expanded is read where it was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.attention.base import AttentionMetadata
from engine.execution.draws import Draws
from engine.execution.staging import StagingRing
from engine.execution.step_layout import StepCounts, StepLayout, write_step
from engine.execution.table_rows import TableRows
from engine.fused.step_inputs import expand
from engine.models.llama import ModelInput
from engine.schedule import SchedulerOutput

_ROWS_PER_SEQUENCE = 2  # of kept tables: those who sit out a step need not be told theirs anew
_TABLE_ALIGNMENT = 16  # entries


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The most that a step may have. ``max_model_len``: tokens of a sequence."""

    max_num_seqs: int
    max_num_rows: int
    max_model_len: int

    @property
    def max_num_draws(self) -> int:
        """Each sequence may be a prompt that asks for as many answers as there may be sequences.

        All are counted as it is admitted; who is loaded from another tier meets those who came since.
        """
        return self.max_num_seqs**2


class StepBuffers:
    """Inputs of a step, and room for what a graph computes: logits and tokens of a row a sequence."""

    def __init__(self, limits: StepLimits, block_size: int, vocab_size: int, device: torch.device) -> None:
        self.limits = limits
        self._block_size = block_size
        num_seqs = limits.max_num_seqs
        num_rows = max(limits.max_num_rows, num_seqs)
        width = -(-limits.max_model_len // block_size)
        width += -width % _TABLE_ALIGNMENT
        most = StepCounts(
            num_seqs=num_seqs,
            num_rows=num_rows,
            num_logit_rows=num_seqs,
            num_draws=limits.max_num_draws,
            num_copies=num_seqs,
            num_changes=num_seqs * width,
        )

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.words = zeros(StepLayout.of(most).end)
        self.kept_tables = zeros(_ROWS_PER_SEQUENCE * num_seqs, width)
        self.token_ids = zeros(num_rows, dtype=torch.int64)
        self.positions = zeros(num_rows, dtype=torch.int64)
        self.slot_mapping = zeros(num_rows)
        self.query_start = zeros(num_seqs + 1)
        self.context_start = zeros(num_seqs)
        self.seq_lens = zeros(num_seqs)
        self.block_tables = zeros(num_seqs, width)
        self.logits = zeros(num_seqs, vocab_size, dtype=torch.float32)
        self.tokens = zeros(num_seqs, dtype=torch.int64)
        self._ring = StagingRing(len(self.words), device)
        self._tables = TableRows(len(self.kept_tables), width)

    def send(
        self, plan: SchedulerOutput, draws: Draws, logit_rows: Sequence[int], num_seqs: int
    ) -> StepLayout:
        """Send a step, padded to ``num_seqs`` sequences, and return where its parts are."""
        num_padding = num_seqs - len(plan.chunks)
        counts = StepCounts(
            num_seqs=num_seqs,
            num_rows=plan.num_tokens + num_padding,
            num_logit_rows=len(logit_rows),
            num_draws=len(draws),
            num_copies=len(plan.copies),
        )
        assert num_seqs <= self.limits.max_num_seqs and len(draws) <= self.limits.max_num_draws
        assert counts.num_rows <= len(self.token_ids)
        layout = StepLayout.of(counts)
        words = self._ring.words()
        num_words = write_step(words, layout, plan.chunks, plan.copies, draws, logit_rows, self._tables)
        self._ring.send(self.words, num_words)
        return layout

    def expand(self, layout: StepLayout, num_decodes: int) -> ModelInput:
        """Make a step's inputs of what was sent; so many sequences, from the first on, have one row."""
        counts = layout.counts
        num_seqs, num_rows = counts.num_seqs, counts.num_rows
        attention = AttentionMetadata(
            query_start=self.query_start[: num_seqs + 1],
            context_start=self.context_start[:num_seqs],
            seq_lens=self.seq_lens[:num_seqs],
            block_tables=self.block_tables[:num_seqs],
            slot_mapping=self.slot_mapping[:num_rows],
            num_decodes=num_decodes,
        )
        token_ids, positions = self.token_ids[:num_rows], self.positions[:num_rows]
        expand(
            self.words,
            self.kept_tables,
            token_ids,
            positions,
            attention,
            records_at=layout.records,
            token_ids_at=layout.token_ids,
            block_size=self._block_size,
        )
        logit_rows = self._sent(layout.logit_rows, counts.num_logit_rows, torch.int64)
        return ModelInput(token_ids, positions, logit_rows, attention)

    def copies(self, layout: StepLayout) -> tuple[torch.Tensor, torch.Tensor]:
        """Sources and targets of the step's block copies, ``[C]`` int64 each."""
        count = layout.counts.num_copies
        return (
            self._sent(layout.copy_sources, count, torch.int64),
            self._sent(layout.copy_targets, count, torch.int64),
        )

    def draws(self, layout: StepLayout) -> DrawColumns:
        """What is to be drawn, and how: ``[D]`` each."""
        count = layout.counts.num_draws
        return DrawColumns(
            rows=self._sent(layout.draw_rows, count, torch.int64),
            temperatures=self._sent(layout.temperatures, count, torch.float32),
            top_ks=self._sent(layout.top_ks, count, torch.int32),
            top_ps=self._sent(layout.top_ps, count, torch.float32),
            min_ps=self._sent(layout.min_ps, count, torch.float32),
            seeds=self._sent(layout.seeds, count, torch.int64),
            positions=self._sent(layout.positions, count, torch.int64),
        )

    def _sent(self, at: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """``count`` entries of what was sent, as ``dtype``."""
        num_words = count * dtype.itemsize // self.words.itemsize
        return self.words[at : at + num_words].view(dtype)


@dataclass(frozen=True, slots=True)
class DrawColumns:
    """``Draws`` on the device."""

    rows: torch.Tensor
    temperatures: torch.Tensor
    top_ks: torch.Tensor
    top_ps: torch.Tensor
    min_ps: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
