"""Recounts what does not add up between requests, queues and block tables. Pure; for tests and on request."""

from __future__ import annotations

from collections.abc import Iterator

from engine.queues import RequestQueues
from engine.request import Request, RequestStatus
from tiering.block_manager import BlockManager

_WITH_SLOTS = (RequestStatus.SWAPPING_OUT, RequestStatus.SWAPPED)
_MAYBE_WITH_SLOTS = (RequestStatus.SWAPPING_IN, RequestStatus.RESTORING)


def check(queues: RequestQueues, num_paused: int, blocks: BlockManager) -> list[str]:
    """Sentences about what does not add up; empty if all is well."""
    problems = []
    if not all(queues.is_in_one_place(request) for request in queues):
        problems.append("a request is in no queue, or in two")
    if {*queues.running, *queues.restoring} != set(blocks.tables()):
        problems.append("the running and restoring requests are not those that have block tables")
    if num_paused != sum(request.paused for request in queues):
        problems.append("the count of paused requests is off")
    for request in queues:
        problems += _check_request(request, blocks)
    return problems


def _check_request(request: Request, blocks: BlockManager) -> Iterator[str]:
    request_id, status = request.request_id, request.status
    if blocks.is_parked(request_id) != (status in _WITH_SLOTS) and status not in _MAYBE_WITH_SLOTS:
        yield f"request {request_id} is {status.value}, against its host slots"
    if request_id in blocks.tables():
        held = len(blocks.block_table(request_id)) * blocks.block_size
        if not 0 <= request.num_computed_tokens <= min(held, request.num_tokens):
            yield f"request {request_id} computed {request.num_computed_tokens} of {held} slots"
