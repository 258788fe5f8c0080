"""An engine core without a model, in a state that lasts: so many requests decode, so many wait behind them.

All prompts are one text, so that they take its blocks once; the answers differ. Nothing ends by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine.core import EngineCore
from engine.grammar_room import Compiler
from engine.messages import AddRequest, Grammar, SamplingParams
from engine.schedule import Sample, SampledToken, SchedulerOutput, StepOutput
from engine.scheduler import Scheduler, SchedulerConfig
from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.movers.base import FakeMover, Mischief
from tiering.policies.eviction import LruEviction
from tiering.tiers import Tiers
from tiering.transfers import TransferEngine
from tiering.types import TransferJob, TransferKind, TransferOutcome

BLOCK_SIZE = 16
STEP_TOKENS = 16_384
TO_COME = 1024  # tokens that a request may yet generate


class _Executor:
    """Says a sequence's place in the step for its next token, so that no two texts are the same."""

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        return StepOutput(
            tuple(
                Sample(chunk.sequence_id, (SampledToken(place),) * len(chunk.sample.seeds))
                for place, chunk in enumerate(plan.chunks)
                if chunk.sample is not None
            )
        )


class StandingCore:
    """A core in which ``num_places`` sequences of ``context`` tokens may run at once.

    ``host_blocks`` of 0 leaves the host tier out.
    """

    def __init__(
        self,
        num_places: int,
        context: int,
        *,
        host_blocks: int = 0,
        compiler: Compiler | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        window = context + TO_COME
        num_blocks = -(-window // BLOCK_SIZE) + num_places * (TO_COME // BLOCK_SIZE + 2)
        device = BlockPool(num_blocks, LruEviction)
        host = BlockPool(host_blocks, LruEviction, below=None) if host_blocks else None
        self.blocks = BlockManager(Tiers(device, host), BLOCK_SIZE)
        config = SchedulerConfig(num_places, STEP_TOKENS, max_model_len=window)
        self.scheduler = Scheduler(config, self.blocks)
        mover = FakeMover(_copied, Mischief())
        self.core = EngineCore(
            self.scheduler,
            self.blocks,
            TransferEngine(dict.fromkeys((TransferKind.SWAP_OUT, TransferKind.SWAP_IN), mover), 1, clock),
            _Executor(),
            max_model_len=window,
            vocab_size=2**31,
            clock=clock,
            compiler=compiler,
        )
        self._prompt = tuple(range(context))
        self._num_requests = 0

    def add(
        self,
        count: int,
        *,
        tenants: Sequence[str] = ("",),
        priorities: Sequence[int] = (0,),
        num_answers: int = 1,
        num_tokens: int | None = None,
        grammar: Grammar | None = None,
    ) -> list[str]:
        """Add so many requests, of these tenants and classes in turn; returns their ids.

        Their prompts have ``num_tokens``, or as many as the context.
        """
        prompt = self._prompt[:num_tokens]
        added = []
        for number in range(self._num_requests, self._num_requests + count):
            sampling = SamplingParams(max_tokens=TO_COME, seed=0, n=num_answers, grammar=grammar)
            self.core.add(
                AddRequest(
                    request_id=f"request-{number}",
                    prompt_token_ids=prompt,
                    sampling=sampling,
                    tenant=tenants[number % len(tenants)],
                    priority=priorities[number % len(priorities)],
                )
            )
            added.append(f"request-{number}")
        self._num_requests += count
        return added

    def run(self, count: int, *, num_answers: int = 1) -> list[str]:
        """Add requests and compute their prompts, the first alone: from then on they decode."""
        first = self.add(1, num_answers=num_answers)
        self._compute_prompts()
        others = self.add(count - 1, num_answers=num_answers)
        self._compute_prompts()
        return first + others

    def _compute_prompts(self) -> None:
        self.core.step()
        while any(not group.is_decoding for group in self.scheduler.queues.running.values()):
            self.core.step()


def _copied(job: TransferJob) -> TransferOutcome:
    return TransferOutcome.DONE
