"""Log probabilities of prompts: how likely each token was, given those before it. Stateless.

Runs on: step thread. Logits of all rows of a long prompt at once would take gigabytes, so they are taken in
slices of rows; what remains of a slice is a few numbers for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.messages import PromptLogprobs
from engine.schedule import SchedulerOutput, Score, ScoreSpec

SLICE_ELEMENTS = 2**23  # logits at a time: 32 MiB


@dataclass(frozen=True, slots=True)
class _Scored:
    """Of R rows: whether all is well, the asked tokens' figures ``[R]``, the likeliest ``[R, num_top]``."""

    is_finite: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.uint32]
    top_ids: npt.NDArray[np.uint32]
    top_logprobs: npt.NDArray[np.float32]


def score(
    plan: SchedulerOutput,
    hidden: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    vocab_size: int,
) -> tuple[Score, ...]:
    """What the chunks' ``ScoreSpec`` ask for. ``hidden`` ``[T, H]`` has a row for each token of the plan.

    ``logits_of`` turns rows ``[R, H]`` into logits ``[R, V]``, float32 and raw.
    """
    asked: list[tuple[str, ScoreSpec]] = []
    rows: list[int] = []
    first_row = 0
    for chunk in plan.chunks:
        if chunk.score is not None:
            asked.append((chunk.sequence_id, chunk.score))
            first = first_row + chunk.score.start - chunk.start
            rows += range(first, first + len(chunk.score.token_ids))
        first_row += len(chunk.token_ids)
    if not asked:
        return ()
    targets = [token_id for _, spec in asked for token_id in spec.token_ids]
    num_top = min(max(spec.num_top for _, spec in asked), vocab_size)
    size = max(1, SLICE_ELEMENTS // vocab_size)
    slices = [
        _score_rows(logits_of(hidden[rows[at : at + size]]), targets[at : at + size], num_top)
        for at in range(0, len(rows), size)
    ]
    return tuple(_cut(asked, slices))


def _score_rows(logits: torch.Tensor, targets: Sequence[int], num_top: int) -> _Scored:
    logprobs = torch.log_softmax(logits, dim=1)
    asked = logprobs.gather(1, torch.tensor(targets, device=logits.device)[:, None])
    ranks = (logprobs > asked).sum(dim=1) + 1
    top_logprobs, top_ids = logprobs.topk(num_top, dim=1)
    return _Scored(
        torch.isfinite(logits.sum(dim=1)).cpu().numpy(),
        asked[:, 0].cpu().numpy(),
        ranks.cpu().numpy().astype(np.uint32),
        top_ids.cpu().numpy().astype(np.uint32),
        top_logprobs.cpu().numpy(),
    )


def _cut(asked: Sequence[tuple[str, ScoreSpec]], slices: Sequence[_Scored]) -> list[Score]:
    """The rows of each chunk, put together again."""
    is_finite = np.concatenate([part.is_finite for part in slices])
    logprobs = np.concatenate([part.logprobs for part in slices])
    ranks = np.concatenate([part.ranks for part in slices])
    top_ids = np.concatenate([part.top_ids for part in slices])
    top_logprobs = np.concatenate([part.top_logprobs for part in slices])
    scores, stop = [], 0
    for sequence_id, spec in asked:
        start, stop = stop, stop + len(spec.token_ids)
        num_top = min(spec.num_top, top_ids.shape[1])
        found = PromptLogprobs(
            logprobs[start:stop].tobytes(),
            ranks[start:stop].tobytes(),
            top_ids[start:stop, :num_top].tobytes(),
            top_logprobs[start:stop, :num_top].tobytes(),
            num_top,
        )
        scores.append(Score(sequence_id, found if is_finite[start:stop].all() else None))
    return scores
