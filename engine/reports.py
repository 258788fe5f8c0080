"""A step's report in parts that each fit a frame. Pure.

Hardly ever is there more than one: log probabilities of many long prompts, or of several beam searches, may
come in the same step, and together be more than a frame holds.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from engine.messages import StepReport, TokenDelta

PART_BYTES = 64 * 2**20  # a quarter of the longest frame; no single delta is as large
_NUMBER_BYTES = 9  # in msgpack, at most
_LOGPROB_NUMBERS = 2  # the list of alternatives begins with its length


def parts(report: StepReport, part_bytes: int = PART_BYTES) -> Iterator[StepReport]:
    """The report itself, or several with its deltas in order. The stages' times are those of the first."""
    sizes = [_num_bytes(delta) for delta in report.deltas]
    if sum(sizes) <= part_bytes:
        yield report
        return
    first, room = 0, part_bytes
    for index, size in enumerate(sizes):
        if size > room and index > first:
            yield _part(report, first, index)
            first, room = index, part_bytes
        room -= size
    yield _part(report, first, len(sizes))


def _part(report: StepReport, first: int, stop: int) -> StepReport:
    stage_seconds = {} if first else report.stage_seconds
    return msgspec.structs.replace(report, deltas=report.deltas[first:stop], stage_seconds=stage_seconds)


def _num_bytes(delta: TokenDelta) -> int:
    """At most what the parts of a delta take that may be long."""
    if delta.logprobs is None and delta.prompt_logprobs is None:
        return len(delta.token_ids) * _NUMBER_BYTES  # as of nearly all
    num_numbers = len(delta.token_ids)
    for entry in delta.logprobs or ():
        num_numbers += _LOGPROB_NUMBERS + 3 * len(entry.top)
    prompt = delta.prompt_logprobs
    packed = () if prompt is None else (prompt.logprobs, prompt.ranks, prompt.top_ids, prompt.top_logprobs)
    return num_numbers * _NUMBER_BYTES + sum(map(len, packed))
