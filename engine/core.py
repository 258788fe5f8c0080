"""The spine: one engine step from queued requests to token deltas.

Runs on: step thread, sole owner of scheduler, block manager and executor. Blocks: only in
``Executor.execute``, the one host wait of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.messages import AddRequest, EngineStats, FinishReason, StepReport, TokenDelta
from engine.schedule import SchedulerOutput, StepOutput
from engine.scheduler import Scheduler
from tiering import integrity
from tiering.block_manager import BlockManager


class Executor(Protocol):
    """Carries out a step: one forward and sampling."""

    def execute(self, plan: SchedulerOutput) -> StepOutput: ...


class EngineCore:
    """Takes requests in, advances all of them step by step, and reports what came out."""

    def __init__(
        self,
        scheduler: Scheduler,
        blocks: BlockManager,
        executor: Executor,
        *,
        max_model_len: int,
        vocab_size: int,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._blocks = blocks
        self._executor = executor
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._clock = clock
        self._num_steps = 0
        self._refused: list[TokenDelta] = []

    def add(self, message: AddRequest) -> None:
        """Queue a request; one that the engine cannot run is answered with an error in the next report."""
        error = self._why_refuse(message)
        if error is None:
            self._scheduler.add(message)
        else:
            self._refused.append(
                TokenDelta(message.request_id, finish_reason=FinishReason.ERROR, error=error)
            )

    def abort(self, request_id: str) -> None:
        self._scheduler.abort(request_id)

    def pause(self, request_id: str) -> None:
        self._scheduler.pause(request_id)

    def resume(self, request_id: str) -> None:
        self._scheduler.resume(request_id)

    def has_work(self) -> bool:
        """Whether ``step`` would advance anything."""
        return self._scheduler.has_work()

    def step(self) -> StepReport:
        """Advance what can be advanced: schedule, execute, update. Call it only if ``has_work``."""
        started = self._clock()
        plan = self._scheduler.schedule()
        assert plan.chunks, "work is pending, but nothing was scheduled"
        scheduled = self._clock()
        output = self._executor.execute(plan)
        executed = self._clock()
        deltas = self._scheduler.update(plan, output)
        self._num_steps += 1
        stage_seconds = {
            "schedule": scheduled - started,
            "execute": executed - scheduled,
            "update": self._clock() - executed,
        }
        return self._report(deltas, stage_seconds)

    def report_idle(self) -> StepReport:
        """Present figures, and refusals, when there is nothing to step."""
        return self._report((), {})

    def problems(self) -> tuple[str, ...]:
        """Recount requests and blocks from scratch."""
        return (*self._scheduler.problems(), *integrity.check(self._blocks))

    def stats(self) -> EngineStats:
        usage, totals = self._blocks.usage(), self._scheduler.totals
        return EngineStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            num_paused=self._scheduler.num_paused,
            blocks_free=usage.free,
            blocks_cached=usage.cached,
            blocks_in_use=usage.in_use,
            prompt_tokens_total=totals.prompt_tokens,
            generated_tokens_total=totals.generated_tokens,
            hit_tokens_total=totals.hit_tokens,
            recomputed_tokens_total=totals.recomputed_tokens,
            preemptions_total=totals.preemptions,
            evictions_total=self._blocks.pool.evictions_total,
        )

    def _report(self, deltas: tuple[TokenDelta, ...], stage_seconds: dict[str, float]) -> StepReport:
        refused, self._refused = tuple(self._refused), []
        return StepReport(
            step=self._num_steps, deltas=refused + deltas, stats=self.stats(), stage_seconds=stage_seconds
        )

    def _why_refuse(self, message: AddRequest) -> str | None:
        prompt = message.prompt_token_ids
        if not prompt:
            return "The prompt has no tokens."
        if len(prompt) >= self._max_model_len:
            return f"The prompt has {len(prompt)} tokens; the window holds {self._max_model_len}."
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            return f"A prompt token id is outside the vocabulary of {self._vocab_size}."
        if message.sampling.max_tokens < 1:
            return "max_tokens must be at least 1."
        if self._scheduler.has_request(message.request_id):
            return f"Request id {message.request_id} is already in use."
        return None
