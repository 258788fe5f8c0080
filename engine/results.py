"""What a step computed becomes tokens: full blocks are published, sequences grow, branch and end.

Runs on: step thread, sole owner. Blocks: never; no torch, no clock.
"""

from __future__ import annotations

from collections import Counter, abc
from dataclasses import dataclass

import msgspec

from engine.accounting import SchedulerTotals
from engine.beam import BeamSearch
from engine.decoding import DecodingSequence
from engine.fairness import GENERATED_TOKEN_COST
from engine.histories import Histories
from engine.messages import FinishReason, TokenDelta
from engine.queues import RequestQueues
from engine.request import RequestEvent, RequestStatus, SequenceGroup
from engine.schedule import Sample, SampledToken, ScheduledChunk, SchedulerOutput, Score, StepOutput
from engine.sequence import Sequence
from engine.sessions import Sessions, computed_names
from tiering.block_manager import BlockManager
from tiering.types import BlockHash


@dataclass(frozen=True, slots=True)
class Results:
    """Takes in what steps computed, and how sequences and requests end. ``stop_token_ids``: of the model."""

    blocks: BlockManager
    queues: RequestQueues
    totals: SchedulerTotals
    stop_token_ids: frozenset[int]
    histories: Histories
    sessions: Sessions

    def take_in(self, plan: SchedulerOutput, output: StepOutput, now: float) -> list[TokenDelta]:
        """Advance all sequences of the plan. ``now``: seconds, when the step was scheduled."""
        failed = {sample.sequence_id: sample.error for sample in output.samples if not sample.tokens}
        failed |= {score.sequence_id: None for score in output.scores if score.logprobs is None}
        decoding = {} if failed else self.queues.decoding.sequences
        drawn: list[tuple[DecodingSequence, SampledToken]] = []
        samples: dict[SequenceGroup, list[Sample]] = {}
        for sample in output.samples:
            if (each := decoding.get(sample.sequence_id)) is not None:
                drawn.append((each, sample.tokens[0]))
            else:
                samples.setdefault(self._group(sample.sequence_id), []).append(sample)
        for score in output.scores:
            self._note(score)
        chunks = [chunk for chunk in plan.chunks if chunk.sequence_id not in decoding]
        self._advance([chunk for chunk in chunks if chunk.sequence_id not in failed])
        deltas = [*self._give_up(failed, now), *self._decode(drawn, now)]
        for group, found in samples.items():
            if group.status is not RequestStatus.FINISHED:
                deltas += self._accept(group, found, now)
        for chunk in chunks:
            if chunk.sample is None:
                deltas += self._end_prompt(chunk.sequence_id, now)
        return deltas

    def _decode(
        self, drawn: abc.Sequence[tuple[DecodingSequence, SampledToken]], now: float
    ) -> abc.Iterator[TokenDelta]:
        """The next tokens of those that only decode: the same as of others, in a fraction of the time."""
        for tenant, num_tokens in Counter([each.group.tenant for each, _ in drawn]).items():
            self._count_generated(tenant, num_tokens)
        block_size = self.blocks.block_size
        for each, token in drawn:
            group, sequence = each.group, each.sequence
            sequence.num_computed_tokens = num_computed_tokens = sequence.num_tokens
            if num_computed_tokens % block_size == 0:
                self._publish(sequence)
            sequence.append(token.token_id)
            if token.token_id in group.ends or sequence.num_tokens >= group.max_total_tokens:
                yield self._tell(group, sequence, token, now)
            else:
                yield TokenDelta(
                    request_id=group.request_id,
                    token_ids=(token.token_id,),
                    logprobs=None if token.logprobs is None else (token.logprobs,),
                    num_cached_tokens=group.num_cached_tokens,
                    index=sequence.index,
                )

    def _note(self, score: Score) -> None:
        scoring = self._group(score.sequence_id).scoring
        assert scoring is not None
        if score.logprobs is not None:
            scoring.take_in(score.logprobs)

    def _group(self, sequence_id: str) -> SequenceGroup:
        group = self.queues.group_of(sequence_id)
        assert group is not None
        return group

    def _advance(self, chunks: abc.Sequence[ScheduledChunk]) -> None:
        sequences: dict[str, Sequence] = {}
        for chunk in chunks:
            if chunk.sequence_id not in sequences:
                for sibling in self._group(chunk.sequence_id).sequences:
                    sequences[sibling.sequence_id] = sibling
            sequence = sequences[chunk.sequence_id]
            sequence.num_computed_tokens = chunk.start + len(chunk.token_ids)
            self._publish(sequence)

    def _publish(self, sequence: Sequence) -> None:
        """Name the blocks that are full now."""
        num_full = sequence.num_computed_tokens // self.blocks.block_size
        if num_full > self.blocks.num_published(sequence.sequence_id):
            names = self._names(sequence, sequence.num_computed_tokens)
            self.blocks.publish(sequence.sequence_id, names, num_full)

    def _names(self, sequence: Sequence, num_tokens: int) -> abc.Sequence[BlockHash]:
        return sequence.name_blocks(num_tokens) if self.blocks.prefix_caching else ()

    def _accept(
        self, group: SequenceGroup, samples: abc.Sequence[Sample], now: float
    ) -> abc.Iterator[TokenDelta]:
        """The next tokens of one request. All its sequences take theirs in the same step."""
        if group.beams is not None:
            yield from self._search(group, group.beams, samples, now)
            return
        if not group.has_branched:
            (prompt,) = samples
            group.has_branched = True
            group.sequences += [self._fork(group, group.first) for _ in prompt.tokens[1:]]
            samples = [Sample(group.request_id, (token,)) for token in prompt.tokens]
        pairs = list(zip(group.sequences, [sample.tokens[0] for sample in samples], strict=True))
        for sequence, _ in pairs:
            if sequence.index in group.unwanted:
                self.end_sequence(group, sequence, now)
        for sequence, token in pairs:
            if sequence.index not in group.unwanted:
                sequence.append(token.token_id)
                self._count_generated(group.tenant, 1)
                yield self._tell(group, sequence, token, now)

    def _fork(self, group: SequenceGroup, parent: Sequence) -> Sequence:
        child = group.fork(parent)
        self.blocks.fork(parent.sequence_id, child.sequence_id, parent.num_computed_tokens)
        return child

    def _tell(self, group: SequenceGroup, sequence: Sequence, token: SampledToken, now: float) -> TokenDelta:
        """Of a token that a sequence has got; ends the sequence if it was its last."""
        reason = sequence.finish_reason(group.sampling, self.stop_token_ids, group.max_total_tokens)
        if reason is not None:
            self.end_sequence(group, sequence, now)
        return TokenDelta(
            request_id=group.request_id,
            token_ids=(token.token_id,),
            logprobs=None if token.logprobs is None else (token.logprobs,),
            finish_reason=reason,
            stop_token_id=token.token_id if reason is FinishReason.STOP else None,
            num_cached_tokens=group.num_cached_tokens,
            index=sequence.index,
            ends_request=not group.sequences,
            prompt_logprobs=group.tell_prompt_logprobs(),
        )

    def _end_prompt(self, request_id: str, now: float) -> abc.Iterator[TokenDelta]:
        """If the prompt is computed, and that is all that was wanted, the request is over."""
        group = self.queues.get(request_id)
        if group is None or not group.generates_nothing or group.first.num_uncomputed_tokens:
            return
        self.end_sequence(group, group.first, now)
        indices = [index for index in range(group.sampling.n) if index not in group.unwanted]
        for index in indices:
            yield TokenDelta(
                request_id=group.request_id,
                finish_reason=FinishReason.LENGTH,
                num_cached_tokens=group.num_cached_tokens,
                index=index,
                ends_request=index == indices[-1],
                prompt_logprobs=group.tell_prompt_logprobs(),
            )

    def _count_generated(self, tenant: str, num_tokens: int) -> None:
        self.totals.generated_tokens += num_tokens
        self.queues.shares.charge(tenant, num_tokens * GENERATED_TOKEN_COST)

    # ---- beam search ---------------------------------------------------------------------------

    def _search(
        self, group: SequenceGroup, beams: BeamSearch, samples: abc.Sequence[Sample], now: float
    ) -> abc.Iterator[TokenDelta]:
        """One step of a beam search; tells its results if it was the last."""
        survivors = beams.advance([sample.tokens for sample in samples])
        group.has_branched = True
        self._count_generated(group.tenant, len(samples))
        parents = group.sequences
        heirs = {survivor.parent: place for place, survivor in reversed([*enumerate(survivors)])}
        group.sequences = [
            parents[survivor.parent]
            if heirs[survivor.parent] == place
            else self._fork(group, parents[survivor.parent])
            for place, survivor in enumerate(survivors)
        ]
        for sequence, survivor in zip(group.sequences, survivors, strict=True):
            sequence.append(survivor.token_id)
        for position, parent in enumerate(parents):
            if position not in heirs:
                self._release(group, parent, now)
        if beams.done:
            self._forget(group, now)
            yield from self._tell_results(group, beams, parents[0].prompt_token_ids)

    def _tell_results(
        self, group: SequenceGroup, beams: BeamSearch, prompt_token_ids: tuple[int, ...]
    ) -> abc.Iterator[TokenDelta]:
        """The results of a search that is done, best first."""
        results = beams.best(group.sampling.n)
        if len(results) < group.sampling.n:
            yield _error(group, "The beam search found too few sequences: nearly all tokens are excluded.")
            return
        for index, result in enumerate(results):
            token_ids = tuple(token.token_id for token in result.tokens)
            self.histories.keep(group, index, prompt_token_ids, token_ids)
            last = token_ids[-1]
            is_stopped = last in beams.stop_token_ids
            shown = [token.logprobs for token in result.tokens if token.logprobs is not None]
            yield TokenDelta(
                request_id=group.request_id,
                token_ids=token_ids,
                logprobs=tuple(shown) or None,
                finish_reason=FinishReason.STOP if is_stopped else FinishReason.LENGTH,
                stop_token_id=last if is_stopped else None,
                num_cached_tokens=group.num_cached_tokens,
                index=index,
                ends_request=index == len(results) - 1,
                score=result.score,
                prompt_logprobs=group.tell_prompt_logprobs(),
            )

    # ---- ends ----------------------------------------------------------------------------------

    def end_sequence(self, group: SequenceGroup, sequence: Sequence, now: float) -> None:
        """One sequence is over, and with the last one the request."""
        self.queues.unsettle(group)
        self._note_blocks(group, sequence)
        self._release(group, sequence, now)
        if sequence.output_token_ids:
            self.histories.keep(group, sequence.index, sequence.prompt_token_ids, sequence.output_token_ids)
        group.sequences.remove(sequence)
        if not group.sequences:
            self._forget(group, now)

    def drop(self, group: SequenceGroup, now: float) -> None:
        """The request is not wanted any more."""
        for sequence in group.sequences:
            self._note_blocks(group, sequence)
            self._release(group, sequence, now)
        self._forget(group, now)

    def _note_blocks(self, group: SequenceGroup, sequence: Sequence) -> None:
        if group.session and self.blocks.prefix_caching:
            names = computed_names(sequence, self.blocks.block_size)
            self.sessions.note_blocks(group.session, names, sequence.num_tokens)

    def _release(self, group: SequenceGroup, sequence: Sequence, now: float) -> None:
        returns_in = group.expected_return_s
        if returns_in is None and group.is_turn:
            returns_in = self.sessions.expected_gap_s(group.session, group.tenant)
        self.blocks.release(sequence.sequence_id, None if returns_in is None else now + returns_in)

    def _give_up(self, failed: abc.Mapping[str, str | None], now: float) -> abc.Iterator[TokenDelta]:
        """End the requests of these sequences, each with its own fault, None if its logits are at fault."""
        errors: dict[SequenceGroup, str | None] = {}
        for sequence_id, error in failed.items():
            group = self._group(sequence_id)
            errors[group] = errors.get(group) or error
        for group, error in errors.items():
            yield self._fail(group, now) if error is None else self._reject(group, error, now)

    def _fail(self, group: SequenceGroup, now: float) -> TokenDelta:
        """End a request whose logits are not finite. Its K/V may be to blame, so nobody may share it."""
        for sequence in group.sequences:
            self.blocks.discard(sequence.sequence_id, self._names(sequence, sequence.num_tokens))
        self._forget(group, now)
        return _error(group, "The model produced logits that are not finite for this request.")

    def _reject(self, group: SequenceGroup, error: str, now: float) -> TokenDelta:
        """End a request that turned out to be at fault itself."""
        self.drop(group, now)
        return msgspec.structs.replace(_error(group, error), is_invalid=True)

    def _forget(self, group: SequenceGroup, now: float) -> None:
        group.move(RequestEvent.FINISH)
        if group.is_turn:
            self.sessions.end_turn(group.session, now)
        self.queues.remove(group)


def _error(group: SequenceGroup, message: str) -> TokenDelta:
    return TokenDelta(
        request_id=group.request_id, finish_reason=FinishReason.ERROR, error=message, ends_request=True
    )
