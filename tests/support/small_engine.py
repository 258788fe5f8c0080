"""A whole engine core over the fake executor, for tests of scheduling and paging."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from engine.core import EngineCore
from engine.messages import AddRequest, FinishReason, SamplingParams, StepReport
from engine.scheduler import Scheduler, SchedulerConfig
from tests.support.fake_kv import VOCAB_SIZE, FakeKvExecutor
from tiering.block_manager import BlockManager
from tiering.policies.eviction import LruEviction


class SmallEngine:
    """Steps a core and keeps what each request received. Recounts everything after every step."""

    def __init__(
        self,
        *,
        num_blocks: int = 16,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 16,
        max_model_len: int | None = None,
        stop_token_ids: tuple[int, ...] = (),
        prefix_caching: bool = True,
    ) -> None:
        window = max_model_len or num_blocks * block_size
        self.blocks = BlockManager(num_blocks, block_size, LruEviction(), prefix_caching=prefix_caching)
        self.executor = FakeKvExecutor(num_blocks, block_size)
        config = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=window,
            stop_token_ids=stop_token_ids,
            cache_secret=b"secret",
        )
        self.scheduler = Scheduler(config, self.blocks)
        self.core = EngineCore(
            self.scheduler,
            self.blocks,
            self.executor,
            max_model_len=window,
            vocab_size=VOCAB_SIZE,
            clock=lambda: 0.0,
        )
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.finished: dict[str, FinishReason] = {}
        self.cached: dict[str, int] = {}
        self.errors: dict[str, str] = {}

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int = 8,
        salt: bytes = b"",
        **sampling: object,
    ) -> None:
        params = SamplingParams(max_tokens=max_tokens, seed=0, **sampling)  # type: ignore[arg-type]
        self.core.add(
            AddRequest(
                request_id=request_id, prompt_token_ids=tuple(prompt), sampling=params, cache_salt=salt
            )
        )

    def step(self) -> StepReport:
        report = self.core.step()
        self._collect(report)
        assert self.core.problems() == ()
        return report

    def _collect(self, report: StepReport) -> None:
        for delta in report.deltas:
            assert delta.request_id not in self.finished, "a delta after the last one"
            self.tokens[delta.request_id] += delta.token_ids
            self.cached[delta.request_id] = delta.num_cached_tokens
            if delta.finish_reason is not None:
                self.finished[delta.request_id] = delta.finish_reason
            if delta.error is not None:
                self.errors[delta.request_id] = delta.error

    def run(self, max_steps: int = 10_000) -> int:
        """Step until nothing can advance; returns the number of steps."""
        for count in range(max_steps):
            if not self.core.has_work():
                return count
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def assert_idle(self) -> None:
        assert self.blocks.usage().in_use == 0
        assert self.scheduler.request_ids() == ()
        assert self.core.problems() == ()
