"""The values that pass between deciding and doing: SchedulerOutput out, StepOutput back.

Plain data, no torch. The scheduler builds a ``SchedulerOutput``; ``execution.runner`` carries it
out and answers with a ``StepOutput``; ``Scheduler.update`` then advances the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """Ask for one token after the last computed position of a chunk.

    ``position`` is the index in the sequence of the token to be drawn (= tokens known so far); with
    ``params.seed`` it keys the random draw. The sequences are views valid for this step only.
    """

    params: SamplingParams
    position: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    banned_token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Tokens ``[start, start + len(token_ids))`` of one request, to be computed in this step.

    ``block_table`` maps logical to device blocks and covers at least ``start + len(token_ids)``
    tokens. ``sample`` is None for a chunk that does not reach the end of the known tokens.
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    sample: SampleSpec | None


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step's work: decodes first, then prefill chunks."""

    chunks: tuple[ScheduledChunk, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) for chunk in self.chunks)

    @property
    def num_pairs(self) -> int:
        """Query-key pairs of the step's attention."""
        sizes = ((len(chunk.token_ids), chunk.start) for chunk in self.chunks)
        return sum(rows * start + rows * (rows + 1) // 2 for rows, start in sizes)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The token drawn for a request; ``token_id`` is None if its logits were not finite."""

    request_id: str
    token_id: int | None
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One entry for each chunk that asked for a sample, in the order of the chunks."""

    samples: tuple[SampledToken, ...]
