"""Continuous batching, first come first served: which tokens of which requests the next step computes.

Runs on: step thread, sole owner. Blocks: never; no torch, no clock. ``schedule`` decides and returns
a value, someone else carries it out, ``update`` advances the state. The stages of ``schedule`` share
one budget: running decodes, running prefills, then the parked and the waiting.

Progress: a request is preempted only for an earlier one, or because its client does not read, and is
admitted only with room for all its known tokens. After ``MAX_PREEMPTIONS`` for others it comes back
with blocks for its whole length, and then loses them only if its client does not read. A paused
request takes no place in a step; the blocks it holds are the first to go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.budget import StepBudget
from engine.messages import AddRequest, FinishReason, TokenDelta
from engine.request import Request, RequestEvent, RequestStatus
from engine.schedule import SampledToken, SampleSpec, ScheduledChunk, SchedulerOutput, StepOutput
from tiering.block_manager import BlockManager
from tiering.hashing import BlockNamer, derive_salt
from tiering.types import BlockHash

MAX_PREEMPTIONS = 4


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of a sequence. ``stop_token_ids`` are those of the model."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    stop_token_ids: tuple[int, ...] = ()
    cache_secret: bytes = b""
    watermark: float = 0.01


@dataclass(slots=True)
class SchedulerTotals:
    """Running totals; they only grow."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    hit_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0


class Scheduler:
    """Owns every request from ``add`` until it finishes."""

    def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
        assert config.max_num_batched_tokens >= config.max_num_seqs
        assert blocks.num_blocks >= blocks.blocks_for(config.max_model_len)
        self.totals = SchedulerTotals()
        self._config = config
        self._blocks = blocks
        self._watermark = max(1, int(config.watermark * blocks.num_blocks))
        self._stop_token_ids = frozenset(config.stop_token_ids)
        self._requests: dict[str, Request] = {}
        self._running: dict[str, Request] = {}
        self._parked: dict[str, Request] = {}
        self._waiting: dict[str, Request] = {}
        self._num_paused = 0
        self._num_arrivals = 0

    # ---- what the outside asks for -------------------------------------------------------------

    def add(self, message: AddRequest) -> None:
        """Queue a request. The message must have passed ``EngineCore``'s checks."""
        assert message.request_id not in self._requests
        request = Request(
            message,
            arrival_index=self._num_arrivals,
            namer=BlockNamer(
                derive_salt(self._config.cache_secret, message.cache_salt), self._blocks.block_size
            ),
            max_len=self._config.max_model_len,
        )
        self._num_arrivals += 1
        self._requests[request.request_id] = request
        self._waiting[request.request_id] = request

    def abort(self, request_id: str) -> None:
        """Forget a request in whatever state it is. Unknown and finished ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request)

    def pause(self, request_id: str) -> None:
        """Compute nothing for this request until ``resume``."""
        self._set_paused(request_id, True)

    def resume(self, request_id: str) -> None:
        self._set_paused(request_id, False)

    def has_work(self) -> bool:
        """Whether a step could advance some request."""
        return len(self._requests) > self._num_paused

    def has_request(self, request_id: str) -> bool:
        return request_id in self._requests

    def request_ids(self) -> tuple[str, ...]:
        return tuple(self._requests)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._parked) + len(self._waiting)

    @property
    def num_paused(self) -> int:
        return self._num_paused

    # ---- decide --------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Choose the next step's chunks, decodes first."""
        budget = StepBudget(self._config.max_num_batched_tokens, self._config.max_num_seqs)
        chunks: list[ScheduledChunk] = []
        runnable = self._runnable()
        self._schedule_decodes(runnable, budget, chunks)
        self._schedule_prefills(runnable, budget, chunks)
        self._admit(budget, chunks)
        return SchedulerOutput(chunks=tuple(chunks))

    def _schedule_decodes(
        self, runnable: Sequence[Request], budget: StepBudget, chunks: list[ScheduledChunk]
    ) -> None:
        """One token each, by arrival: so a victim, which arrived later, has no chunk yet."""
        for request in runnable:
            if budget.exhausted:
                return
            if request.num_uncomputed_tokens > 1 or request.status is not RequestStatus.RUNNING:
                continue
            if self._make_room(request):
                chunks.append(self._next_chunk(request, budget))

    def _schedule_prefills(
        self, runnable: Sequence[Request], budget: StepBudget, chunks: list[ScheduledChunk]
    ) -> None:
        """The next chunk of each prompt that is partly computed; what was just preempted has none."""
        for request in runnable:
            if budget.exhausted:
                return
            if request.status is RequestStatus.RUNNING and request.num_uncomputed_tokens > 1:
                chunks.append(self._next_chunk(request, budget))

    def _runnable(self) -> list[Request]:
        """Running requests whose clients read, by arrival."""
        runnable = (request for request in self._running.values() if not request.paused)
        return sorted(runnable, key=lambda request: request.arrival_index)

    def _admit(self, budget: StepBudget, chunks: list[ScheduledChunk]) -> None:
        for request in self._candidates():
            if budget.exhausted or self._num_active() >= self._config.max_num_seqs:
                return
            if not self._try_admit(request):
                return
            chunks.append(self._next_chunk(request, budget))

    def _candidates(self) -> Iterator[Request]:
        """Parked requests by arrival, then the waiting ones. The caller admits each one or stops."""
        parked = sorted(self._parked.values(), key=lambda request: request.arrival_index)
        yield from (request for request in parked if not request.paused)
        while self._waiting:
            yield next(iter(self._waiting.values()))

    def _num_active(self) -> int:
        return sum(not request.paused for request in self._running.values())

    def _next_chunk(self, request: Request, budget: StepBudget) -> ScheduledChunk:
        start = request.num_computed_tokens
        stop = start + budget.take(request.num_uncomputed_tokens)
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
        """Extend a running request by one token, preempting later arrivals. False: it gave way itself."""
        while not self._blocks.try_grow(request.request_id, request.num_tokens):
            victim = self._choose_victim(request)
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _choose_victim(self, request: Request) -> Request:
        """Slow readers first, then the latest arrival not before ``request`` itself."""
        paused = self._latest_paused()
        if paused is not None:
            return paused
        later = [
            other
            for other in self._running.values()
            if other.arrival_index > request.arrival_index and not self._has_whole_length(other)
        ]
        return max(later, key=lambda other: other.arrival_index, default=request)

    def _latest_paused(self) -> Request | None:
        if not self._num_paused:
            return None
        paused = (request for request in self._running.values() if request.paused)
        return max(paused, key=lambda request: request.arrival_index, default=None)

    def _has_whole_length(self, request: Request) -> bool:
        return request.num_given_way >= MAX_PREEMPTIONS

    def _preempt(self, request: Request) -> None:
        request.move(RequestEvent.PREEMPT)
        del self._running[request.request_id]
        self._blocks.release(request.request_id)
        request.num_lost_tokens = request.num_computed_tokens
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.num_given_way += not request.paused
        self._parked[request.request_id] = request
        self.totals.preemptions += 1

    def _try_admit(self, request: Request) -> bool:
        """Give a queued request its blocks, taking them from slow readers if that is what it takes."""
        whole = self._has_whole_length(request)
        capacity = request.max_total_tokens if whole else request.num_tokens
        names = self._names(request, request.num_tokens)
        while True:
            admission = self._blocks.try_admit(
                request.request_id,
                names,
                num_tokens=request.num_tokens,
                capacity_tokens=capacity,
                keep_available=self._headroom(request),
            )
            if admission is not None:
                self._start(request, admission.num_cached_tokens)
                return True
            slow_reader = self._latest_paused()
            if slow_reader is None:
                return False
            self._preempt(slow_reader)

    def _headroom(self, request: Request) -> int:
        """Blocks to leave for the running ones: none if alone; one each after a preemption."""
        if not self._running:
            return 0
        return max(self._watermark, len(self._running)) if request.num_preemptions else self._watermark

    def _start(self, request: Request, num_cached_tokens: int) -> None:
        request.move(RequestEvent.ADMIT)
        self._waiting.pop(request.request_id, None)
        self._parked.pop(request.request_id, None)
        self._running[request.request_id] = request
        request.num_computed_tokens = num_cached_tokens
        if request.num_preemptions:
            self.totals.recomputed_tokens += max(0, request.num_lost_tokens - num_cached_tokens)
        else:
            request.num_cached_tokens = num_cached_tokens
            self.totals.hit_tokens += num_cached_tokens
            self.totals.prompt_tokens += len(request.prompt_token_ids)

    # ---- advance -------------------------------------------------------------------------------

    def update(self, plan: SchedulerOutput, output: StepOutput) -> tuple[TokenDelta, ...]:
        """Take in what a step computed: publish full blocks, append tokens, finish requests."""
        failed = {sample.request_id for sample in output.samples if sample.token_id is None}
        for chunk in plan.chunks:
            if chunk.request_id not in failed:
                self._advance(self._requests[chunk.request_id], chunk.start + len(chunk.token_ids))
        return tuple(self._accept(sample) for sample in output.samples)

    def _advance(self, request: Request, num_computed_tokens: int) -> None:
        request.num_computed_tokens = num_computed_tokens
        num_full = num_computed_tokens // self._blocks.block_size
        self._blocks.publish(request.request_id, self._names(request, num_computed_tokens), num_full)

    def _names(self, request: Request, num_tokens: int) -> Sequence[BlockHash]:
        return request.name_blocks(num_tokens) if self._blocks.prefix_caching else ()

    def _accept(self, sample: SampledToken) -> TokenDelta:
        request = self._requests[sample.request_id]
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
        self._blocks.discard(request.request_id)
        self._forget(request)
        return TokenDelta(
            request_id=request.request_id,
            finish_reason=FinishReason.ERROR,
            error="The model produced logits that are not finite for this request.",
        )

    def _finish(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self._blocks.release(request.request_id)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        request.move(RequestEvent.FINISH)
        self._num_paused -= request.paused
        del self._requests[request.request_id]
        for queue in (self._running, self._parked, self._waiting):
            queue.pop(request.request_id, None)

    def _set_paused(self, request_id: str, paused: bool) -> None:
        request = self._requests.get(request_id)
        if request is not None and request.paused != paused:
            request.paused = paused
            self._num_paused += 1 if paused else -1
            if self._waiting.pop(request_id, None) is not None:
                self._parked[request_id] = request

    # ---- recount -------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """What does not add up between requests, queues and block tables."""
        found = []
        queued = [*self._running, *self._parked, *self._waiting]
        if sorted(queued) != sorted(self._requests):
            found.append("a request is in no queue, or in two")
        if set(self._running) != set(self._blocks.tables()):
            found.append("the running requests are not those that have block tables")
        if self._num_paused != sum(request.paused for request in self._requests.values()):
            found.append("the count of paused requests is off")
        found += [p for request in self._running.values() for p in self._request_problems(request)]
        return found

    def _request_problems(self, request: Request) -> Sequence[str]:
        held = len(self._blocks.block_table(request.request_id)) * self._blocks.block_size
        if not 0 <= request.num_computed_tokens <= min(held, request.num_tokens):
            return [f"request {request.request_id} computed {request.num_computed_tokens} of {held} slots"]
        return ()
