"""Continuous batching: which tokens of which sequences the next step computes.

Runs on: step thread, sole owner. Blocks: never; no torch, no clock. ``schedule`` decides and returns
a value, someone else carries it out, ``update`` advances the state. The stages of ``schedule`` share
one budget: running decodes; then, tenant by tenant, whoever was served least first, prefills (those of
restoring requests too), the parked and the waiting. One tenant's requests go by class and arrival.

The sequences of a request go together: all of them take their next token in a step, or none. A paused
request takes no place in a step; the blocks it holds are the first to go. Nobody waits for a copy: who
needs blocks that are being copied out, or KV that is being copied in, sits out the step; who
waits for a disk that hangs computes instead.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

from engine.accounting import SchedulerTotals
from engine.budget import StepBudget
from engine.claims import Claims
from engine.fairness import PROMPT_TOKEN_COST
from engine.histories import Histories
from engine.messages import AddRequest, ForgetKv, TokenDelta
from engine.queues import RequestQueues
from engine.request import RequestStatus, SequenceGroup
from engine.results import Results
from engine.room import Room
from engine.schedule import ScheduledChunk, SchedulerOutput, StepOutput
from engine.sequence import Sequence
from engine.sessions import Sessions, describe
from engine.stats import SessionKv
from engine.turns import Turns
from tiering.block_manager import BlockManager
from tiering.hashing import BlockNamer, derive_salt
from tiering.tables import Refusal
from tiering.types import TransferResult


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of a sequence. ``stop_token_ids`` are those of the model.

    ``cache_secret`` and ``fingerprint`` (of all that KV depends on beside tokens) go into every block name.
    A tenant may be ahead of another by what ``quantum_steps`` full steps of prompts cost before it gives way.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    stop_token_ids: tuple[int, ...] = ()
    cache_secret: bytes = b""
    fingerprint: bytes = b""
    watermark: float = 0.01
    quantum_steps: float = 2.0


class Scheduler:
    """Owns every request from ``add`` until it finishes."""

    def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
        assert config.max_num_batched_tokens >= config.max_num_seqs
        assert blocks.num_blocks >= blocks.blocks_for(config.max_model_len)
        self.totals = SchedulerTotals()
        self.queues = RequestQueues()
        self._config = config
        self._blocks = blocks
        watermark = max(1, int(config.watermark * blocks.num_blocks))
        self._room = Room(blocks, self.queues, self.totals, watermark)
        self._histories = Histories()
        self.sessions = Sessions()
        self._results = Results(
            blocks, self.queues, self.totals, frozenset(config.stop_token_ids), self._histories, self.sessions
        )
        self._claims = Claims(
            self.queues.shares,
            config.quantum_steps * config.max_num_batched_tokens,
            config.max_num_batched_tokens,
        )
        self._lacks_room: str | None = None  # whom the last step did not admit for lack of blocks
        self._num_active = 0  # sequences that may take part in this step
        self._num_arrivals = 0
        self._num_steps = 0
        self._now = 0.0

    # ---- what the outside asks for -------------------------------------------------------------

    def add(self, message: AddRequest, now: float = 0.0) -> None:
        """Queue a request, which must have passed ``EngineCore``'s checks. ``now`` as for ``schedule``."""
        group = SequenceGroup(
            message,
            arrival_index=self._num_arrivals,
            namer=self._namer(message.cache_salt),
            max_len=self._config.max_model_len,
            stop_token_ids=self._config.stop_token_ids,
            now=now,
        )
        self._num_arrivals += 1
        self._histories.forget(message.request_id)
        if group.is_turn:
            self.sessions.begin_turn(group.session, group.tenant, group.num_prompt_tokens, now)
        self.queues.add(group)

    def _namer(self, cache_salt: bytes) -> BlockNamer:
        salt = derive_salt(self._config.cache_secret, self._config.fingerprint, cache_salt)
        return BlockNamer(salt, self._blocks.block_size)

    def why_too_large(self, message: AddRequest) -> str | None:
        """Why a request could never run, however empty the pool; None if it can."""
        num_seqs = message.sampling.num_seqs
        if num_seqs > self._config.max_num_seqs:
            most = self._config.max_num_seqs
            return f"It asks for {num_seqs} sequences at once; --max-num-seqs allows {most}."
        num_prompt = len(message.prompt_token_ids)
        length = min(num_prompt + message.sampling.max_tokens, self._config.max_model_len)
        shared = num_prompt // self._blocks.block_size
        needed = shared + num_seqs * (self._blocks.blocks_for(length) - shared)
        if num_seqs > 1 and needed > self._blocks.num_blocks:
            return (
                f"{num_seqs} sequences of up to {length} tokens need {needed} blocks;"
                f" the device pool has {self._blocks.num_blocks}. Ask for fewer, or for fewer tokens."
            )
        return None

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Forget a request, or one of its sequences, in whatever state it is. What is unknown is ignored.

        A beam search has no sequences that could be named; it is aborted whole.
        """
        group = self.queues.get(request_id)
        if group is None:
            return
        if index is None or group.beams is not None:
            self._results.drop(group, self._now)
        elif group.has_branched:
            self._abort_sequence(group, index)
        else:
            group.unwanted.add(index)
            if group.unwanted.issuperset(range(group.sampling.n)):
                self._results.drop(group, self._now)

    def history(self, request_id: str, index: int, cache_salt: bytes) -> tuple[int, ...] | None:
        """All tokens of a sequence that runs or ended not long ago; None if this tenant has no such."""
        group = self.queues.get(request_id)
        sequence = None if group is None else group.sequence(index)
        if group is None or sequence is None:
            return self._histories.find(request_id, index, cache_salt)
        if group.cache_salt != cache_salt:
            return None
        return (*sequence.prompt_token_ids, *sequence.output_token_ids)

    def _abort_sequence(self, group: SequenceGroup, index: int) -> None:
        sequence = group.sequence(index)
        if sequence is None:
            return
        is_growing = any(self._blocks.branch_of(other.sequence_id) for other in group.sequences)
        if is_growing and len(group.sequences) > 1:  # others may wait for what it computes: begin anew
            self._room.lose_blocks(group)
        self._results.end_sequence(group, sequence, self._now)
        if group.status is RequestStatus.SWAPPING_OUT:
            self._room.end_swap_out(group)

    def forget_kv(self, message: ForgetKv) -> None:
        """Let nobody find the blocks that cover a token at ``from_token`` or later of a history."""
        names = self._namer(message.cache_salt).names(message.token_ids)
        for name in names[max(0, message.from_token) // self._blocks.block_size :]:
            self._blocks.tiers.forget(name)

    def describe_sessions(self, sessions: abc.Sequence[str]) -> tuple[SessionKv, ...]:
        """Where the blocks of these sessions are, an entry for each."""
        live: dict[str, list[SequenceGroup]] = {name: [] for name in sessions}
        for group in self.queues:
            if group.session in live:
                live[group.session].append(group)
        return tuple(describe(name, self.sessions.find(name), live[name], self._blocks) for name in sessions)

    def pause(self, request_id: str, now: float) -> None:
        """Compute nothing for this request until ``resume``. Unknown ids are ignored."""
        self._set_paused(request_id, now, paused=True)

    def resume(self, request_id: str, now: float) -> None:
        self._set_paused(request_id, now, paused=False)

    def _set_paused(self, request_id: str, now: float, *, paused: bool) -> None:
        group = self.queues.get(request_id)
        if group is not None and group.paused != paused:
            self.queues.set_paused(group, paused, now)

    def has_work(self) -> bool:
        """Whether any request could advance."""
        return len(self.queues) > self.queues.num_paused

    def has_request(self, request_id: str) -> bool:
        return self.queues.get(request_id) is not None

    def request_ids(self) -> tuple[str, ...]:
        return tuple(group.request_id for group in self.queues)

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
        """Requests with slots on host of their own."""
        return self._blocks.num_parked_groups

    @property
    def num_paused(self) -> int:
        return self.queues.num_paused

    # ---- decide --------------------------------------------------------------------------------

    def schedule(self, now: float = 0.0) -> SchedulerOutput:
        """Choose the next step's chunks, decodes first. ``now``: seconds on any clock that only grows.

        Nothing is chosen although there is work only while copies are under way that it waits for.
        """
        self._now = now
        self._num_steps += 1
        self._blocks.tiers.set_time(now)
        self._room.end_restores(now)
        self._room.lose_patience()
        for group in tuple(self.queues.unsettled.values()):
            self._room.bear_branches(group)
            self._room.settle(group)
        self.queues.note_contention()
        self._give_way()
        budget = StepBudget(self._config.max_num_batched_tokens, self._config.max_num_seqs)
        chunks: list[ScheduledChunk] = []
        others = self._schedule_decodes(budget, chunks)
        self._deal_out(others, budget, chunks)
        copies = self._blocks.take_copies()
        self.totals.block_copies += len(copies)
        return SchedulerOutput(chunks=tuple(chunks), copies=copies)

    def preempt(self, group: SequenceGroup) -> None:
        """Take a running or restoring group's device blocks."""
        self._room.preempt(group)

    def complete(self, results: abc.Iterable[TransferResult]) -> None:
        """Take in how copies ended: who is swapped out now, and who lost what a copy failed to bring."""
        self._room.complete(results)

    def call_off_loads(self) -> None:
        """Stop loads that the next step had better compute. What was stopped is then to be completed."""
        for group in self.queues.restoring.values():
            if not group.paused and group.status is RequestStatus.RESTORING:
                self._blocks.call_off_loads(
                    group.first.sequence_id,
                    group.first.num_computed_tokens,
                    self._config.max_num_batched_tokens,
                )

    def _give_way(self) -> None:
        """Preempt one request of a tenant that is ahead, if the next to be admitted is kept out."""
        is_open = self.queues.num_tenants > 1 and self._claims.are_open(self._num_steps)
        if not is_open or self._blocks.num_leaving():
            return
        claimant = self.queues.first_candidate(self._now)
        if claimant is None:
            return
        self._num_active = self.queues.num_active()
        if not (self._lacks_place(claimant) or self._lacks_room == claimant.request_id):
            return
        victim = self._claims.victim_for(claimant, self.queues.line_up(), self._num_steps)
        if victim is not None:
            self._claims.note_victim(victim, self._num_steps)
            self._room.preempt(victim, for_share=True)

    def _schedule_decodes(self, budget: StepBudget, chunks: list[ScheduledChunk]) -> list[SequenceGroup]:
        """One token a sequence. Returns the rest of those that have blocks, in line.

        If all get theirs, as at nearly every step, it does not matter who is first.
        """
        decoding = self.queues.decoding
        beside: list[SequenceGroup] = []
        others: list[SequenceGroup] = []
        for group in self.queues.others_in_line():
            (beside if _is_decoding(group) else others).append(group)
        num_seqs = decoding.num_seqs + sum(len(group.sequences) for group in beside)
        if not (budget.has_room_for(num_seqs) and self._room.try_make_room_for_all(beside)):
            return self._schedule_decodes_in_line(budget, chunks)
        chunks += decoding.chunks(self._now)
        budget.take_one_each(decoding.num_seqs)
        for group in beside:
            self._schedule_decode(group, budget, chunks)
        return others

    def _schedule_decodes_in_line(
        self, budget: StepBudget, chunks: list[ScheduledChunk]
    ) -> list[SequenceGroup]:
        """Who is first in line first: so a victim, which is behind, has no chunk yet."""
        others = []
        for group in self.queues.line_up():
            if budget.exhausted:
                break
            if not _is_decoding(group):
                others.append(group)
            elif budget.has_room_for(len(group.sequences)) and self._room.make_room(group):
                self._schedule_decode(group, budget, chunks)
        return others

    def _schedule_decode(
        self, group: SequenceGroup, budget: StepBudget, chunks: list[ScheduledChunk]
    ) -> None:
        for sequence in group.sequences:
            chunks.append(self._next_chunk(group, sequence, budget, sequence.num_tokens))

    def _deal_out(
        self, others: abc.Sequence[SequenceGroup], budget: StepBudget, chunks: list[ScheduledChunk]
    ) -> None:
        """The next chunk of each prompt that is partly computed, and who is admitted, in turns."""
        self._lacks_room = None
        self._num_active = self.queues.num_active()
        turns = Turns(self.queues, others, self._config.max_num_seqs, self._now)
        while not budget.exhausted and (group := turns.next()) is not None:
            if group.status is RequestStatus.RUNNING:
                self._schedule_prefill(group, budget, chunks)
            elif group.status is RequestStatus.RESTORING:
                self._schedule_front(group, budget, chunks)
            elif not self._admit(group, budget, chunks):
                turns.stop_admitting()
        turns.end()

    def _schedule_prefill(
        self, group: SequenceGroup, budget: StepBudget, chunks: list[ScheduledChunk]
    ) -> None:
        """Compute what is missing of each sequence; of several, the last tokens are left for one step."""
        num_left = 1 if len(group.sequences) > 1 else 0
        for sequence in group.sequences:
            is_born = self._blocks.branch_of(sequence.sequence_id) is None
            if is_born and sequence.num_uncomputed_tokens > num_left and not budget.exhausted:
                limit = sequence.num_tokens - num_left
                chunks.append(self._charged_chunk(group, sequence, budget, limit))

    def _schedule_front(self, group: SequenceGroup, budget: StepBudget, chunks: list[ScheduledChunk]) -> None:
        """Compute a restoring request up to where its loads begin."""
        first = group.first
        limit = self._blocks.compute_limit(first.sequence_id, first.num_computed_tokens)
        if limit > first.num_computed_tokens:
            chunks.append(self._charged_chunk(group, first, budget, limit))

    def _admit(self, group: SequenceGroup, budget: StepBudget, chunks: list[ScheduledChunk]) -> bool:
        """Give a request its blocks and its first chunk. False: nor is there room for those behind it."""
        if self._lacks_place(group):
            return False
        if group.status is RequestStatus.SWAPPING_OUT:
            return False  # it was preempted just now: nobody behind it gets the room it gave up
        if self._room.try_admit(group) is Refusal.NO_ROOM:
            self._lacks_room = group.request_id
            return False
        self._claims.note_admission(group, self._num_steps)
        self._num_active += group.num_active
        if group.status is RequestStatus.RUNNING:
            self._schedule_admitted(group, budget, chunks)
        return True

    def _lacks_place(self, group: SequenceGroup) -> bool:
        return self._num_active + group.num_seqs > self._config.max_num_seqs

    def _schedule_admitted(
        self, group: SequenceGroup, budget: StepBudget, chunks: list[ScheduledChunk]
    ) -> None:
        self._room.bear_branches(group)
        if len(group.sequences) == 1 or not group.is_decoding:
            self._schedule_prefill(group, budget, chunks)
        elif budget.has_room_for(len(group.sequences)) and self._room.make_free_room(group):
            self._schedule_decode(group, budget, chunks)

    def _charged_chunk(
        self, group: SequenceGroup, sequence: Sequence, budget: StepBudget, limit: int
    ) -> ScheduledChunk:
        """A chunk of a prefill, for which the tenant is charged at once: its next turn comes the later."""
        chunk = self._next_chunk(group, sequence, budget, limit)
        num_new = sequence.charge(chunk.start, chunk.start + len(chunk.token_ids))
        self.queues.shares.charge(group.tenant, num_new * PROMPT_TOKEN_COST)
        return chunk

    def _next_chunk(
        self, group: SequenceGroup, sequence: Sequence, budget: StepBudget, limit: int
    ) -> ScheduledChunk:
        start = sequence.num_computed_tokens
        stop = start + budget.take(limit - start)
        is_followed = stop == sequence.num_tokens and not group.generates_nothing
        group.idle_since = self._now
        return ScheduledChunk(
            sequence_id=sequence.sequence_id,
            token_ids=sequence.token_slice(start, stop),
            start=start,
            block_table=self._blocks.block_table(sequence.sequence_id),
            sample=group.ask(sequence, self._config.stop_token_ids) if is_followed else None,
            score=None if group.scoring is None else group.scoring.ask(start, stop),
        )

    # ---- advance -------------------------------------------------------------------------------

    def update(self, plan: SchedulerOutput, output: StepOutput) -> tuple[TokenDelta, ...]:
        """Take in what a step computed: publish full blocks, append tokens, branch, finish requests."""
        return tuple(self._results.take_in(plan, output, self._now))


def _is_decoding(group: SequenceGroup) -> bool:
    return group.status is RequestStatus.RUNNING and group.is_decoding
