"""A whole engine core with scripted movers, for tests of scheduling, paging and tiers.

The executor is the fake one, or a real model's (``tests/support/real_backend.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Protocol

from engine.core import EngineCore
from engine.grammar_room import Compiler
from engine.messages import (
    AddRequest,
    FinishReason,
    ForgetKv,
    PromptLogprobs,
    Retention,
    SamplingParams,
    StepReport,
)
from engine.schedule import Executor, SchedulerOutput, StepOutput
from engine.scheduler import Scheduler, SchedulerConfig
from tests.support.fake_kv import VOCAB_SIZE, FakeKvExecutor, FakeMemory
from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.intake import Intake
from tiering.movers.base import FakeMover, Mischief
from tiering.policies.registry import eviction_factory, restore_factory, write_factory
from tiering.refusals import LastRefusal, Question
from tiering.tables import Admission, Member, Refusal
from tiering.tiers import Tiers
from tiering.transfers import Mover, TransferEngine
from tiering.types import BlockId, BlockLabel, BlockState, Tier, TransferJob, TransferKind, TransferOutcome


class Backend(Protocol):
    """What computes, and the memory of all tiers; ``copy``, ``erase`` and ``spoil`` are done to it."""

    @property
    def executor(self) -> Executor: ...

    @property
    def vocab_size(self) -> int: ...

    def copy(self, job: TransferJob) -> TransferOutcome: ...

    def erase(self, blocks: Iterable[BlockId]) -> None: ...

    def spoil(self, job: TransferJob) -> None: ...


class FakeBackend(FakeMemory):
    """The fake executor over fake memory."""

    vocab_size = VOCAB_SIZE

    def __init__(self, block_size: int, num_blocks: dict[Tier, int]) -> None:
        super().__init__(block_size, num_blocks)
        self.executor = FakeKvExecutor(self)


class _Watched:
    """An executor, and what no plan may ask of it: to write where others read, or a copy reads or writes."""

    def __init__(self, executor: Executor, tiers: Tiers, block_size: int) -> None:
        self._executor = executor
        self._device = tiers.device
        self._block_size = block_size

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        self._check_copies(plan)
        for chunk in plan.chunks:
            stop = chunk.start + len(chunk.token_ids)
            for index in range(chunk.start // self._block_size, -(-stop // self._block_size)):
                block = BlockId(chunk.block_table[index])
                assert self._device.ref_count(block) == 1, "a block is written that others refer to"
                assert self._device.label_of(block) is None, "a named block is written"
                assert self._device.state(block) is BlockState.FILLING, "a block under a copy is written"
            for index in range(chunk.start // self._block_size):
                block = BlockId(chunk.block_table[index])
                assert not self._device.is_being_filled(block), "a block is read that has not arrived"
        return self._executor.execute(plan)

    def _check_copies(self, plan: SchedulerOutput) -> None:
        sources = {copy.source for copy in plan.copies}
        for copy in plan.copies:
            assert copy.target not in sources, "a copy reads what another writes"
            assert not self._device.is_being_filled(copy.source), "a block is copied that has not arrived"
            assert self._device.ref_count(copy.target) == 1
            assert self._device.state(copy.target) is BlockState.FILLING
            assert self._device.label_of(copy.target) is None


class _Doubted(LastRefusal):
    """Answers that nothing is remembered, but keeps what it would have said, and for as long."""

    has_held = False

    def holds(self, question: Question) -> bool:
        self.has_held = super().holds(question)
        return False

    def note(self, question: Question, intake: Intake, num_missing: int) -> None:
        if not self.has_held:
            super().note(question, intake, num_missing)


class _CheckedManager(BlockManager):
    """Looks for room whenever it is asked, and sees to it that what is remembered says the same."""

    def try_admit(
        self, members: Sequence[Member], *, keep_available: int, may_load: bool = True
    ) -> Admission | Refusal:
        doubted = self._last_refusal
        if not isinstance(doubted, _Doubted):
            doubted = self._last_refusal = _Doubted(self.tiers, self._planner, self.block_size)
        doubted.has_held = False
        answer = super().try_admit(members, keep_available=keep_available, may_load=may_load)
        assert not doubted.has_held or answer is Refusal.NO_ROOM, "there was room for who was refused"
        return answer


class SmallEngine:
    """Steps a core and keeps what each request received; ``tokens`` are those of sequence 0 of each.

    Recounts everything after every step.

    ``host_blocks`` and ``disk_blocks`` of 0 leave those tiers out. ``link`` moves between device and host
    instead of a scripted mover. The clock is the number of the step.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 16,
        block_size: int = 4,
        host_blocks: int = 0,
        disk_blocks: int = 0,
        eviction: str = "lru",
        write: str = "back",
        restore: str = "swap",
        mischief: Mischief | None = None,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 16,
        max_model_len: int | None = None,
        stop_token_ids: tuple[int, ...] = (),
        prefix_caching: bool = True,
        quantum_steps: float = 2.0,
        backend: Backend | None = None,
        link: Mover | None = None,
        compiler: Compiler | None = None,
        forget_grammar: Callable[[str], None] = lambda _: None,
    ) -> None:
        window = max_model_len or num_blocks * block_size
        counts = {Tier.DEVICE: num_blocks, Tier.HOST: host_blocks, Tier.DISK: disk_blocks}
        present = [tier for tier in counts if counts[tier]]
        pools = {
            tier: BlockPool(counts[tier], eviction_factory(eviction), below=below)
            for tier, below in zip_longest(present, present[1:])
        }
        writes = {
            tier: write_factory(write)()
            for tier, below in ((Tier.DEVICE, Tier.HOST), (Tier.HOST, Tier.DISK))
            if below in pools
        }
        self.tiers = Tiers(pools[Tier.DEVICE], pools.get(Tier.HOST), pools.get(Tier.DISK), writes)
        self.blocks = _CheckedManager(
            self.tiers, block_size, restore=restore_factory(restore)(), prefix_caching=prefix_caching
        )
        self.backend = backend or FakeBackend(block_size, counts)
        mischief = mischief or Mischief()
        self.link = FakeMover(self.backend.copy, mischief, self.backend.spoil)
        other = replace(mischief, seed=mischief.seed + 1)
        self.disk = FakeMover(self.backend.copy, other, self.backend.spoil)
        config = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=window,
            stop_token_ids=stop_token_ids,
            cache_secret=b"secret",
            quantum_steps=quantum_steps,
        )
        self.scheduler = Scheduler(config, self.blocks)
        self._num_steps = 0
        self.transfers = TransferEngine(
            {
                TransferKind.SWAP_OUT: link or self.link,
                TransferKind.SWAP_IN: link or self.link,
                TransferKind.DEMOTE: self.disk,
                TransferKind.PROMOTE: self.disk,
            },
            block_bytes=1,
            clock=self._clock,
            erase=self.backend.erase,
            max_store_bytes=8,
        )
        self.core = EngineCore(
            self.scheduler,
            self.blocks,
            self.transfers,
            _Watched(self.backend.executor, self.tiers, block_size),
            max_model_len=window,
            vocab_size=self.backend.vocab_size,
            clock=self._clock,
            compiler=compiler,
            forget_grammar=forget_grammar,
        )
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.samples: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.ended: dict[tuple[str, int], FinishReason] = {}
        self.scores: dict[tuple[str, int], float] = {}
        self.prompt_logprobs: dict[str, PromptLogprobs] = {}
        self.finished: dict[str, FinishReason] = {}
        self.cached: dict[str, int] = {}
        self.errors: dict[str, str] = {}

    def _clock(self) -> float:
        return float(self._num_steps)

    @property
    def memory(self) -> FakeBackend:
        assert isinstance(self.backend, FakeBackend)
        return self.backend

    @property
    def executor(self) -> FakeKvExecutor:
        return self.memory.executor

    def find_on_disk(self, earlier: SmallEngine) -> None:
        """Begin with what ``earlier`` has on disk, as a server does that is started again."""
        assert self.tiers.disk is not None
        labels: dict[BlockId, BlockLabel] = {}
        for slot, label in earlier.memory.disk_table.items():
            labels[BlockId(slot)] = label
            self.memory.disk_table[slot] = label
            self.memory.disk_names[slot] = label.name
            self.memory.slots[Tier.DISK][slot][:] = earlier.memory.slots[Tier.DISK][slot]
        assert len(labels) == len({label.name for label in labels.values()}), "a block is on disk twice"
        self.tiers.disk.adopt(labels)

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int = 8,
        salt: bytes = b"",
        priority: int = 0,
        expected_return_s: float | None = None,
        tenant: str = "",
        weight: float = 1.0,
        session: str = "",
        retention: Retention | None = None,
        kv_quota: float = 0.5,
        **sampling: object,
    ) -> None:
        params = SamplingParams(max_tokens=max_tokens, **{"seed": 0, **sampling})  # type: ignore[arg-type]
        self.core.add(
            AddRequest(
                request_id=request_id,
                prompt_token_ids=tuple(prompt),
                sampling=params,
                cache_salt=salt,
                tenant=tenant,
                weight=weight,
                priority=priority,
                expected_return_s=expected_return_s,
                session=session,
                retention=retention,
                kv_quota=kv_quota,
            )
        )

    def forget(self, tokens: Sequence[int], from_token: int = 0, salt: bytes = b"") -> None:
        self.core.forget_kv(ForgetKv(token_ids=tuple(tokens), from_token=from_token, cache_salt=salt))

    def cells(self, session: str) -> str:
        """Where the blocks of a session are."""
        (found,) = self.core.describe_sessions(0, [session]).sessions
        assert found.session == session
        return found.cells

    def step(self) -> StepReport | None:
        self._num_steps += 1
        report = self.core.step()
        if report is not None:
            self._collect(report)
        assert self.core.problems() == ()
        self._check_disk()
        return report

    def _check_disk(self) -> None:
        """A restart would find no more than the engine itself does."""
        pool = self.tiers.disk
        for slot, label in self.memory.disk_table.items() if isinstance(self.backend, FakeBackend) else ():
            assert pool is not None
            block = BlockId(slot)
            assert pool.is_being_filled(block) or pool.label_of(block) == label, "a name is left on disk"

    def _collect(self, report: StepReport) -> None:
        for delta in report.deltas:
            name, key = delta.request_id, (delta.request_id, delta.index)
            assert name not in self.finished and key not in self.ended, "a delta after the last one"
            if delta.prompt_logprobs is not None:
                assert name not in self.prompt_logprobs, "log probabilities of the prompt are told once"
                assert not self.tokens[name] and not any(self.samples[name].values()), "too late"
                self.prompt_logprobs[name] = delta.prompt_logprobs
            (self.samples[name][delta.index] if delta.index else self.tokens[name]).extend(delta.token_ids)
            self.cached[name] = delta.num_cached_tokens
            if delta.finish_reason is not None:
                self.ended[key] = delta.finish_reason
            if delta.score is not None:
                self.scores[key] = delta.score
            if delta.ends_request and delta.finish_reason is not None:  # else the last was aborted
                self.finished[name] = delta.finish_reason
            if delta.error is not None:
                self.errors[name] = delta.error

    def sample(self, request_id: str, index: int) -> list[int]:
        """Tokens that one sequence of a request has received."""
        return self.samples[request_id][index] if index else self.tokens[request_id]

    def run(self, max_steps: int = 10_000) -> int:
        """Step until nothing can advance and no copy is under way; returns the number of steps."""
        for count in range(max_steps):
            if not self.scheduler.has_work() and not self.transfers.num_pending:
                return count
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def assert_idle(self) -> None:
        assert self.core.stats().blocks_in_use == 0
        assert self.scheduler.request_ids() == ()
        assert self.core.problems() == ()
