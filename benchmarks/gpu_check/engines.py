"""A whole engine without a server around it: dummy weights, scheduler, runner; and how fast it generates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.scales import BLOCK_SIZE
from engine.core import EngineCore
from engine.messages import AddRequest, SamplingParams, StepReport
from engine.schedule import Executor
from engine.scheduler import Scheduler, SchedulerConfig
from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.cost_model import CostModel
from tiering.policies.registry import eviction_factory
from tiering.tiers import Tiers
from tiering.transfers import TransferEngine


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an engine: its seconds, and how many sequences got how many tokens in it."""

    seconds: float
    num_tokens: int


class Engine:
    """An engine core over ``executor`` whose KV stays on the device. Greedy; answers end at their length.

    ``transfers`` may have moves of its own to make in each step.
    """

    def __init__(
        self,
        context: Context,
        executor: Executor,
        num_blocks: int,
        max_num_seqs: int,
        step_tokens: int,
        window: int,
        transfers: TransferEngine | None = None,
    ) -> None:
        model = context.scale.model
        layout = context.scale.layout(context.dtype.itemsize)
        costs = CostModel(BLOCK_SIZE, layout.block_bytes, step_tokens)
        tiers = Tiers(BlockPool(num_blocks, eviction_factory("lru"), costs.block_s, below=None))
        blocks = BlockManager(tiers, BLOCK_SIZE, costs=costs)
        config = SchedulerConfig(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=step_tokens, max_model_len=window
        )
        self.core = EngineCore(
            Scheduler(config, blocks),
            blocks,
            transfers or TransferEngine({}, layout.block_bytes, time.perf_counter),
            executor,
            max_model_len=window,
            vocab_size=model.vocab_size,
            clock=time.perf_counter,
        )
        self._num_requests = 0

    def begin(self, prompts: Sequence[Sequence[int]], output_len: int) -> None:
        """Take in one request a prompt."""
        params = SamplingParams(max_tokens=output_len, seed=0, temperature=0.0, ignore_eos=True)
        for prompt in prompts:
            self._num_requests += 1
            name = f"r{self._num_requests}"
            self.core.add(AddRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=params))

    def step(self) -> Step:
        """Raises RuntimeError for a request that ended in an error."""
        started = time.perf_counter()
        report = self.core.step()
        return Step(time.perf_counter() - started, _num_tokens(report))

    @property
    def has_work(self) -> bool:
        return self.core.can_step()

    def finish(self) -> list[Step]:
        """Step until all requests have ended."""
        steps = []
        while self.has_work:
            steps.append(self.step())
        return steps


def _num_tokens(report: StepReport | None) -> int:
    assert report is not None, "nothing waits for copies here"
    for delta in report.deltas:
        if delta.error is not None:
            raise RuntimeError(delta.error)
    return sum(len(delta.token_ids) for delta in report.deltas)
