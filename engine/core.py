"""The spine: one engine step from queued requests to token deltas.

Runs on: step thread, sole owner of scheduler, block manager, transfers and executor. Blocks: only in
``Executor.execute``, the one host wait of a step. Copies are polled once a step and never waited for.
"""

from __future__ import annotations

import math
from collections import abc
from collections.abc import Callable

from engine import recount
from engine.grammar_room import Compiler, GrammarRoom, NoCompiler
from engine.messages import (
    AddRequest,
    FinishReason,
    ForgetKv,
    ForkRequest,
    KvReport,
    SamplingParams,
    SessionsReport,
    StepReport,
    TokenDelta,
)
from engine.request import SequenceGroup
from engine.schedule import Executor
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stats import EngineStats, KvCosts, SequenceKv, TierStats, TransferStats
from tiering import integrity
from tiering.block_manager import BlockManager
from tiering.block_pool import BlockPool
from tiering.transfers import TransferEngine
from tiering.types import Tier, TransferKind


def _no_new_blocks() -> int:
    return 0


def _nothing() -> None:
    pass


def _nothing_of(request_id: str) -> None:
    pass


class EngineCore:
    """Takes requests in, advances all of them step by step, and reports what came out.

    ``take_new_host_blocks`` says how many blocks the host tier has gained since it was last asked: its
    memory is taken in the background. ``release_memory`` closes what the tiers hold beside the movers.
    Without a ``compiler`` requests with grammars are refused; ``forget_grammar`` is told the id of each such
    request that is over.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        blocks: BlockManager,
        transfers: TransferEngine,
        executor: Executor,
        *,
        max_model_len: int,
        vocab_size: int,
        clock: Callable[[], float],
        take_new_host_blocks: Callable[[], int] = _no_new_blocks,
        release_memory: Callable[[], None] = _nothing,
        compiler: Compiler | None = None,
        forget_grammar: Callable[[str], None] = _nothing_of,
    ) -> None:
        self._scheduler = scheduler
        self._blocks = blocks
        self._transfers = transfers
        self._executor = executor
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._clock = clock
        self._take_new_host_blocks = take_new_host_blocks
        self._release_memory = release_memory
        self._has_compiler = compiler is not None
        self._grammars = GrammarRoom(compiler or NoCompiler(), forget_grammar)
        self._num_steps = 0
        self._num_stalls = 0
        self._is_stalled = False
        self._refused: list[TokenDelta] = []

    def add(self, message: AddRequest) -> None:
        """Queue a request; one that the engine cannot run is answered with an error in the next report."""
        error = self._why_refuse(message)
        if error is not None:
            self._refuse(message.request_id, error)
        elif (error := self._why_refuse_grammar(message.sampling)) is not None:
            self._refuse(message.request_id, error, is_invalid=True)
        elif self._grammars.admit(message):
            self._scheduler.add(message, self._clock())

    def fork(self, message: ForkRequest) -> None:
        """Start requests that go on from what another has so far."""
        history = self._scheduler.history(message.request_id, message.index, message.cache_salt)
        for branch in message.branches:
            if history is None:
                self._refuse(
                    branch.request_id,
                    f"There is no sequence {message.index} of request {message.request_id} to fork, or it"
                    " ended too long ago; send its tokens as a prompt.",
                )
                continue
            self.add(
                AddRequest(
                    request_id=branch.request_id,
                    prompt_token_ids=(*history, *branch.token_ids),
                    sampling=branch.sampling,
                    cache_salt=message.cache_salt,
                    tenant=message.tenant,
                    weight=message.weight,
                    priority=message.priority,
                )
            )

    def _refuse(self, request_id: str, error: str, *, is_invalid: bool = False) -> None:
        self._refused.append(
            TokenDelta(
                request_id,
                finish_reason=FinishReason.ERROR,
                error=error,
                ends_request=True,
                is_invalid=is_invalid,
            )
        )

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Drop a request, or one of its sequences; that the last one is gone is told in the next report."""
        was_there = self._has_request(request_id)
        self._grammars.abort(request_id, index)
        self._scheduler.abort(request_id, index)
        if was_there and not self._has_request(request_id):
            self._grammars.release(request_id)
            if index is not None:
                self._refused.append(TokenDelta(request_id, index=index, ends_request=True))

    def _has_request(self, request_id: str) -> bool:
        return request_id in self._grammars or self._scheduler.has_request(request_id)

    def pause(self, request_id: str) -> None:
        self._grammars.set_paused(request_id, paused=True)
        self._scheduler.pause(request_id, self._clock())

    def resume(self, request_id: str) -> None:
        self._grammars.set_paused(request_id, paused=False)
        self._scheduler.resume(request_id, self._clock())

    def forget_kv(self, message: ForgetKv) -> None:
        """Let nobody find these blocks; what is on disk goes with the next step."""
        self._scheduler.forget_kv(message)

    def can_step(self) -> bool:
        """Whether to step on at once. If not, wait for a command, a copy or a grammar, and then step."""
        is_busy = self._scheduler.has_work() and not self._is_stalled
        return is_busy or self._transfers.has_results or self._grammars.has_results

    @property
    def patience_s(self) -> float | None:
        """How long to wait before stepping even if nothing happens; None: as long as it takes."""
        return 1.0 if self._scheduler.has_work() else None

    def step(self) -> StepReport | None:
        """Advance what can be advanced: take in copies, schedule, order copies, execute, update.

        None if all that there is to do waits for copies, and there is nothing else to tell.
        """
        started = self._clock()
        self._blocks.tiers.set_time(started)
        self._take_in_grammars()
        self._take_in_copies()
        plan = self._scheduler.schedule(started)
        self._order_copies()
        scheduled = self._clock()
        self._is_stalled = not plan.chunks
        assert plan.chunks or not plan.copies, "copies would be lost"
        if self._is_stalled:
            self._num_stalls += self._scheduler.has_work()
            assert self._transfers.num_pending or not self._scheduler.has_work(), "nothing can go on"
            self._order_cleaning()
            return None if self._transfers.num_pending and not self._refused else self._report((), {})
        output = self._executor.execute(plan)
        executed = self._clock()
        if not plan.is_scoring:
            self._blocks.costs.observe_step(plan.num_tokens, plan.num_pairs, executed - scheduled)
        deltas = self._scheduler.update(plan, output)
        for delta in deltas:
            if delta.ends_request:
                self._grammars.release(delta.request_id)
        self._order_cleaning()
        self._num_steps += 1
        stage_seconds = {
            "schedule": scheduled - started,
            "execute": executed - scheduled,
            "update": self._clock() - executed,
        }
        return self._report(deltas, stage_seconds)

    def close(self, timeout_s: float) -> None:
        """Save to disk, if there is one, what only memory has, for at most ``timeout_s``; end the copies."""
        for request_id in self._scheduler.request_ids():
            self._scheduler.abort(request_id)
        deadline = self._clock() + timeout_s
        while self._blocks.tiers.disk is not None and (left := deadline - self._clock()) > 0:
            self._blocks.tiers.flush()
            self._order_copies()
            results = self._transfers.drain(left)
            if not results:
                break
            self._scheduler.complete(results)
        self._transfers.close()
        self._grammars.close()
        self._release_memory()

    def _take_in_grammars(self) -> None:
        """Queue the requests whose grammars are compiled. That counts as a step: nothing is stuck."""
        for settled in self._grammars.take_in():
            message = settled.waiting.message
            self._num_steps += 1
            if settled.error is not None:
                self._refuse(message.request_id, settled.error, is_invalid=True)
                continue
            self._scheduler.add(message, self._clock())
            for index in settled.waiting.unwanted:
                self._scheduler.abort(message.request_id, index)
            if settled.waiting.paused:
                self._scheduler.pause(message.request_id, self._clock())

    def _take_in_copies(self) -> None:
        if new_blocks := self._take_new_host_blocks():
            self._blocks.tiers.pool(Tier.HOST).extend(new_blocks)
        self._scheduler.complete(self._transfers.poll())
        self._scheduler.call_off_loads()
        self._order_copies()
        self._scheduler.complete(self._transfers.poll())
        for kind, seconds in self._transfers.take_observations():
            self._blocks.costs.observe_copy(kind, seconds)

    def _order_copies(self) -> None:
        orders = self._blocks.tiers.take_orders()
        if orders.erase:
            self._transfers.erase(orders.erase)
        if orders.submit:
            self._transfers.submit(orders.submit)
        if orders.cancel:
            self._transfers.cancel(orders.cancel)

    def _order_cleaning(self) -> None:
        self._blocks.tiers.clean_ahead()
        self._order_copies()

    def problems(self) -> tuple[str, ...]:
        """Recount requests and blocks from scratch."""
        scheduler = self._scheduler
        requests = recount.check(scheduler.queues, self._blocks, scheduler.sessions)
        grammars = self._grammars.problems(scheduler.has_request)
        return (*requests, *grammars, *integrity.check(self._blocks))

    def stats(self) -> EngineStats:
        totals = self._scheduler.totals
        return EngineStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting + len(self._grammars),
            num_swapped=self._scheduler.num_swapped,
            num_restoring=self._scheduler.num_restoring,
            num_paused=self._scheduler.num_paused + self._grammars.num_paused,
            stalls_total=self._num_stalls,
            blocks_in_use=sum(
                pool.usage().in_use + pool.usage().copying for _, pool in self._blocks.tiers.pools()
            ),
            prompt_tokens_total=totals.prompt_tokens,
            generated_tokens_total=totals.generated_tokens,
            recomputed_tokens_total=totals.recomputed_tokens,
            block_copies_total=totals.block_copies,
            restores_total=totals.num_restores,
            restore_s_total=totals.restore_s,
            restore_predicted_s_total=totals.restore_predicted_s,
            tiers={
                str(tier): _tier_stats(pool, totals.hit_tokens[tier])
                for tier, pool in self._blocks.tiers.pools()
            },
            transfers={
                str(kind): TransferStats(
                    t.num_done,
                    t.num_failed,
                    t.num_corrupt,
                    t.num_bytes,
                    t.copy_s,
                    t.queue_s,
                    t.cpu_s,
                    tuple(t.buckets),
                )
                for kind, t in self._transfers.totals.items()
            },
            preemptions=dict(totals.preemptions),
        )

    def describe_kv(self, check_id: int, limit: int) -> KvReport:
        """Where the blocks of each request are, for at most ``limit`` requests, first in line first."""
        groups = sorted(self._scheduler.queues, key=self._scheduler.queues.rank)
        sequences = tuple(
            self._describe(group, sequence) for group in groups[:limit] for sequence in group.sequences
        )
        return KvReport(check_id, len(groups), sequences, self.stats(), self._costs())

    def describe_sessions(self, check_id: int, sessions: abc.Sequence[str]) -> SessionsReport:
        """Where the blocks of these sessions are."""
        return SessionsReport(check_id, self._scheduler.describe_sessions(sessions))

    def report(self) -> StepReport:
        """Present figures, without a step."""
        return self._report((), {})

    def _report(self, deltas: tuple[TokenDelta, ...], stage_seconds: dict[str, float]) -> StepReport:
        refused, self._refused = tuple(self._refused), []
        return StepReport(
            step=self._num_steps, deltas=refused + deltas, stats=self.stats(), stage_seconds=stage_seconds
        )

    def _costs(self) -> KvCosts:
        costs = self._blocks.costs
        step_s, token_s, pair_s = costs.coefficients()
        block_s = {str(kind): costs.copy_s(kind, 1) or 0.0 for kind in TransferKind}
        bytes_per_s = {str(kind): costs.bandwidth(kind) or 0.0 for kind in TransferKind}
        return KvCosts(
            step_s=step_s, token_s=token_s, pair_s=pair_s, block_s=block_s, bytes_per_s=bytes_per_s
        )

    def _describe(self, group: SequenceGroup, sequence: Sequence) -> SequenceKv:
        return SequenceKv(
            request_id=group.request_id,
            index=sequence.index,
            status=group.status.value,
            priority=group.priority,
            num_tokens=sequence.num_tokens,
            num_computed_tokens=sequence.num_computed_tokens,
            num_preemptions=group.num_preemptions,
            paused=group.paused,
            blocks=self._blocks.places(sequence.sequence_id, sequence.num_computed_tokens),
        )

    def _why_refuse(self, message: AddRequest) -> str | None:
        prompt = message.prompt_token_ids
        if not prompt:
            return "The prompt has no tokens."
        sampling = message.sampling
        if len(prompt) + min(sampling.max_tokens, 1) > self._max_model_len:
            return f"The prompt has {len(prompt)} tokens; the window holds {self._max_model_len}."
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            return f"A prompt token id is outside the vocabulary of {self._vocab_size}."
        if sampling.max_tokens < (0 if sampling.beam is None else 1):
            return "max_tokens must not be negative, and at least 1 for a beam search."
        if not 1 <= sampling.n <= sampling.num_seqs:
            return "n must be at least 1, and at most the width of a beam search."
        if not (message.weight > 0 and math.isfinite(message.weight)):
            return "A tenant's weight must be a number above 0."
        if not _is_sound_future(message):
            return "keep_s and expected_return_s must be numbers of at least 0, and kv_quota from 0 to 1."
        if "#" in message.request_id:
            return "A request id must not contain '#'."
        if sampling.beam is not None and sampling.beam.width > self._vocab_size:
            return "A beam search cannot be wider than the vocabulary."
        if too_large := self._scheduler.why_too_large(message):
            return too_large
        if self._has_request(message.request_id):
            return f"Request id {message.request_id} is already in use."
        return None

    def _why_refuse_grammar(self, sampling: SamplingParams) -> str | None:
        if sampling.grammar is None:
            return None
        if not self._has_compiler:
            return "This engine follows no grammars."
        if sampling.beam is not None or sampling.ignore_eos:
            return "A grammar goes neither with a beam search nor with ignore_eos."
        return None


def _is_sound_future(message: AddRequest) -> bool:
    """Whether what a request says of its return, and of keeping its blocks, can be reckoned with."""
    seconds = [message.expected_return_s or 0.0, message.retention.keep_s if message.retention else 0.0]
    return all(0 <= value < math.inf for value in seconds) and 0 <= message.kv_quota <= 1


def _tier_stats(pool: BlockPool, hit_tokens: int) -> TierStats:
    usage = pool.usage()
    return TierStats(
        blocks_free=usage.free,
        blocks_cached=usage.cached,
        blocks_in_use=usage.in_use,
        blocks_copying=usage.copying,
        eviction=pool.eviction_name,
        evictions_total=pool.evictions_total,
        hit_tokens_total=hit_tokens,
        blocks_kept=pool.num_kept(),
    )
