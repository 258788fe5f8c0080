"""What a step is to be asked for: which rows need logits, and what the device's own sampler draws. Pure.

Whether that sampler draws a token follows from the token's ``SampleSpec`` alone, for its random numbers are
others than torch's: so neither neighbours, nor how many answers a prompt gets, nor preemption changes a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.messages import SamplingParams
from engine.schedule import SampleSpec, ScheduledChunk, SchedulerOutput

_NO_LIMIT = 2**31 - 1  # more than any vocabulary
_CHEAPEST = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


def is_plain(spec: SampleSpec) -> bool:
    """Whether temperature, top-k, top-p and min-p are all that a row asks for."""
    params = spec.params
    return (
        not spec.num_candidates
        and not spec.banned_token_ids
        and params.grammar is None
        and params.logprobs is None
        and not params.logit_bias
        and params.repetition_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
    )


@dataclass(slots=True)
class Draws:
    """One token a row: of which row of logits, how, and with which random number."""

    rows: list[int] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    top_ks: list[int] = field(default_factory=list)
    top_ps: list[float] = field(default_factory=list)
    min_ps: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, row: int, params: SamplingParams, seed: int, position: int) -> None:
        """Draw a token from a row of logits."""
        self.rows.append(row)
        self.temperatures.append(params.temperature)
        self.top_ks.append(min(params.top_k, _NO_LIMIT))
        self.top_ps.append(params.top_p)
        self.min_ps.append(params.min_p)
        self.seeds.append(seed)
        self.positions.append(position)

    def add_unwanted(self, row: int) -> None:
        """Draw a token that nobody asked for, in the cheapest way, so that those after it are in place."""
        self.add(row, _CHEAPEST, 0, 0)


@dataclass(frozen=True, slots=True)
class Asked:
    """A chunk that asks for a sample, its row of the logits, and which draws are for it.

    None of them are if it is not plain.
    """

    chunk: ScheduledChunk
    row: int
    draws: range


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a step must answer with. ``logit_rows``: rows of the step that get logits; none: all do."""

    asked: Sequence[Asked]
    draws: Draws
    logit_rows: Sequence[int]


def of_rows_that_ask(plan: SchedulerOutput) -> Wanted:
    """With logits of no other rows, and with no draws but those that are wanted."""
    asked: list[Asked] = []
    draws = Draws()
    logit_rows: list[int] = []
    end = 0
    for chunk in plan.chunks:
        end += len(chunk.token_ids)
        spec = chunk.sample
        if spec is None:
            continue
        row, first = len(logit_rows), len(draws)
        for seed in spec.seeds if is_plain(spec) else ():
            draws.add(row, spec.params, seed, spec.position)
        asked.append(Asked(chunk, row, range(first, len(draws))))
        logit_rows.append(end - 1)
    return Wanted(asked, draws, logit_rows)


def of_every_row(plan: SchedulerOutput, num_seqs: int) -> Wanted | None:
    """With logits of all rows and a draw for each, up to ``num_seqs``, as a graph of decodes computes them.

    None if that would not do: some chunk has more rows than one, more draws, or wants to be scored.
    """
    asked: list[Asked] = []
    draws = Draws()
    for row, chunk in enumerate(plan.chunks):
        spec = chunk.sample
        if len(chunk.token_ids) != 1 or chunk.score is not None:
            return None
        if spec is None or not is_plain(spec):
            draws.add_unwanted(row)
            drawn = range(0)
        elif len(spec.seeds) == 1:
            draws.add(row, spec.params, spec.seeds[0], spec.position)
            drawn = range(row, row + 1)
        else:
            return None
        if spec is not None:
            asked.append(Asked(chunk, row, drawn))
    for row in range(len(plan.chunks), num_seqs):
        draws.add_unwanted(row)
    return Wanted(asked, draws, ())
