"""An executor that keeps token ids where a model keeps K/V, so that any paging fault changes the text.

Every computed token is written into its block's slot together with its position. The next token is
a hash of the whole context *as read back through the block table*: a block that was reused too
early, shared wrongly, or never computed gives other tokens than ``expected_tokens``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from engine.schedule import SampledToken, ScheduledChunk, SchedulerOutput, StepOutput

VOCAB_SIZE = 1000


def next_token(context: Sequence[int]) -> int:
    """The token that the fake model draws after ``context``."""
    digest = hashlib.blake2b(repr(list(context)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB_SIZE


def expected_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """What the fake model generates for ``prompt`` when nothing goes wrong."""
    context = list(prompt)
    for _ in range(count):
        context.append(next_token(context))
    return context[len(prompt) :]


class FakeKvExecutor:
    """Executor over ``num_blocks`` blocks of ``block_size`` token slots."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_computed_tokens = 0
        self.max_batch = 0
        self._slots: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self._block_size = block_size

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        self.max_batch = max(self.max_batch, len(plan.chunks))
        for chunk in plan.chunks:
            for offset, token in enumerate(chunk.token_ids):
                self._write(chunk, chunk.start + offset, token)
            self.num_computed_tokens += len(chunk.token_ids)
        return StepOutput(
            samples=tuple(self._sample(chunk) for chunk in plan.chunks if chunk.sample is not None)
        )

    def _write(self, chunk: ScheduledChunk, position: int, token: int) -> None:
        block = chunk.block_table[position // self._block_size]
        self._slots[block][position % self._block_size] = token

    def _sample(self, chunk: ScheduledChunk) -> SampledToken:
        length = chunk.start + len(chunk.token_ids)
        assert chunk.sample is not None
        assert chunk.sample.position == length
        context = [
            self._slots[chunk.block_table[position // self._block_size]][position % self._block_size]
            for position in range(length)
        ]
        assert None not in context, "read a slot that was never computed"
        token = next_token([token for token in context if token is not None])
        if token in chunk.sample.banned_token_ids:
            token = VOCAB_SIZE - 1
        return SampledToken(request_id=chunk.request_id, token_id=token, logprobs=None)
