"""The engine's own scheduler and block manager over imagined tokens, to see what their blocks are used for.

No model, no clock: a step is a step. Prompts share nothing with each other and prefix caching is off, so all
sharing is between the sequences of one request. Answer lengths are forced. For beam searches the next
tokens' log probabilities are rows that a real model once gave, drawn at random. Beams of one search mostly
get the same row in a step, as beams with much the same text do: how mostly is the one number that was fitted,
to what beams of that model share (``docs/sharing.md``).
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from engine.messages import AddRequest, BeamParams, SamplingParams
from engine.schedule import Sample, SampledToken, SampleSpec, SchedulerOutput, StepOutput
from engine.scheduler import Scheduler, SchedulerConfig
from loadtest.lengths import Lengths
from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.policies.eviction import LruEviction
from tiering.tiers import Tiers
from tiering.types import BlockId

_LIKENESS = 0.93  # chance that a beam's next tokens are as likely as its siblings' in the same step
_STEP_TOKENS = 2560


@dataclass(frozen=True, slots=True)
class KvUse:
    """Of one moment: blocks that tables refer to, distinct ones of them, and tokens that these hold."""

    logical_blocks: int
    physical_blocks: int
    tokens: int

    @property
    def saving(self) -> float:
        """Share of the blocks that sharing saves."""
        return 1 - self.physical_blocks / self.logical_blocks


class SharingSimulation:
    """Requests of ``lengths``, in order, ``in_flight`` of them at a time, each with ``width`` sequences.

    ``use_beams`` makes them beams of one search, else they are samples.
    """

    def __init__(
        self,
        lengths: Sequence[Lengths],
        *,
        width: int,
        use_beams: bool,
        in_flight: int,
        block_size: int,
        seed: int = 0,
    ) -> None:
        self._lengths = lengths
        self._width = width
        self._use_beams = use_beams
        self._in_flight = in_flight
        self._block_size = block_size
        self._model = _NextTokens(seed)
        longest = max(-(-(pair.prompt + pair.output) // block_size) for pair in lengths)
        num_blocks = longest * width * (in_flight + 1)
        self._blocks = BlockManager(
            Tiers(BlockPool(num_blocks, LruEviction)), block_size, prefix_caching=False
        )
        config = SchedulerConfig(
            max_num_seqs=in_flight * width,
            max_num_batched_tokens=max(_STEP_TOKENS, in_flight * width),
            max_model_len=longest * block_size,
        )
        self._scheduler = Scheduler(config, self._blocks)
        self._num_added = 0

    def run(self, every: int = 4) -> Iterator[KvUse]:
        """Step until all requests are done; what memory was used for, at every ``every``-th step.

        Of the time between the first requests, which all begin at once, and the last ones.
        """
        num_steps = 0
        while self._top_up() or self._scheduler.has_work():
            plan = self._scheduler.schedule()
            self._scheduler.update(plan, self._execute(plan))
            num_steps += 1
            is_typical = 2 * self._in_flight <= self._num_added < len(self._lengths)
            if num_steps % every == 0 and is_typical:
                yield self._use()

    def _top_up(self) -> bool:
        """Add requests while there is room for them. False: there are no more."""
        while self._num_added < len(self._lengths) and len(self._scheduler.queues) < self._in_flight:
            pair = self._lengths[self._num_added]
            beam = BeamParams(self._width, early_stopping="never") if self._use_beams else None
            sampling = SamplingParams(
                max_tokens=pair.output, seed=0, ignore_eos=True, n=self._width, beam=beam
            )
            self._scheduler.add(
                AddRequest(
                    request_id=f"r{self._num_added}",
                    prompt_token_ids=(0,) * pair.prompt,
                    sampling=sampling,
                )
            )
            self._num_added += 1
        return self._num_added < len(self._lengths)

    def _execute(self, plan: SchedulerOutput) -> StepOutput:
        return StepOutput(
            tuple(
                Sample(chunk.sequence_id, self._model.answer(chunk.sequence_id, chunk.sample))
                for chunk in plan.chunks
                if chunk.sample is not None
            )
        )

    def _use(self) -> KvUse:
        filled: dict[BlockId, int] = {}
        logical = 0
        for group in self._scheduler.queues.running.values():
            for sequence in group.sequences:
                table = self._blocks.block_table(sequence.sequence_id)
                logical += len(table)
                for index, block in enumerate(table):
                    tokens = min(self._block_size, sequence.num_computed_tokens - index * self._block_size)
                    filled[block] = max(filled.get(block, 0), tokens)
        return KvUse(logical, len(filled), sum(filled.values()))


class _NextTokens:
    """Draws what a model might have said."""

    def __init__(self, seed: int) -> None:
        packed = resources.files("loadtest").joinpath("data", "next_tokens.csv.gz").read_bytes()
        lines = gzip.decompress(packed).decode().split()
        self._rows = [[float(value) for value in line.split(",")] for line in lines]
        self._random = random.Random(seed)
        self._step_rows: dict[str, tuple[int, list[float]]] = {}

    def answer(self, sequence_id: str, ask: SampleSpec) -> tuple[SampledToken, ...]:
        if not ask.num_candidates:
            return (SampledToken(0),) * len(ask.seeds)
        row = self._row_of_step(sequence_id.partition("#")[0], ask.position)
        if self._random.random() >= _LIKENESS:
            row = self._random.choice(self._rows)
        assert ask.num_candidates <= len(row)
        return tuple(
            SampledToken(rank, log_probability=value) for rank, value in enumerate(row[: ask.num_candidates])
        )

    def _row_of_step(self, request_id: str, position: int) -> list[float]:
        """The row that most beams of a search get in the step for this position."""
        known = self._step_rows.get(request_id)
        if known is None or known[0] != position:
            known = self._step_rows[request_id] = (position, self._random.choice(self._rows))
        return known[1]
