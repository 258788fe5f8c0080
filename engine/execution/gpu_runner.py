"""Carries out a step on a GPU: one copy there, a graph where one fits, one wait at the end.

Runs on: step thread, sole user of model and pool. Blocks: until the device has computed the step. Tokens that
want nothing special are drawn on the device, the others by ``engine.execution.sampler``, which waits for the
logits in its own way. All is enqueued on the current stream, by which the movers order their copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.execution.cuda_graphs import DecodeGraphs, Progress, Recorder, graph_sizes
from engine.execution.draws import Asked, Draws, Wanted, of_every_row, of_rows_that_ask
from engine.execution.grammars import GrammarMasks
from engine.execution.model_runner import sample_chunks
from engine.execution.scoring import score
from engine.execution.staging import enqueue_copy, make_fence
from engine.execution.step_buffers import DrawColumns, StepBuffers, StepLimits
from engine.execution.step_layout import StepCounts, StepLayout
from engine.fused.block_copy import copy_blocks
from engine.fused.sampling import draw
from engine.models.llama import LlamaModel
from engine.schedule import Sample, SampledToken, SchedulerOutput, Score, StepOutput


class Sampler(Protocol):
    """Draws on the device, as ``engine.fused.sampling.draw`` does."""

    def __call__(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        seeds: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """A token a row of ``logits`` ``[R, V]``; -1 where they are not finite."""
        ...


@dataclass(frozen=True, slots=True)
class _Computed:
    """What the device will have once it has caught up. ``tokens`` are those of the draws, in order."""

    logits: torch.Tensor
    tokens: torch.Tensor
    scores: tuple[Score, ...] = ()


class GpuRunner:
    """Executes plans on one model and one KV pool. Without ``masks`` no plan may have grammars."""

    def __init__(
        self,
        model: LlamaModel,
        pool: torch.Tensor,
        block_size: int,
        limits: StepLimits,
        draw: Sampler = draw,
    ) -> None:
        self._model = model
        self._pool = pool
        self._draw = draw
        self._buffers = StepBuffers(limits, block_size, model.vocab_size, pool.device)
        self._drawn = torch.zeros(limits.max_num_draws, dtype=torch.int64, pin_memory=pool.is_cuda)
        self._done = make_fence(pool.device)
        self.graphs: DecodeGraphs | None = None
        self.masks: GrammarMasks | None = None

    @torch.inference_mode()
    def capture_graphs(self, recorder: Recorder, on_progress: Progress = lambda *_: None) -> None:
        """Capture decode steps, which are replayed from then on. Raises RuntimeError if it cannot be done."""
        sizes = graph_sizes(self._buffers.limits.max_num_seqs)
        graphs = DecodeGraphs(sizes, self._send_nothing, self._decode, recorder)
        graphs.capture(on_progress)
        self.graphs = graphs

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> StepOutput:
        """Copy blocks, compute every chunk's tokens into the pool; draw and score where chunks ask for it."""
        if not plan.chunks and not plan.copies:
            return StepOutput(samples=())
        size, wanted = self._choose_graph(plan)
        num_seqs = len(plan.chunks) if size is None else size
        layout = self._buffers.send(plan, wanted.draws, wanted.logit_rows, num_seqs)
        if plan.copies:
            copy_blocks(self._pool, *self._buffers.copies(layout))
        if size is None:
            computed = self._compute(plan, wanted, layout)
        else:
            assert self.graphs is not None
            self.graphs.replay(size)
            computed = _Computed(self._buffers.logits, self._buffers.tokens)
        return StepOutput(samples=self._answer(wanted, computed), scores=computed.scores)

    def _choose_graph(self, plan: SchedulerOutput) -> tuple[int | None, Wanted]:
        """The size of the graph that computes a plan, None if there is none, and what it is to compute."""
        if self.graphs is not None and plan.chunks:
            size = self.graphs.size_for(len(plan.chunks))
            wanted = None if size is None else of_every_row(plan, size)
            if wanted is not None:
                return size, wanted
        return None, of_rows_that_ask(plan)

    def _compute(self, plan: SchedulerOutput, wanted: Wanted, layout: StepLayout) -> _Computed:
        """Enqueue a step kernel by kernel."""
        nothing = _Computed(self._buffers.logits, self._buffers.tokens)
        if not plan.chunks:
            return nothing
        inputs = self._buffers.expand(layout, plan.num_decodes)
        hidden = self._model.hidden(inputs)
        scores = score(plan, hidden, self._model.logits, self._model.vocab_size)
        if not wanted.asked:
            return _Computed(nothing.logits, nothing.tokens, scores)
        logits = self._model.logits(hidden[inputs.logit_rows])
        if not wanted.draws:
            return _Computed(logits, nothing.tokens, scores)
        columns = self._buffers.draws(layout)
        is_in_place = wanted.draws.rows == list(range(len(logits)))
        drawn_from = logits if is_in_place else logits[columns.rows]
        return _Computed(logits, self._draw_tokens(drawn_from, columns), scores)

    def _answer(self, wanted: Wanted, computed: _Computed) -> tuple[Sample, ...]:
        """Fetch the tokens that were drawn on the device, and draw the others meanwhile."""
        count = len(wanted.draws)
        drawn = self._drawn[:count]
        enqueue_copy(drawn, computed.tokens[:count])
        self._done.record()
        others = iter(self._sample_special(wanted, computed.logits))
        self._done.synchronize()
        tokens: list[int] = drawn.tolist()
        return tuple(_sample(asked, tokens) if asked.draws else next(others) for asked in wanted.asked)

    def _sample_special(self, wanted: Wanted, logits: torch.Tensor) -> tuple[Sample, ...]:
        """For the chunks for which nothing was drawn, in their order."""
        special = [asked for asked in wanted.asked if not asked.draws]
        if not special:
            return ()
        rows = logits[[asked.row for asked in special]]
        return sample_chunks(rows, [asked.chunk for asked in special], self.masks)

    def _draw_tokens(self, logits: torch.Tensor, columns: DrawColumns) -> torch.Tensor:
        return self._draw(
            logits, columns.temperatures, columns.top_ks, columns.top_ps, columns.min_ps,
            columns.seeds, columns.positions,
        )  # fmt: skip

    # ---- what graphs hold ----------------------------------------------------------------------

    def _decode(self, size: int) -> None:
        """Enqueue a step of ``size`` decodes, which was sent before, with logits and a draw of every row."""
        layout = StepLayout.of(StepCounts(num_seqs=size, num_rows=size, num_draws=size))
        hidden = self._model.hidden(self._buffers.expand(layout, num_decodes=size))
        logits = self._model.logits(hidden, out=self._buffers.logits[:size])
        tokens = self._draw_tokens(logits, self._buffers.draws(layout))
        self._buffers.tokens[:size].copy_(tokens)

    def _send_nothing(self, size: int) -> None:
        """Send a step of ``size`` sequences that neither read nor store anything."""
        draws = Draws()
        for row in range(size):
            draws.add_unwanted(row)
        self._buffers.send(SchedulerOutput(()), draws, (), size)


def _sample(asked: Asked, tokens: Sequence[int]) -> Sample:
    """What the device drew for a chunk: nothing, if its logits were not finite."""
    drawn = tuple(SampledToken(tokens[at]) for at in asked.draws)
    is_finite = all(token.token_id >= 0 for token in drawn)
    return Sample(asked.chunk.sequence_id, drawn if is_finite else ())
