"""An executor that keeps chained hashes where a model keeps K/V, so that any paging fault changes the text.

The entry of a position is a hash of its token and of the entry *before it, as read through the block
table*, because a model's K/V depends on the whole history. The next token is a hash of all entries of
the context, read in the same way. A block that was reused too early, shared wrongly, published before
it was computed, or never computed gives other tokens than ``expected_tokens``.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence

from engine.beam import BeamSearch
from engine.messages import BeamParams, PromptLogprobs
from engine.schedule import Sample, SampledToken, ScheduledChunk, SchedulerOutput, Score, StepOutput
from tiering.types import BlockHash, BlockId, BlockLabel, Tier, TransferJob, TransferOutcome

VOCAB_SIZE = 1000


def _hash(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "little")


def _entries(tokens: Sequence[int]) -> list[int]:
    entries: list[int] = []
    for token in tokens:
        entries.append(_hash(entries[-1] if entries else None, token))
    return entries


def next_token(entries: Sequence[int], seed: int = 0) -> int:
    """The token that the fake model draws after a context with these entries."""
    return (_hash(*entries, "seed", seed) if seed else _hash(*entries)) % VOCAB_SIZE


def candidates(entries: Sequence[int], count: int) -> tuple[SampledToken, ...]:
    """The likeliest tokens after a context with these entries, in the fake model's opinion."""
    base = _hash(*entries, "beams")
    return tuple(
        SampledToken((base + rank * 919) % VOCAB_SIZE, None, -0.2 * rank - (base // (rank + 1)) % 97 / 100)
        for rank in range(count)
    )


def _score_row(entries: Sequence[int], token: int, num_top: int) -> PromptLogprobs:
    """How likely the fake model takes ``token`` to be after a context with these entries."""
    base = _hash(*entries, "score")
    numbers = [-((base // (rank + 1)) % 997) / 8 for rank in range(num_top)]
    return PromptLogprobs(
        array("f", [-(_hash(base, token) % 997) / 8]).tobytes(),
        array("I", [1 + _hash(base, token) % VOCAB_SIZE]).tobytes(),
        array("I", [(base + rank * 919) % VOCAB_SIZE for rank in range(num_top)]).tobytes(),
        array("f", numbers).tobytes(),
        num_top,
    )


def expected_scores(prompt: Sequence[int], num_top: int) -> PromptLogprobs:
    """Log probabilities of all tokens of ``prompt`` but the first, when nothing goes wrong."""
    entries = _entries(prompt)
    return _joined([_score_row(entries[:i], prompt[i], num_top) for i in range(1, len(prompt))])


def _joined(rows: Sequence[PromptLogprobs]) -> PromptLogprobs:
    return PromptLogprobs(
        b"".join(row.logprobs for row in rows),
        b"".join(row.ranks for row in rows),
        b"".join(row.top_ids for row in rows),
        b"".join(row.top_logprobs for row in rows),
        rows[0].num_top if rows else 0,
    )


def expected_tokens(prompt: Sequence[int], count: int, seed: int = 0) -> list[int]:
    """What the fake model generates for ``prompt`` when nothing goes wrong."""
    context, entries = list(prompt), _entries(prompt)
    for _ in range(count):
        context.append(next_token(entries, seed))
        entries.append(_hash(entries[-1], context[-1]))
    return context[len(prompt) :]


def expected_beams(prompt: Sequence[int], params: BeamParams, count: int, max_tokens: int) -> list[list[int]]:
    """The ``count`` best sequences that a beam search finds when nothing goes wrong."""
    search = BeamSearch(params, frozenset(), max_tokens)
    beams: list[list[int]] = [[]]
    while not search.done:
        rows = [candidates(_entries([*prompt, *beam]), search.num_candidates) for beam in beams]
        beams = [[*beams[survivor.parent], survivor.token_id] for survivor in search.advance(rows)]
    return [[token.token_id for token in result.tokens] for result in search.best(count)]


class FakeMemory:
    """The slots of every tier. ``copy`` and ``spoil`` are what a mover does with them.

    ``disk_table`` is what a restart reads.
    """

    def __init__(self, block_size: int, num_blocks: dict[Tier, int]) -> None:
        self.block_size = block_size
        self.slots: dict[Tier, list[list[int | None]]] = {
            tier: [[None] * block_size for _ in range(count)] for tier, count in num_blocks.items()
        }
        self.disk_names: dict[int, BlockHash] = {}  # as a record's header says
        self.disk_table: dict[int, BlockLabel] = {}

    def copy(self, job: TransferJob) -> TransferOutcome:
        if job.kind.target is Tier.DISK:
            assert job.label is not None
            self.disk_names[job.target] = job.label.name
            self.disk_table[job.target] = job.label
        elif job.kind.source is Tier.DISK:
            assert job.label is not None
            if self.disk_names.get(job.source) != job.label.name:
                return TransferOutcome.CORRUPT
        self.slots[job.kind.target][job.target][:] = self.slots[job.kind.source][job.source]
        return TransferOutcome.DONE

    def erase(self, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            self.disk_table.pop(block, None)

    def spoil(self, job: TransferJob) -> None:
        self.slots[job.kind.target][job.target][:] = [-job.transfer_id] * self.block_size


class FakeKvExecutor:
    """Executor over the device blocks of a ``FakeMemory``."""

    def __init__(self, memory: FakeMemory) -> None:
        self.num_computed_tokens = 0
        self.max_batch = 0
        self.broken: set[str] = set()  # sequences whose logits shall not be finite
        self._slots = memory.slots[Tier.DEVICE]
        self._block_size = memory.block_size

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        self.max_batch = max(self.max_batch, len(plan.chunks))
        for copy in plan.copies:
            self._slots[copy.target][:] = self._slots[copy.source]
        for chunk in plan.chunks:
            for offset, token in enumerate(chunk.token_ids):
                self._compute(chunk, chunk.start + offset, token)
            self.num_computed_tokens += len(chunk.token_ids)
        return StepOutput(
            samples=tuple(self._sample(chunk) for chunk in plan.chunks if chunk.sample is not None),
            scores=tuple(self._score(chunk) for chunk in plan.chunks if chunk.score is not None),
        )

    def _compute(self, chunk: ScheduledChunk, position: int, token: int) -> None:
        before = self._read(chunk, position - 1) if position else None
        block = chunk.block_table[position // self._block_size]
        self._slots[block][position % self._block_size] = _hash(before, token)

    def _read(self, chunk: ScheduledChunk, position: int) -> int:
        block = chunk.block_table[position // self._block_size]
        entry = self._slots[block][position % self._block_size]
        assert entry is not None, "read a slot that was never computed"
        return entry

    def _score(self, chunk: ScheduledChunk) -> Score:
        ask = chunk.score
        assert ask is not None
        stop = ask.start + len(ask.token_ids)
        assert chunk.start <= ask.start < stop <= chunk.start + len(chunk.token_ids)
        if chunk.sequence_id in self.broken:
            return Score(chunk.sequence_id, None)
        entries = [self._read(chunk, position) for position in range(stop)]
        rows = [
            _score_row(entries[: ask.start + i + 1], token, ask.num_top)
            for i, token in enumerate(ask.token_ids)
        ]
        return Score(chunk.sequence_id, _joined(rows))

    def _sample(self, chunk: ScheduledChunk) -> Sample:
        length = chunk.start + len(chunk.token_ids)
        ask = chunk.sample
        assert ask is not None
        assert ask.position == length
        if chunk.sequence_id in self.broken:
            return Sample(chunk.sequence_id, ())
        entries = [self._read(chunk, position) for position in range(length)]
        if ask.num_candidates:
            return Sample(chunk.sequence_id, candidates(entries, ask.num_candidates))
        tokens = [next_token(entries, seed) for seed in ask.seeds]
        allowed = [VOCAB_SIZE - 1 if token in ask.banned_token_ids else token for token in tokens]
        return Sample(chunk.sequence_id, tuple(map(SampledToken, allowed)))
