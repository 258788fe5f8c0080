"""What decodes, kept from step to step: requests of which only the next tokens are left to compute.

Runs on: step thread, sole owner. Pure bookkeeping. From one step to the next nothing changes of such a
request but that each of its sequences is a token longer. So what its chunks are made of is found once, when
it is entered here; as soon as anything else changes, it leaves. ``RequestQueues`` sees to both.
"""

from __future__ import annotations

from collections import abc

from engine.request import SequenceGroup
from engine.schedule import SampleSpec, ScheduledChunk
from engine.sequence import Sequence
from tiering.types import BlockId


class DecodingSequence:
    """A sequence of such a request, with what stays the same of it.

    ``block_table`` is a live view. ``num_writable_tokens``: so many tokens it may have before the block
    manager must be asked for room; 0: it is to be asked.
    """

    __slots__ = ("block_table", "group", "num_writable_tokens", "seeds", "sequence")

    def __init__(self, group: SequenceGroup, sequence: Sequence, block_table: abc.Sequence[BlockId]) -> None:
        self.group = group
        self.sequence = sequence
        self.block_table = block_table
        self.seeds = group.seeds(sequence)
        self.num_writable_tokens = 0

    def chunk(self) -> ScheduledChunk:
        """Its last token, which is to be computed, and the question what follows."""
        group, sequence = self.group, self.sequence
        num_tokens, output_token_ids = sequence.num_tokens, sequence.output_token_ids
        return ScheduledChunk(
            sequence_id=sequence.sequence_id,
            token_ids=(output_token_ids[-1],),
            start=num_tokens - 1,
            block_table=self.block_table,
            sample=SampleSpec(
                params=group.sampling,
                seeds=self.seeds,
                position=num_tokens,
                prompt_token_ids=sequence.prompt_token_ids,
                output_token_ids=output_token_ids,
                banned_token_ids=(),
                cache_salt=group.cache_salt,
            ),
        )


class Decoding:
    """The sequences of all such requests, by id."""

    def __init__(self) -> None:
        self.sequences: dict[str, DecodingSequence] = {}

    def __contains__(self, group: SequenceGroup) -> bool:
        return bool(group.sequences) and group.first.sequence_id in self.sequences

    @property
    def num_seqs(self) -> int:
        return len(self.sequences)

    def enter(self, group: SequenceGroup, block_tables: abc.Iterable[abc.Sequence[BlockId]]) -> None:
        """A request only decodes from now on. ``block_tables`` are its sequences', as long as it is here."""
        for sequence, block_table in zip(group.sequences, block_tables, strict=True):
            self.sequences[sequence.sequence_id] = DecodingSequence(group, sequence, block_table)

    def leave(self, group: SequenceGroup) -> None:
        """If it is here."""
        for sequence in group.sequences:
            self.sequences.pop(sequence.sequence_id, None)

    def without_room(self) -> list[DecodingSequence]:
        """Those for whose last token room is to be asked for."""
        return [
            each for each in self.sequences.values() if each.sequence.num_tokens > each.num_writable_tokens
        ]

    def chunks(self, now: float) -> list[ScheduledChunk]:
        """The next chunk of each. ``now``: seconds, when the step is scheduled."""
        for each in self.sequences.values():
            each.group.idle_since = now
        return [each.chunk() for each in self.sequences.values()]
