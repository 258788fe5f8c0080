"""What a group of sequences starts from: its own slots on host, or the longest prefix that somebody computed.

Runs on: step thread, sole owner. Pure queries; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiering.parking import Parking
from tiering.planner import Plan, RestorePlanner
from tiering.tables import Member, ParkedTable, Refusal


@dataclass(frozen=True, slots=True)
class Intake:
    """A plan for each sequence that was swapped out (``is_parked``), or one for the first sequence alone."""

    plans: Sequence[Plan]
    is_parked: bool


def plan_intake(
    members: Sequence[Member],
    planner: RestorePlanner,
    parking: Parking,
    block_size: int,
    *,
    may_load: bool,
) -> Intake | Refusal:
    """What to use of what there is; PENDING if part of it is on its way for another.

    A hit is capped at the last full block before the last token: there is always something to compute.
    """
    parked = [parking.tables().get(member.sequence_id) for member in members]
    tables = [table for table in parked if table is not None]
    if may_load and len(tables) == len(members):
        found = _plan_parked(members, tables, planner)
        if found is not None:
            return found
    first = members[0]
    limit = (first.num_tokens - 1) // block_size
    sources = planner.match(first.names, limit, below_device=may_load)
    if sources is None:
        return Refusal.PENDING
    return Intake([planner.plan(sources, len(sources) * block_size)], is_parked=False)


def _plan_parked(
    members: Sequence[Member], tables: Sequence[ParkedTable], planner: RestorePlanner
) -> Intake | Refusal | None:
    """None: what is in the slots had better be computed."""
    found = []
    for table, member in zip(tables, members, strict=True):
        sources = planner.match_parked(table, member.names)
        if sources is None:
            return Refusal.PENDING
        found.append(sources)
    counts = [table.num_tokens for table in tables]
    if len(members) == 1:
        return Intake([planner.plan(found[0], counts[0])], is_parked=True)
    plans = planner.plan_group(found, counts)
    return None if plans is None else Intake(plans, is_parked=True)
