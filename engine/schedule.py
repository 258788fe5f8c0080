"""The values that pass between deciding and doing: SchedulerOutput out, StepOutput back.

Plain data, no torch. The scheduler builds a ``SchedulerOutput``; a runner of ``execution`` carries it
out (an ``Executor``) and answers with a ``StepOutput``; ``Scheduler.update`` then advances the state. What
there is one of for each sequence at each step is a msgspec struct, which is made in a fraction of the time of
a dataclass; no such is ever part of a cycle, so the garbage collector need not look at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import msgspec

from engine.messages import PromptLogprobs, SamplingParams, TokenLogprobs
from tiering.types import BlockCopy


class SampleSpec(msgspec.Struct, frozen=True, gc=False):
    """Ask for tokens after the last computed position of a chunk.

    One is drawn for each of ``seeds``; ``position``, the index in the sequence of the token to be drawn
    (= tokens known so far), keys the random draw with it. Without seeds candidates of a beam search are asked
    for: the ``num_candidates`` likeliest tokens, and as many likeliest of those that are not in ``ends``.
    The sequences are views valid for this step only. ``cache_salt`` says whose compiled grammars may be used.
    """

    params: SamplingParams
    seeds: tuple[int, ...]
    position: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    banned_token_ids: Sequence[int]
    num_candidates: int = 0
    ends: frozenset[int] = frozenset()
    cache_salt: bytes = b""


@dataclass(frozen=True, slots=True)
class ScoreSpec:
    """Ask how likely ``token_ids`` of a prompt were, each after one of the positions from ``start`` on.

    ``num_top`` likeliest tokens come with each.
    """

    start: int
    token_ids: Sequence[int]
    num_top: int


class ScheduledChunk(msgspec.Struct, frozen=True, gc=False):
    """Tokens ``[start, start + len(token_ids))`` of one sequence, to be computed in this step.

    ``block_table`` maps logical to device blocks and covers at least ``start + len(token_ids)``
    tokens. ``sample`` is None for a chunk that does not reach the end of the known tokens. ``score`` asks
    about positions within the chunk.
    """

    sequence_id: str
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    sample: SampleSpec | None
    score: ScoreSpec | None = None


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step's work: ``copies`` within the device pool, then chunks, decodes before prefills."""

    chunks: tuple[ScheduledChunk, ...]
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) for chunk in self.chunks)

    @property
    def num_decodes(self) -> int:
        """How many chunks, from the first on, are of one token."""
        return sum(1 for _ in takewhile(lambda chunk: len(chunk.token_ids) == 1, self.chunks))

    @property
    def is_scoring(self) -> bool:
        """Whether it takes longer than its tokens tell, because of log probabilities of prompts."""
        return any(chunk.score is not None for chunk in self.chunks)

    @property
    def num_pairs(self) -> int:
        """Query-key pairs of the step's attention."""
        sizes = ((len(chunk.token_ids), chunk.start) for chunk in self.chunks)
        return sum(rows * start + rows * (rows + 1) // 2 for rows, start in sizes)


class SampledToken(msgspec.Struct, frozen=True, gc=False):
    """A token that was drawn, or a candidate, for which ``log_probability`` is what a beam search ranks by.

    ``logprobs`` is what the user asked to see.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    log_probability: float = 0.0


class Sample(msgspec.Struct, frozen=True, gc=False):
    """What a chunk's ``SampleSpec`` asked for.

    No tokens: its grammar cannot be followed any further, as ``error`` says, or the logits were not finite.
    """

    sequence_id: str
    tokens: tuple[SampledToken, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """What a chunk's ``ScoreSpec`` asked for. None: the logits were not finite."""

    sequence_id: str
    logprobs: PromptLogprobs | None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One entry for each chunk that asked for a sample, in the order of the chunks; ``scores`` likewise."""

    samples: tuple[Sample, ...]
    scores: tuple[Score, ...] = ()


class Executor(Protocol):
    """Carries out steps."""

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        """One forward and sampling, and wait for it."""
        ...
