"""The core of an engine that computes nothing: tokens at a set rate, for measuring what is in front of it.

Runs on: step thread, in place of ``engine.core.EngineCore``. Blocks: never. All that runs gets a token
``tokens_per_s`` times a second. With ``phases`` the sequences are dealt into so many groups, whose steps are
spread evenly over that time, as if several engines took turns. A step that is late by more than its group's
turn is not made up for: the rate sinks. Requests are plain ones; what asks for more than tokens is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.config import EngineScript
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
from engine.scripted_words import Words
from engine.stats import KV_TRANSFER_BUCKETS, EngineStats, KvCosts, SessionKv, TierStats, TransferStats
from tiering.types import TransferKind

_REFUSAL = "A scripted engine answers with one sequence of plain tokens only."
_NO_TRANSFERS = {
    str(kind): TransferStats(0, 0, 0, 0, 0.0, 0.0, 0.0, (0,) * (len(KV_TRANSFER_BUCKETS) + 1))
    for kind in TransferKind
}


@dataclass(slots=True)
class _Running:
    num_left: int
    offset: int
    is_paused: bool = False


class ScriptedCore:
    """``clock`` is what the words tell; ``num_blocks`` of the device are never used."""

    def __init__(
        self,
        script: EngineScript,
        words: Words,
        *,
        max_num_seqs: int,
        num_blocks: int,
        clock: Callable[[], float],
    ) -> None:
        self._words = words
        self._max_num_seqs = max_num_seqs
        self._num_blocks = num_blocks
        self._clock = clock
        self._groups: list[dict[str, _Running]] = [{} for _ in range(script.phases)]
        self._turn = 0
        self._turn_s = 1 / (script.tokens_per_s * script.phases)
        self._due = clock()
        self._running: dict[str, dict[str, _Running]] = {}  # the group of each request
        self._waiting: deque[AddRequest] = deque()
        self._told: list[TokenDelta] = []
        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0

    # ---- what it is asked ----

    def add(self, message: AddRequest) -> None:
        if _asks_for_more(message.sampling):
            self._refuse(message.request_id)
        else:
            self._waiting.append(message)
            self._admit()

    def fork(self, message: ForkRequest) -> None:
        for branch in message.branches:
            self._refuse(branch.request_id)

    def abort(self, request_id: str, index: int | None = None) -> None:
        group = self._running.pop(request_id, None)
        if group is None:
            self._waiting = deque(one for one in self._waiting if one.request_id != request_id)
            return
        del group[request_id]
        if index is not None:
            self._told.append(TokenDelta(request_id, index=index, ends_request=True))
        self._admit()

    def pause(self, request_id: str) -> None:
        self._set_paused(request_id, is_paused=True)

    def resume(self, request_id: str) -> None:
        self._set_paused(request_id, is_paused=False)

    def forget_kv(self, message: ForgetKv) -> None:
        """There is none."""

    def problems(self) -> tuple[str, ...]:
        return ()

    def describe_kv(self, check_id: int, limit: int) -> KvReport:
        costs = KvCosts(step_s=0.0, token_s=0.0, pair_s=0.0, block_s={}, bytes_per_s={})
        return KvReport(check_id, len(self._running) + len(self._waiting), (), self.stats(), costs)

    def describe_sessions(self, check_id: int, sessions: Sequence[str]) -> SessionsReport:
        return SessionsReport(check_id, tuple(SessionKv(name, 0, "") for name in sessions))

    def close(self, timeout_s: float) -> None:
        """Nothing has to be saved."""

    def _set_paused(self, request_id: str, *, is_paused: bool) -> None:
        if request_id in self._running:
            self._running[request_id][request_id].is_paused = is_paused

    def _refuse(self, request_id: str) -> None:
        error = FinishReason.ERROR
        self._told.append(
            TokenDelta(request_id, finish_reason=error, error=_REFUSAL, ends_request=True, is_invalid=True)
        )

    def _admit(self) -> None:
        """First come, first served, each into the smallest group."""
        if not self._running:
            self._due = max(self._due, self._clock())  # no step was due while nothing ran
        while self._waiting and len(self._running) < self._max_num_seqs:
            message = self._waiting.popleft()
            group = min(self._groups, key=len)
            group[message.request_id] = _Running(message.sampling.max_tokens, sum(message.prompt_token_ids))
            self._running[message.request_id] = group
            self._num_prompt_tokens += len(message.prompt_token_ids)

    # ---- what it does ----

    def can_step(self) -> bool:
        return bool(self._told) or (bool(self._running) and self._clock() >= self._due)

    @property
    def patience_s(self) -> float | None:
        """How long until the next step is due; None if nothing runs."""
        return max(0.0, self._due - self._clock()) if self._running else None

    def step(self) -> StepReport | None:
        """The next group's tokens, if they are due."""
        now = self._clock()
        deltas = self._told
        self._told = []
        if self._running and now >= self._due:
            group = self._groups[self._turn]
            self._turn = (self._turn + 1) % len(self._groups)
            self._due = max(self._due + self._turn_s, now)
            deltas += [
                self._advance(group, request_id, now)
                for request_id, one in [*group.items()]
                if not one.is_paused
            ]
            self._num_steps += 1
        elif not deltas:
            return None
        self._admit()
        return self._report(tuple(deltas), self._clock() - now)

    def report(self) -> StepReport:
        return self._report((), 0.0)

    def stats(self) -> EngineStats:
        tier = TierStats(self._num_blocks, 0, 0, 0, "lru", 0, 0)
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            prompt_tokens_total=self._num_prompt_tokens,
            generated_tokens_total=self._num_generated_tokens,
            tiers={"device": tier},
            transfers=_NO_TRANSFERS,
        )

    def _advance(self, group: dict[str, _Running], request_id: str, now: float) -> TokenDelta:
        one = group[request_id]
        one.num_left -= 1
        self._num_generated_tokens += 1
        token_ids = (self._words.token_id(now, one.offset),)
        if one.num_left:
            return TokenDelta(request_id, token_ids)
        del group[request_id], self._running[request_id]
        return TokenDelta(request_id, token_ids, finish_reason=FinishReason.LENGTH, ends_request=True)

    def _report(self, deltas: tuple[TokenDelta, ...], execute_s: float) -> StepReport:
        stage_seconds = {"schedule": 0.0, "execute": execute_s, "update": 0.0}
        return StepReport(
            step=self._num_steps, deltas=deltas, stats=self.stats(), stage_seconds=stage_seconds
        )


def _asks_for_more(sampling: SamplingParams) -> bool:
    wants_logprobs = sampling.logprobs is not None or sampling.prompt_logprobs is not None
    has_form = sampling.grammar is not None or sampling.beam is not None
    return wants_logprobs or has_form or sampling.n > 1 or not sampling.max_tokens
