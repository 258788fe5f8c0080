"""An engine that says what it is told to: the double behind the gateway's tests and benchmarks.

Runs on the event loop, in one task that ``close`` cancels and awaits. It keeps the contract of
``engine.client.Engine``: one report per step for all requests, first come first served into a batch
of ``max_num_seqs``, nothing after an abort, aborts idempotent. What it emits comes from a ``Script``
per request. It can freeze, die, fail a request, and it records what it was asked.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from engine.client import DeltaSink, EngineDeadError, EngineHealth, StepListener
from engine.messages import (
    AddRequest,
    EngineInfo,
    FinishReason,
    ForgetKv,
    ForkRequest,
    IntegrityReport,
    KvReport,
    PromptLogprobs,
    SessionsReport,
    StepReport,
    TokenDelta,
    TokenLogprobs,
)
from engine.stats import (
    KV_TRANSFER_BUCKETS,
    EngineStats,
    KvCosts,
    SequenceKv,
    SessionKv,
    TierStats,
    TransferStats,
)

_NO_TRANSFERS = {
    kind: TransferStats(0, 0, 0, 0, 0.0, 0.0, 0.0, (0,) * (len(KV_TRANSFER_BUCKETS) + 1))
    for kind in ("swap_out", "swap_in", "demote", "promote")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What one request gets.

    ``token_ids`` are emitted ``per_step`` at a time and end with STOP; ``stop_token_id`` is one more
    token that ends the sequence. ``endless`` repeats them until ``max_tokens``. ``fail_after`` ends
    with ERROR after that many tokens, ``refusal`` with ERROR and that sentence, the request being at fault,
    before the first. ``prefill_steps`` pass before the first token. ``others`` are those of
    the second and later sequences of a request; the last one counts for all that follow. ``top`` are the
    alternatives of every position, or with ``tops`` each has its own.
    """

    token_ids: Sequence[int]
    per_step: int = 1
    stop_token_id: int | None = None
    endless: bool = False
    fail_after: int | None = None
    refusal: str | None = None
    prefill_steps: int = 0
    num_cached_tokens: int = 0
    top: Sequence[tuple[int, float]] = ((1, -0.5), (2, -1.5))
    tops: Sequence[Sequence[tuple[int, float]]] = ()
    logprob: float = -0.25
    others: Sequence[Script] = ()

    def score(self, prompt: Sequence[int], num_top: int) -> PromptLogprobs:
        """Of a prompt: token i has log probability -i/4 and rank i, beside the alternatives of ``top``."""
        count = len(prompt) - 1
        top = self.top[:num_top]
        return PromptLogprobs(
            array("f", [-i / 4 for i in range(1, count + 1)]).tobytes(),
            array("I", range(1, count + 1)).tobytes(),
            array("I", [token for token, _ in top] * count).tobytes(),
            array("f", [logprob for _, logprob in top] * count).tobytes(),
            len(top),
        )

    def of(self, index: int) -> Script:
        scripts = (self, *self.others)
        return scripts[min(index, len(scripts) - 1)]

    def token(self, position: int) -> int:
        return self.token_ids[position % len(self.token_ids)] if self.token_ids else -1

    def length(self, max_tokens: int) -> int:
        if self.endless:
            return max_tokens
        return min(len(self.token_ids) + (self.stop_token_id is not None), max_tokens)


@dataclass(slots=True)
class _Running:
    request: AddRequest
    sink: DeltaSink
    script: Script
    num_prefilled: int = 0
    num_generated: dict[int, int] = field(default_factory=dict)  # by index of those that go on
    paused: bool = False


@dataclass(slots=True)
class Record:
    """What the gateway asked, in order, by request id."""

    submitted: list[AddRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    aborted_sequences: list[tuple[str, int]] = field(default_factory=list)
    forked: list[ForkRequest] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    forgotten: list[ForgetKv] = field(default_factory=list)
    num_delivered: dict[str, int] = field(default_factory=dict)


class ScriptedEngine:
    """``scripts`` maps a request to its script; ``step_s`` is the pace of the steps.

    ``sessions`` is what is told of sessions that somebody gave cells; the others show the prompts of theirs.
    """

    is_behind = False
    num_restarts = 0
    restart_in_s = None

    def __init__(
        self,
        info: EngineInfo,
        scripts: Callable[[AddRequest], Script],
        *,
        step_s: float = 0.0,
        max_num_seqs: int = 64,
    ) -> None:
        self._info = info
        self.scripts = scripts
        self.step_s = step_s
        self._max_num_seqs = max_num_seqs
        self.record = Record()
        self.sessions: dict[str, SessionKv] = {}
        self._waiting: dict[str, _Running] = {}
        self._running: dict[str, _Running] = {}
        self._listeners: list[StepListener] = []
        self._stats = EngineStats(tiers=self._tiers(0), transfers=_NO_TRANSFERS)
        self._work = asyncio.Event()
        self._thaw = asyncio.Event()
        self._thaw.set()
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._step = 0
        self._task = asyncio.create_task(self._run(), name="scripted-engine")

    # ---- the Engine protocol ----

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def stats(self) -> EngineStats:
        return self._stats

    def submit(self, request: AddRequest, sink: DeltaSink) -> None:
        self._check_alive()
        assert request.request_id not in self.request_ids, "request ids are unique"
        self.record.submitted.append(request)
        running = _Running(request, sink, self.scripts(request))
        running.num_generated = dict.fromkeys(range(request.sampling.n), 0)
        self._waiting[request.request_id] = running
        self._work.set()

    def fork(self, request: ForkRequest, sinks: Mapping[str, DeltaSink]) -> None:
        self.record.forked.append(request)
        for branch in request.branches:
            add = AddRequest(
                request_id=branch.request_id,
                prompt_token_ids=(1, *branch.token_ids),
                sampling=branch.sampling,
            )
            self.submit(add, sinks[branch.request_id])

    def abort(self, request_id: str, index: int | None = None) -> None:
        if index is not None:
            self.record.aborted_sequences.append((request_id, index))
            running = self._running.get(request_id)
            if running is not None:
                running.num_generated.pop(index, None)
                if not running.num_generated:
                    del self._running[request_id]
            return
        self.record.aborted.append(request_id)
        self._waiting.pop(request_id, None)
        self._running.pop(request_id, None)
        self._refresh()

    def pause(self, request_id: str) -> None:
        self.record.paused.append(request_id)
        if request_id in self._running:
            self._running[request_id].paused = True

    def resume(self, request_id: str) -> None:
        self.record.resumed.append(request_id)
        if request_id in self._running:
            self._running[request_id].paused = False
        self._work.set()

    def forget_kv(self, token_ids: Sequence[int], from_token: int, cache_salt: bytes) -> None:
        self._check_alive()
        forgotten = ForgetKv(token_ids=tuple(token_ids), from_token=from_token, cache_salt=cache_salt)
        self.record.forgotten.append(forgotten)

    def health(self) -> EngineHealth:
        if self._death.done():
            return EngineHealth.DEAD
        return EngineHealth.OK if self._thaw.is_set() else EngineHealth.STALLED

    async def check_integrity(self) -> IntegrityReport:
        self._check_alive()
        return IntegrityReport(check_id=0, problems=(), stats=self._stats)

    async def describe_kv(self, limit: int) -> KvReport:
        self._check_alive()
        sequences = tuple(
            SequenceKv(
                request_id=request_id,
                index=index,
                status="running",
                priority=0,
                num_tokens=len(running.request.prompt_token_ids) + num_generated,
                num_computed_tokens=len(running.request.prompt_token_ids),
                num_preemptions=0,
                paused=running.paused,
                blocks="D",
            )
            for request_id, running in self._running.items()
            for index, num_generated in running.num_generated.items()
        )
        costs = KvCosts(step_s=0.0, token_s=0.0, pair_s=0.0, block_s={}, bytes_per_s={})
        return KvReport(0, len(self.request_ids), sequences[:limit], self._stats, costs)

    async def describe_sessions(self, sessions: Sequence[str]) -> SessionsReport:
        self._check_alive()
        return SessionsReport(0, tuple(self.sessions.get(name) or self._session(name) for name in sessions))

    def _session(self, name: str) -> SessionKv:
        """Full blocks of its longest prompt: in use while one of its requests is here, else cached."""
        turns = [request for request in self.record.submitted if request.session == name]
        num_tokens = max((len(turn.prompt_token_ids) for turn in turns), default=0)
        is_here = any(turn.request_id in self.request_ids for turn in turns)
        return SessionKv(name, num_tokens, ("D" if is_here else "d") * (num_tokens // self._info.block_size))

    def add_step_listener(self, listener: StepListener) -> None:
        self._listeners.append(listener)

    async def wait_dead(self) -> str:
        return await asyncio.shield(self._death)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _check_alive(self) -> None:
        if self._death.done():
            raise EngineDeadError(self._death.result())

    # ---- what tests do to it ----

    @property
    def request_ids(self) -> set[str]:
        """Everything it still works for."""
        return {*self._waiting, *self._running}

    @property
    def num_running(self) -> int:
        return len(self._running)

    def freeze(self) -> None:
        """No step ends any more; health is STALLED."""
        self._thaw.clear()

    def thaw(self) -> None:
        self._thaw.set()

    def die(self, reason: str) -> None:
        """Fail every request and take no more."""
        self._death.set_result(reason)
        lost = [*self._waiting.values(), *self._running.values()]
        self._waiting.clear()
        self._running.clear()
        self._stats = self._stats.of_the_dead()
        for running in lost:
            running.sink.fail(EngineDeadError(reason))
        self._task.cancel()

    # ---- the step loop ----

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            await self._thaw.wait()
            await asyncio.sleep(self.step_s)
            if self._thaw.is_set():
                self._one_step()
            if not self._waiting and all(running.paused for running in self._running.values()):
                self._work.clear()

    def _one_step(self) -> None:
        self._admit()
        self._step += 1
        deltas = [(r, delta) for r in self._running.values() if not r.paused for delta in self._advance(r)]
        for running, delta in deltas:
            if delta.ends_request:
                del self._running[running.request.request_id]
        self._refresh(generated=sum(len(delta.token_ids) for _, delta in deltas))
        for running, delta in deltas:
            # An earlier delivery of this step may have aborted a later one.
            if running.request.request_id not in self.record.aborted:
                self._deliver(running, delta)
        report = StepReport(
            step=self._step,
            deltas=tuple(delta for _, delta in deltas),
            stats=self._stats,
            stage_seconds={"schedule": 0.0001, "execute": self.step_s, "update": 0.0001},
        )
        for listener in self._listeners:
            listener(report)

    def _deliver(self, running: _Running, delta: TokenDelta) -> None:
        seen = self.record.num_delivered
        seen[delta.request_id] = seen.get(delta.request_id, 0) + len(delta.token_ids)
        running.sink.deliver(delta)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_num_seqs:
            request_id = next(iter(self._waiting))
            self._running[request_id] = self._waiting.pop(request_id)

    def _advance(self, running: _Running) -> Iterator[TokenDelta]:
        if running.num_prefilled < running.script.prefill_steps:
            running.num_prefilled += 1
            return
        is_first = not any(running.num_generated.values())
        for place, index in enumerate(tuple(running.num_generated)):
            delta = self._advance_sequence(running, index)
            if is_first and place == 0:
                delta = msgspec.structs.replace(delta, prompt_logprobs=_prompt_logprobs(running))
            if delta.finish_reason is not None:
                del running.num_generated[index]
            is_over = not running.num_generated or delta.finish_reason is FinishReason.ERROR
            yield msgspec.structs.replace(delta, index=index, ends_request=is_over)
            if is_over:
                return

    def _advance_sequence(self, running: _Running, index: int) -> TokenDelta:
        script, sampling = running.script.of(index), running.request.sampling
        request_id = running.request.request_id
        start = running.num_generated[index]
        length = script.length(sampling.max_tokens)
        end = min(start + script.per_step, length)
        if script.refusal is not None:
            error = FinishReason.ERROR
            return TokenDelta(request_id, finish_reason=error, error=script.refusal, is_invalid=True)
        if script.fail_after is not None and end > script.fail_after:
            return TokenDelta(request_id, finish_reason=FinishReason.ERROR, error="scripted failure")
        running.num_generated[index] = end
        ids = [script.token(i) for i in range(start, end)]
        stop = script.stop_token_id if end == length == len(script.token_ids) + 1 else None
        if stop is not None:
            ids[-1] = stop
        finish = None
        if end == length:
            cut = script.endless or (length < len(script.token_ids) + (script.stop_token_id is not None))
            finish = FinishReason.LENGTH if cut else FinishReason.STOP
        return TokenDelta(
            request_id,
            tuple(ids),
            _logprobs(ids, start, script, sampling.logprobs),
            finish,
            stop,
            script.num_cached_tokens if start == 0 else 0,
        )

    def _refresh(self, generated: int = 0) -> None:
        in_use = len(self._running)
        self._stats = msgspec.structs.replace(
            self._stats,
            num_running=in_use,
            num_waiting=len(self._waiting),
            num_paused=sum(running.paused for running in self._running.values()),
            blocks_in_use=in_use,
            tiers=self._tiers(in_use),
            generated_tokens_total=self._stats.generated_tokens_total + generated,
        )

    def _tiers(self, in_use: int) -> dict[str, TierStats]:
        free = self._info.num_blocks - in_use
        return {"device": TierStats(free, 0, in_use, 0, "lru", 0, 0)}


def _prompt_logprobs(running: _Running) -> PromptLogprobs | None:
    num_top = running.request.sampling.prompt_logprobs
    prompt = running.request.prompt_token_ids
    return None if num_top is None else running.script.score(prompt, num_top)


def _logprobs(
    ids: Sequence[int], start: int, script: Script, num_top: int | None
) -> tuple[TokenLogprobs, ...] | None:
    if num_top is None:
        return None
    tops = script.tops or (script.top,)
    return tuple(
        TokenLogprobs(script.logprob - i / 1000, tuple(tops[(start + i) % len(tops)][:num_top]))
        for i, _ in enumerate(ids)
    )
