"""Rates while the load was whole. Pure.

A run begins with nothing under way and ends with less and less, so that rates over all of it are too low: a
hundred requests at 2 a second with answers of 30 s make 1.25 a second. Whatever falls into the part between
counts, a request in shares by its pieces: what ends just after that part, or began just before it, is neither
left out nor counted whole.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtest.measured import Measured
from loadtest.results import Steady
from loadtest.timeline import Outcome, Timeline


@dataclass(frozen=True, slots=True)
class _Part:
    """Of a run, and what came in it of requests that completed."""

    from_s: float
    to_s: float
    tokens: float | None  # None: nobody counted them
    requests: float


def steady(runs: Iterable[Measured]) -> Steady | None:
    """Of all runs that had such a part; None where there was none, or nothing came in it."""
    parts = [part for run in runs if (part := _part(run)) is not None]
    if not parts:
        return None
    counted = [part.tokens for part in parts if part.tokens is not None]
    seconds = sum(part.to_s - part.from_s for part in parts)
    return Steady(
        from_ms=statistics.fmean(part.from_s for part in parts) * 1e3,
        to_ms=statistics.fmean(part.to_s for part in parts) * 1e3,
        output_tok_s=sum(counted) / seconds if counted else None,
        request_rate=sum(part.requests for part in parts) / seconds,
    )


def _part(run: Measured) -> _Part | None:
    """Of a run that was interrupted nobody knows what the answers that it cut off would have counted."""
    completed = [timeline for timeline in run.timelines if timeline.outcome is Outcome.COMPLETED]
    if not completed or run.interrupted:
        return None
    from_s, to_s = _whole(run, completed)
    shares = [(timeline, _share_within(timeline, from_s, to_s)) for timeline in completed]
    requests = sum(share for _, share in shares)
    counted = [(share, timeline.usage) for timeline, share in shares if timeline.usage is not None]
    tokens = sum(share * usage.completion_tokens for share, usage in counted) if counted else None
    return _Part(from_s, to_s, tokens, requests) if requests and to_s > from_s else None


def _whole(run: Measured, completed: Sequence[Timeline]) -> tuple[float, float]:
    """From when to when the load was there; not in this order where it never was."""
    begins = [timeline.intended_at for timeline in run.timelines if timeline.turn == 0]
    if run.had_work_until_s is not None:
        return min(begins), run.had_work_until_s
    return min(timeline.ended_at or 0.0 for timeline in completed), max(begins)


def _share_within(timeline: Timeline, from_s: float, to_s: float) -> float:
    """Of its pieces."""
    inside = sum(bisect_right(times, to_s) - bisect_right(times, from_s) for times in timeline.piece_times)
    there = sum(map(len, timeline.piece_times))
    return max(0, inside) / there if there else 0.0
