"""Carries out a step: plan to tensors, one forward, one sampling. By torch alone, on any device.

Runs on: step thread, sole user of model and pool. Blocks: for the length of a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.execution.batch import build_model_input
from engine.execution.grammars import GrammarError, GrammarMasks, Mask
from engine.execution.sampler import sample
from engine.execution.scoring import score
from engine.models.llama import Decoder
from engine.schedule import Sample, SampleSpec, ScheduledChunk, SchedulerOutput, StepOutput
from tiering.memory.device_pool import copy_blocks


class ModelRunner:
    """Executes plans on one model and one KV pool. Without ``masks`` no plan may have grammars."""

    def __init__(self, model: Decoder, pool: torch.Tensor, block_size: int) -> None:
        self._model = model
        self._pool = pool
        self._block_size = block_size
        self._device = pool.device
        self.masks: GrammarMasks | None = None

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> StepOutput:
        """Copy blocks, compute every chunk's tokens into the pool; draw and score where chunks ask for it."""
        if plan.copies:
            copy_blocks(self._pool, plan.copies)
        if not plan.chunks:
            return StepOutput(samples=())
        inputs = build_model_input(plan, self._block_size, self._device)
        hidden = self._model.hidden(inputs)
        scores = score(plan, hidden, self._model.logits, self._model.vocab_size)
        asking = [chunk for chunk in plan.chunks if chunk.sample is not None]
        if not asking:
            return StepOutput(samples=(), scores=scores)
        logits = self._model.logits(hidden[inputs.logit_rows])
        return StepOutput(samples=sample_chunks(logits, asking, self.masks), scores=scores)


def sample_chunks(
    logits: torch.Tensor, asking: Sequence[ScheduledChunk], masks: GrammarMasks | None
) -> tuple[Sample, ...]:
    """What each chunk, all of which ask for a sample, gets from its row of ``logits`` ``[R, V]`` float32."""
    specs = [chunk.sample for chunk in asking if chunk.sample is not None]
    allowed: list[Mask | None] = []
    errors: list[str | None] = []
    for chunk, spec in zip(asking, specs, strict=True):
        mask, error = _mask(chunk.sequence_id, spec, masks)
        allowed.append(mask)
        errors.append(error)
    drawn = sample(logits, specs, allowed)
    return tuple(
        Sample(chunk.sequence_id, tokens if error is None else (), error)
        for chunk, tokens, error in zip(asking, drawn, errors, strict=True)
    )


def _mask(sequence_id: str, spec: SampleSpec, masks: GrammarMasks | None) -> tuple[Mask | None, str | None]:
    """What a grammar allows next, or why it cannot be followed any further."""
    if spec.params.grammar is None:
        return None, None
    assert masks is not None
    try:
        return masks.mask(sequence_id, spec), None
    except GrammarError as error:
        return None, str(error)
