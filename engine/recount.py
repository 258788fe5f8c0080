"""Recounts what does not add up between requests, queues and block tables. Pure; for tests and on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from engine.queues import RequestQueues
from engine.request import RequestStatus, SequenceGroup
from engine.sequence import Sequence
from engine.sessions import Sessions
from tiering.block_manager import BlockManager

_WITH_SLOTS = (RequestStatus.SWAPPING_OUT, RequestStatus.SWAPPED)
_MAYBE_WITH_SLOTS = (RequestStatus.SWAPPING_IN, RequestStatus.RESTORING)


def check(queues: RequestQueues, blocks: BlockManager, sessions: Sessions) -> list[str]:
    """Sentences about what does not add up; empty if all is well."""
    problems = sessions.problems(Counter(group.session for group in queues if group.is_turn))
    if not all(queues.is_in_one_place(group) for group in queues):
        problems.append("a request is in no queue, or in two")
    if not queues.lines_add_up():
        problems.append("what tenants have in line is off")
    holding = {sequence.sequence_id for group in queues.holding() for sequence in group.sequences}
    if holding != blocks.tables().keys() | blocks.branches().keys():
        problems.append("the sequences of running and restoring requests are not those that have blocks")
    if queues.num_paused != sum(group.paused for group in queues):
        problems.append("the count of paused requests is off")
    for group in queues:
        if not group.sequences:
            problems.append(f"request {group.request_id} lives on without sequences")
        for sequence in group.sequences:
            problems += _check_sequence(group, sequence, blocks)
    return problems


def _check_sequence(group: SequenceGroup, sequence: Sequence, blocks: BlockManager) -> Iterator[str]:
    sequence_id, status = sequence.sequence_id, group.status
    if blocks.is_parked(sequence_id) != (status in _WITH_SLOTS) and status not in _MAYBE_WITH_SLOTS:
        yield f"sequence {sequence_id} is {status.value}, against its host slots"
    if sequence_id in blocks.tables():
        held = len(blocks.block_table(sequence_id)) * blocks.block_size
        if not 0 <= sequence.num_computed_tokens <= min(held, sequence.num_tokens):
            yield f"sequence {sequence_id} computed {sequence.num_computed_tokens} of {held} slots"
