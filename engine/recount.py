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
    if blocks.num_parked_groups != len({queues.group_of(name) for name in blocks.parked_tables()}):
        problems.append("the count of requests with host slots is off")
    if queues.num_paused != sum(group.paused for group in queues):
        problems.append("the count of paused requests is off")
    for group in queues:
        if not group.sequences:
            problems.append(f"request {group.request_id} lives on without sequences")
        for sequence in group.sequences:
            problems += _check_sequence(group, sequence, blocks)
    return [*problems, *_check_decoding(queues, blocks)]


def _check_decoding(queues: RequestQueues, blocks: BlockManager) -> Iterator[str]:
    kept = queues.decoding.sequences
    settled = [group for group in queues.running.values() if group in queues.decoding]
    if kept.keys() != {sequence.sequence_id for group in settled for sequence in group.sequences}:
        yield "the sequences that are known to decode are not those of requests that do"
    for sequence_id, each in kept.items():
        group, sequence = each.group, each.sequence
        if group.paused or not group.only_decodes or each.seeds != group.seeds(sequence):
            yield f"sequence {sequence_id} does not decode, or not as is known"
        if each.block_table is not blocks.block_table(sequence_id):
            yield f"sequence {sequence_id} has another block table than is known"
        num_blocks = each.num_writable_tokens // blocks.block_size
        writable = each.block_table[(sequence.num_tokens - 1) // blocks.block_size : num_blocks]
        is_shared = any(blocks.pool.ref_count(b) > 1 or blocks.pool.label_of(b) is not None for b in writable)
        if is_shared or num_blocks > len(each.block_table):
            yield f"sequence {sequence_id} has less room than is known"
        if blocks.num_published(sequence_id) < sequence.num_computed_tokens // blocks.block_size:
            yield f"sequence {sequence_id} decodes, with full blocks that are not named"


def _check_sequence(group: SequenceGroup, sequence: Sequence, blocks: BlockManager) -> Iterator[str]:
    sequence_id, status = sequence.sequence_id, group.status
    if sequence.num_tokens != len(sequence.prompt_token_ids) + len(sequence.output_token_ids):
        yield f"the count of the tokens of sequence {sequence_id} is off"
    if blocks.is_parked(sequence_id) != (status in _WITH_SLOTS) and status not in _MAYBE_WITH_SLOTS:
        yield f"sequence {sequence_id} is {status.value}, against its host slots"
    if sequence_id in blocks.tables():
        held = len(blocks.block_table(sequence_id)) * blocks.block_size
        if not 0 <= sequence.num_computed_tokens <= min(held, sequence.num_tokens):
            yield f"sequence {sequence_id} computed {sequence.num_computed_tokens} of {held} slots"
