"""Continuous batching, first come first served: which tokens of which requests the next step computes.

Runs on: step thread, sole owner. Blocks: never; no torch, no clock. ``schedule`` decides and returns
a value, someone else carries it out, ``update`` advances the state. The stages of ``schedule`` share
one budget: running decodes, prefills (those of restoring requests too), then the parked and the waiting.

Progress: a request is preempted only for one before it in line, or because its client does not read, and
is admitted only with room for all its known tokens. After ``MAX_PREEMPTIONS`` for others it comes back
with blocks for its whole length, and then loses them only if its client does not read. A paused
request takes no place in a step; the blocks it holds are the first to go. Nobody waits for a copy: who
needs blocks that are being copied out, or KV that is being copied in, sits out the step; who
waits for a disk that hangs computes instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.accounting import SchedulerTotals, count_admission, count_restore
from engine.budget import StepBudget
from engine.messages import AddRequest, FinishReason, TokenDelta
from engine.queues import RequestQueues
from engine.request import Request, RequestEvent, RequestStatus
from engine.schedule import SampledToken, SampleSpec, ScheduledChunk, SchedulerOutput, StepOutput
from tiering.block_manager import BlockManager
from tiering.hashing import BlockNamer, derive_salt
from tiering.tables import Admission, Refusal, SequenceEvent
from tiering.types import BlockHash, TransferResult

MAX_PREEMPTIONS = 4


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of a sequence. ``stop_token_ids`` are those of the model.

    ``cache_secret`` and ``fingerprint`` (of all that KV depends on beside tokens) go into every block name.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    stop_token_ids: tuple[int, ...] = ()
    cache_secret: bytes = b""
    fingerprint: bytes = b""
    watermark: float = 0.01


class Scheduler:
    """Owns every request from ``add`` until it finishes."""

    def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
        assert config.max_num_batched_tokens >= config.max_num_seqs
        assert blocks.num_blocks >= blocks.blocks_for(config.max_model_len)
        self.totals = SchedulerTotals()
        self.queues = RequestQueues()
        self._config = config
        self._blocks = blocks
        self._watermark = max(1, int(config.watermark * blocks.num_blocks))
        self._stop_token_ids = frozenset(config.stop_token_ids)
        self._num_paused = 0
        self._num_arrivals = 0
        self._now = 0.0

    # ---- what the outside asks for -------------------------------------------------------------

    def add(self, message: AddRequest) -> None:
        """Queue a request. The message must have passed ``EngineCore``'s checks."""
        salt = derive_salt(self._config.cache_secret, self._config.fingerprint, message.cache_salt)
        request = Request(
            message,
            arrival_index=self._num_arrivals,
            namer=BlockNamer(salt, self._blocks.block_size),
            max_len=self._config.max_model_len,
        )
        self._num_arrivals += 1
        self.queues.add(request)

    def abort(self, request_id: str) -> None:
        """Forget a request in whatever state it is. Unknown and finished ids are ignored."""
        request = self.queues.get(request_id)
        if request is not None:
            self._finish(request)

    def pause(self, request_id: str) -> None:
        """Compute nothing for this request until ``resume``."""
        self._set_paused(request_id, True)

    def resume(self, request_id: str) -> None:
        self._set_paused(request_id, False)

    def has_work(self) -> bool:
        """Whether there is a request whose client reads."""
        return len(self.queues) > self._num_paused

    def has_request(self, request_id: str) -> bool:
        return self.queues.get(request_id) is not None

    def request_ids(self) -> tuple[str, ...]:
        return tuple(request.request_id for request in self.queues)

    @property
    def num_running(self) -> int:
        return len(self.queues.running)

    @property
    def num_waiting(self) -> int:
        """Requests that hold no KV of their own on the device, nor on its way there."""
        return len(self.queues.parked) + self.queues.num_waiting

    @property
    def num_restoring(self) -> int:
        return len(self.queues.restoring)

    @property
    def num_swapped(self) -> int:
        return len(self._blocks.parked_tables())

    @property
    def num_paused(self) -> int:
        return self._num_paused

    # ---- decide --------------------------------------------------------------------------------

    def schedule(self, now: float = 0.0) -> SchedulerOutput:
        """Choose the next step's chunks, decodes first. ``now``: seconds on any clock that only grows.

        Nothing is chosen although there is work only while copies are under way that it waits for.
        """
        self._now = now
        self._blocks.tiers.set_time(now)
        self._end_restores()
        self._lose_patience()
        budget = StepBudget(self._config.max_num_batched_tokens, self._config.max_num_seqs)
        chunks: list[ScheduledChunk] = []
        in_line = self.queues.by_order()
        self._schedule_decodes(in_line, budget, chunks)
        self._schedule_prefills(in_line, budget, chunks)
        self._admit(budget, chunks)
        return SchedulerOutput(chunks=tuple(chunks))

    def call_off_loads(self) -> None:
        """Stop loads that the next step had better compute. What was stopped is then to be completed."""
        for request in self.queues.restoring.values():
            if not request.paused and request.status is RequestStatus.RESTORING:
                self._blocks.call_off_loads(
                    request.request_id, request.num_computed_tokens, self._config.max_num_batched_tokens
                )

    def _schedule_decodes(
        self, in_line: Sequence[Request], budget: StepBudget, chunks: list[ScheduledChunk]
    ) -> None:
        """One token each, in line: so a victim, which stands behind, has no chunk yet."""
        for request in in_line:
            if budget.exhausted:
                return
            if request.num_uncomputed_tokens > 1 or request.status is not RequestStatus.RUNNING:
                continue
            if self._make_room(request):
                chunks.append(self._next_chunk(request, budget, request.num_tokens))

    def _schedule_prefills(
        self, in_line: Sequence[Request], budget: StepBudget, chunks: list[ScheduledChunk]
    ) -> None:
        """The next chunk of each prompt that is partly computed; what was just preempted has none."""
        for request in in_line:
            if budget.exhausted:
                return
            if request.status is RequestStatus.RUNNING and request.num_uncomputed_tokens > 1:
                chunks.append(self._next_chunk(request, budget, request.num_tokens))
            elif request.status is RequestStatus.RESTORING:
                self._schedule_front(request, budget, chunks)

    def _schedule_front(self, request: Request, budget: StepBudget, chunks: list[ScheduledChunk]) -> None:
        """Compute a restoring request up to where its loads begin."""
        limit = self._blocks.compute_limit(request.request_id, request.num_computed_tokens)
        if limit > request.num_computed_tokens:
            chunks.append(self._next_chunk(request, budget, limit))

    def _admit(self, budget: StepBudget, chunks: list[ScheduledChunk]) -> None:
        for request in self.queues.candidates(self._config.max_num_seqs):
            if budget.exhausted or self._num_active() >= self._config.max_num_seqs:
                return
            if request.status is RequestStatus.SWAPPING_OUT:
                return  # it was preempted just now: nobody behind it gets the room it gave up
            refusal = self._try_admit(request)
            if refusal is Refusal.NO_ROOM:
                return
            if request.status is RequestStatus.RUNNING:
                chunks.append(self._next_chunk(request, budget, request.num_tokens))

    def _num_active(self) -> int:
        """Requests that may take part in a step; who only waits for loads keeps no place from others."""
        held = (*self.queues.running.values(), *self.queues.restoring.values())
        return sum(not r.paused and r.status is not RequestStatus.SWAPPING_IN for r in held)

    def _next_chunk(self, request: Request, budget: StepBudget, limit: int) -> ScheduledChunk:
        start = request.num_computed_tokens
        stop = start + budget.take(limit - start)
        return ScheduledChunk(
            request_id=request.request_id,
            token_ids=request.token_slice(start, stop),
            start=start,
            block_table=self._blocks.block_table(request.request_id),
            sample=self._sample_spec(request) if stop == request.num_tokens else None,
        )

    def _sample_spec(self, request: Request) -> SampleSpec:
        return SampleSpec(
            params=request.sampling,
            position=request.num_tokens,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=request.output_token_ids,
            banned_token_ids=request.banned_token_ids(self._config.stop_token_ids),
        )

    # ---- room ----------------------------------------------------------------------------------

    def _make_room(self, request: Request) -> bool:
        """Extend a running request by one token, preempting those behind it.

        False: it sits out the step, as blocks are on their way out, or it gave way itself.
        """
        while not self._blocks.try_grow(request.request_id, request.num_tokens):
            if self._blocks.num_leaving():
                return False
            victim = self.queues.victim_for(request, self._may_be_preempted)
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def _has_whole_length(self, request: Request) -> bool:
        return request.num_given_way >= MAX_PREEMPTIONS

    def _may_be_preempted(self, request: Request) -> bool:
        return not self._has_whole_length(request)

    def preempt(self, request: Request) -> None:
        """Take a running or restoring request's device blocks, by swapping it out if that is worth while."""
        request.num_preemptions += 1
        request.num_given_way += not request.paused
        event = self._begin_swap_out(request)
        self.totals.count_preemption("swap" if event else "recompute", slow_reader=request.paused)
        if event is None:
            self._lose_blocks(request)
            return
        request.move(event)
        self.queues.park(request)
        if event is RequestEvent.SWAP_OUT and self._blocks.swap_out_done(request.request_id):
            request.move(RequestEvent.SWAPPED)

    def _begin_swap_out(self, request: Request) -> RequestEvent | None:
        """What keeps the request's KV: copies to host, or those it is being restored from. None: nothing."""
        if request.status is not RequestStatus.RUNNING:
            restore = self._blocks.restore_of(request.request_id)
            request.num_known_tokens = max(request.num_known_tokens, restore.num_tokens)
            return RequestEvent.GO_BACK if self._blocks.abandon_restore(request.request_id) else None
        request.num_known_tokens = request.num_computed_tokens
        if not self._blocks.try_begin_swap_out(request.request_id, request.num_computed_tokens):
            return None
        request.may_load = True
        return RequestEvent.SWAP_OUT

    def _lose_blocks(self, request: Request) -> None:
        """Its tokens are all it keeps."""
        self._blocks.release(request.request_id)
        request.move(RequestEvent.PREEMPT)
        request.num_computed_tokens = 0
        self.queues.park(request)

    def _try_admit(self, request: Request) -> Refusal | None:
        """Give a queued request its blocks, taking them from slow readers if that is what it takes."""
        whole = self._has_whole_length(request)
        names = self._names(request, request.num_tokens)
        while True:
            admission = self._blocks.try_admit(
                request.request_id,
                names,
                num_tokens=request.num_tokens,
                capacity_tokens=request.max_total_tokens if whole else request.num_tokens,
                keep_available=self._headroom(request),
                may_load=request.may_load,
            )
            if isinstance(admission, Admission):
                self._start(request, admission)
                return None
            if admission is Refusal.PENDING:
                if not self._blocks.tiers.anything_hangs():
                    return admission
                request.may_load = False
                continue
            slow_reader = self.queues.last_paused()
            if slow_reader is None or self._blocks.num_leaving():
                return admission
            self.preempt(slow_reader)

    def _headroom(self, request: Request) -> int:
        """Blocks to leave for those that run: none if alone; one each after a preemption."""
        num_held = len(self.queues.running) + len(self.queues.restoring)
        if not num_held:
            return 0
        return max(self._watermark, num_held) if request.num_preemptions else self._watermark

    def _start(self, request: Request, admission: Admission) -> None:
        request.num_computed_tokens = admission.num_cached_tokens
        if not admission.restoring:
            request.move(RequestEvent.ADMIT)
            self.queues.run(request)
            count_admission(self.totals, request, admission)
            return
        request.move(RequestEvent.OVERLAP if admission.overlaps else RequestEvent.LOAD)
        self.queues.restore(request)

    # ---- moves that ended ----------------------------------------------------------------------

    def complete(self, results: Iterable[TransferResult]) -> None:
        """Take in how copies ended: who is swapped out now, and who lost what a copy failed to bring."""
        for request_id, event in self._blocks.complete(results):
            request = self.queues.get(request_id)
            assert request is not None
            if event is SequenceEvent.SWAPPED_OUT:
                request.move(RequestEvent.SWAPPED)
                continue
            request.may_load = event is not SequenceEvent.RESTORE_FAILED and request.may_load
            self._lose_blocks(request)

    def _end_restores(self) -> None:
        """Let restoring requests take in what has arrived, and run if that was all."""
        for request in tuple(self.queues.restoring.values()):
            restore = self._blocks.restore_of(request.request_id)
            request.num_computed_tokens = self._blocks.advance_restore(
                request.request_id, request.num_computed_tokens
            )
            if request.num_computed_tokens >= restore.num_tokens:
                count_restore(self.totals, request, restore, self._now)
                self._blocks.end_restore(request.request_id)
                request.move(RequestEvent.RESTORED)
                self.queues.run(request)

    def _lose_patience(self) -> None:
        """Let nobody wait for copies that have stopped. What is under a copy stays pinned until it ends."""
        for request in (*self.queues.restoring.values(), *self.queues.parked.values()):
            if self._blocks.waits_for_hung_copies(request.request_id):
                request.may_load = False
                self._lose_blocks(request)

    # ---- advance -------------------------------------------------------------------------------

    def update(self, plan: SchedulerOutput, output: StepOutput) -> tuple[TokenDelta, ...]:
        """Take in what a step computed: publish full blocks, append tokens, finish requests."""
        failed = {sample.request_id for sample in output.samples if sample.token_id is None}
        for chunk in plan.chunks:
            if chunk.request_id not in failed:
                self._advance(self._live(chunk.request_id), chunk.start + len(chunk.token_ids))
        return tuple(self._accept(sample) for sample in output.samples)

    def _advance(self, request: Request, num_computed_tokens: int) -> None:
        request.num_computed_tokens = num_computed_tokens
        num_full = num_computed_tokens // self._blocks.block_size
        self._blocks.publish(request.request_id, self._names(request, num_computed_tokens), num_full)

    def _names(self, request: Request, num_tokens: int) -> Sequence[BlockHash]:
        return request.name_blocks(num_tokens) if self._blocks.prefix_caching else ()

    def _live(self, request_id: str) -> Request:
        request = self.queues.get(request_id)
        assert request is not None
        return request

    def _accept(self, sample: SampledToken) -> TokenDelta:
        request = self._live(sample.request_id)
        if sample.token_id is None:
            return self._fail(request)
        request.output_token_ids.append(sample.token_id)
        self.totals.generated_tokens += 1
        reason = request.finish_reason_after(sample.token_id, self._stop_token_ids)
        if reason is not None:
            self._finish(request)
        return TokenDelta(
            request_id=request.request_id,
            token_ids=(sample.token_id,),
            logprobs=None if sample.logprobs is None else (sample.logprobs,),
            finish_reason=reason,
            stop_token_id=sample.token_id if reason is FinishReason.STOP else None,
            num_cached_tokens=request.num_cached_tokens,
        )

    def _fail(self, request: Request) -> TokenDelta:
        """End a request whose logits are not finite. Its K/V may be to blame, so nobody may share it."""
        self._blocks.discard(request.request_id, self._names(request, request.num_tokens))
        self._forget(request)
        return TokenDelta(
            request_id=request.request_id,
            finish_reason=FinishReason.ERROR,
            error="The model produced logits that are not finite for this request.",
        )

    def _finish(self, request: Request) -> None:
        returns_in = request.expected_return_s
        self._blocks.release(request.request_id, None if returns_in is None else self._now + returns_in)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        request.move(RequestEvent.FINISH)
        self._num_paused -= request.paused
        self.queues.remove(request)

    def _set_paused(self, request_id: str, paused: bool) -> None:
        request = self.queues.get(request_id)
        if request is not None and request.paused != paused:
            request.paused = paused
            self._num_paused += 1 if paused else -1
            if request.status is RequestStatus.WAITING:
                self.queues.park(request)
