"""An executor that keeps chained hashes where a model keeps K/V, so that any paging fault changes the text.

The entry of a position is a hash of its token and of the entry *before it, as read through the block
table*, because a model's K/V depends on the whole history. The next token is a hash of all entries of
the context, read in the same way. A block that was reused too early, shared wrongly, published before
it was computed, or never computed gives other tokens than ``expected_tokens``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from engine.schedule import SampledToken, ScheduledChunk, SchedulerOutput, StepOutput
from tiering.types import BlockHash, Tier, TransferJob, TransferOutcome

VOCAB_SIZE = 1000


def _hash(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "little")


def _entries(tokens: Sequence[int]) -> list[int]:
    entries: list[int] = []
    for token in tokens:
        entries.append(_hash(entries[-1] if entries else None, token))
    return entries


def next_token(entries: Sequence[int]) -> int:
    """The token that the fake model draws after a context with these entries."""
    return _hash(*entries) % VOCAB_SIZE


def expected_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """What the fake model generates for ``prompt`` when nothing goes wrong."""
    context, entries = list(prompt), _entries(prompt)
    for _ in range(count):
        context.append(next_token(entries))
        entries.append(_hash(entries[-1], context[-1]))
    return context[len(prompt) :]


class FakeMemory:
    """The slots of every tier. ``copy`` and ``spoil`` are what a mover does with them."""

    def __init__(self, block_size: int, num_blocks: dict[Tier, int]) -> None:
        self.block_size = block_size
        self.slots: dict[Tier, list[list[int | None]]] = {
            tier: [[None] * block_size for _ in range(count)] for tier, count in num_blocks.items()
        }
        self.disk_names: dict[int, BlockHash] = {}  # as a record's header says

    def copy(self, job: TransferJob) -> TransferOutcome:
        if job.kind.target is Tier.DISK:
            assert job.label is not None
            self.disk_names[job.target] = job.label.name
        elif job.kind.source is Tier.DISK:
            assert job.label is not None
            if self.disk_names.get(job.source) != job.label.name:
                return TransferOutcome.CORRUPT
        self.slots[job.kind.target][job.target][:] = self.slots[job.kind.source][job.source]
        return TransferOutcome.DONE

    def spoil(self, job: TransferJob) -> None:
        self.slots[job.kind.target][job.target][:] = [-job.transfer_id] * self.block_size


class FakeKvExecutor:
    """Executor over the device blocks of a ``FakeMemory``."""

    def __init__(self, memory: FakeMemory) -> None:
        self.num_computed_tokens = 0
        self.max_batch = 0
        self.broken: set[str] = set()  # requests whose logits shall not be finite
        self._slots = memory.slots[Tier.DEVICE]
        self._block_size = memory.block_size

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        self.max_batch = max(self.max_batch, len(plan.chunks))
        for chunk in plan.chunks:
            for offset, token in enumerate(chunk.token_ids):
                self._compute(chunk, chunk.start + offset, token)
            self.num_computed_tokens += len(chunk.token_ids)
        return StepOutput(
            samples=tuple(self._sample(chunk) for chunk in plan.chunks if chunk.sample is not None)
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

    def _sample(self, chunk: ScheduledChunk) -> SampledToken:
        length = chunk.start + len(chunk.token_ids)
        assert chunk.sample is not None
        assert chunk.sample.position == length
        if chunk.request_id in self.broken:
            return SampledToken(request_id=chunk.request_id, token_id=None, logprobs=None)
        token = next_token([self._read(chunk, position) for position in range(length)])
        if token in chunk.sample.banned_token_ids:
            token = VOCAB_SIZE - 1
        return SampledToken(request_id=chunk.request_id, token_id=token, logprobs=None)
