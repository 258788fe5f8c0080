"""What is asked of a server, from settings to a plan. Pure: the same settings and salt make the same plan.

``seed`` decides lengths, times and who leaves; ``salt`` decides the words and nothing else. Each kind of
chance has a generator of its own, so that another rate leaves lengths as they are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from loadtest import arrivals
from loadtest.drafts import Draft, Drafts, Room, Wanted, drawn, replayed
from loadtest.habits import Habits
from loadtest.plan import Conversation, Load, Plan, PlannedRequest
from loadtest.prompts import Part, Prompts, Words, block_part
from loadtest.spec import Arrival, WorkloadError, WorkloadSpec, check, habits_of, lengths_of

_WARMUP_USERS = 4
_ROUNDING = 1e-9  # of a rate times a duration


def make_plan(
    spec: WorkloadSpec,
    *,
    rate: float | None,
    salt: str,
    words: Words,
    room: Room,
    fitting: Room | None = None,
) -> Plan:
    """A repeat's requests, texts and all. ``rate``: conversations a second; of a trace it scales the times.

    Under a closed load that has a duration there are at most as many as the settings say. ``room`` is the
    server's; ``fitting`` decides which requests fit, where that is not this server alone. Raises
    WorkloadError.
    """
    arrival = spec.arrival_at(rate)
    check(spec, rate)
    habits = habits_of(spec)
    drafts = _drafts(spec, _wanted(spec, arrival, rate), fitting or room)
    is_timed = arrival is Arrival.CLOSED and spec.duration_s is not None
    if not is_timed or not drafts.conversations:
        _check_enough(drafts)
    schedule = _schedule(spec, arrival, rate, drafts.conversations)
    return Plan(
        _written(spec, habits, drafts.conversations, schedule, room, Prompts(words, salt)),
        Load.CLOSED if arrival is Arrival.CLOSED else Load.OPEN,
        schedule.asked_rate,
        spec.max_concurrency,
        drafts.dropped,
        spec.duration_s if is_timed and spec.duration_s is not None else math.inf,
        schedule.scale if arrival is Arrival.TRACE else None,
    )


def warmup_plan(
    spec: WorkloadSpec,
    *,
    num_requests: int,
    salt: str,
    words: Words,
    room: Room,
) -> Plan:
    """Requests like those of the plan, under a closed load, with other words.

    They are single ones whose clients read to the end, and fewer than ``num_requests`` where the trace has no
    more. Raises WorkloadError.
    """
    users = min(num_requests, spec.max_concurrency or _WARMUP_USERS)
    calm = replace(
        spec, num_requests=num_requests, sessions=None, duration_s=None, arrival=Arrival.CLOSED,
        burstiness=1.0, ramp_to=None, max_concurrency=users, think_s="0", return_s=None,
        leave_share=0.0, slow_share=0.0,
    )  # fmt: skip
    check(calm, None)
    drafts = _drafts(calm, Wanted(conversations=num_requests), room)
    if not drafts.conversations:
        raise WorkloadError(_nothing_fits(room))
    singles = [conversation[:1] for conversation in drafts.conversations]
    schedule = _schedule(calm, Arrival.CLOSED, None, singles)
    prompts = Prompts(words, f"{salt} warm-up")
    written = _written(calm, habits_of(calm), singles, schedule, room, prompts)
    return Plan(written, Load.CLOSED, None, users, drafts.dropped)


# ---- how many, how long ----------------------------------------------------------------------------


def _wanted(spec: WorkloadSpec, arrival: Arrival, rate: float | None) -> Wanted:
    if spec.duration_s is None or arrival is Arrival.CLOSED:
        assert not spec.is_drawn or spec.sessions or spec.num_requests, "nothing would end the drawing"
        return Wanted(spec.sessions, spec.num_requests)
    if rate is None:
        return Wanted(spec.sessions, spec.num_requests, until_s=spec.duration_s / spec.trace_scale)
    mean_rate = rate if spec.ramp_to is None else (rate + spec.ramp_to) / 2
    begun = max(1, math.ceil(mean_rate * spec.duration_s - _ROUNDING))
    return Wanted(begun if spec.sessions is None else min(begun, spec.sessions), spec.num_requests)


def _drafts(spec: WorkloadSpec, wanted: Wanted, room: Room) -> Drafts:
    rng = random.Random(f"{spec.seed} lengths")
    return (drawn if spec.is_drawn else replayed)(lengths_of(spec), room, wanted, rng)


def _check_enough(drafts: Drafts) -> None:
    """Raises WorkloadError where there are fewer that fit than were asked for."""
    wanted = drafts.wanted
    if not drafts.conversations:
        raise WorkloadError(_nothing_fits(drafts.room))
    if drafts.is_enough or (wanted.conversations, wanted.requests) == (None, None):
        return
    if wanted.requests is not None:
        asked, there = f"{wanted.requests} requests", drafts.num_requests
    else:
        asked, there = f"{wanted.conversations} conversations", len(drafts.conversations)
    raise WorkloadError(
        f"Of the {asked} that were asked for only {there} are there and fit the server's window."
    )


def _nothing_fits(room: Room) -> str:
    window = "" if room.max_model_len is None else f" in the server's window of {room.max_model_len} tokens"
    return (
        f"No request of these lengths fits{window}; the template alone takes {room.cost.first} of a prompt."
    )


# ---- when ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Schedule:
    """When conversations begin; under a closed load there are no ``starts``."""

    starts: Sequence[float] | None
    asked_rate: float | None
    scale: float  # times the trace's times


def _schedule(
    spec: WorkloadSpec, arrival: Arrival, rate: float | None, conversations: Sequence[Sequence[Draft]]
) -> _Schedule:
    if arrival is Arrival.CLOSED:
        return _Schedule(None, None, spec.trace_scale)
    if arrival is Arrival.TRACE:
        return _trace_schedule(spec, rate, conversations)
    assert rate is not None
    if arrival is Arrival.CONSTANT:
        offsets = arrivals.constant(len(conversations))
    else:
        rng = random.Random(f"{spec.seed} arrivals")
        offsets = arrivals.gamma(len(conversations), spec.burstiness, rng)
    if spec.ramp_to is None:
        return _Schedule(arrivals.at_rate(offsets, rate), rate, spec.trace_scale)
    starts = arrivals.on_ramp(offsets, rate, spec.ramp_to)
    return _Schedule(starts, arrivals.mean_rate(starts), spec.trace_scale)


def _trace_schedule(
    spec: WorkloadSpec, rate: float | None, conversations: Sequence[Sequence[Draft]]
) -> _Schedule:
    times = [conversation[0].at_s or 0.0 for conversation in conversations]
    offsets = [at_s - times[0] for at_s in times]
    own_rate = arrivals.mean_rate(offsets)
    if rate is not None and own_rate is None:
        raise WorkloadError("All requests of the trace come at once, so that they have no rate to scale.")
    scale = spec.trace_scale if rate is None or own_rate is None else own_rate / rate
    starts = [offset * scale for offset in offsets]
    return _Schedule(starts, arrivals.mean_rate(starts) if rate is None else rate, scale)


# ---- the requests themselves -----------------------------------------------------------------------


def _written(
    spec: WorkloadSpec,
    habits: Habits,
    conversations: Sequence[Sequence[Draft]],
    schedule: _Schedule,
    room: Room,
    prompts: Prompts,
) -> tuple[Conversation, ...]:
    beginnings = habits.beginnings(conversations, schedule.starts, schedule.scale)
    readings = habits.readings(conversations)
    prefixes = random.Random(f"{spec.seed} prefixes")
    index = count()
    written = []
    for number, turns in enumerate(conversations):
        prefix = prefixes.randrange(spec.num_prefixes) if spec.num_prefixes else 0
        planned = [
            PlannedRequest(
                next(index),
                _text(
                    prompts, room.num_words(turn, draft), _shared(spec, draft, turn, prefix), (number, turn)
                ),
                draft.input_len,
                draft.output_len,
                beginnings[number][turn].at_s,
                beginnings[number][turn].think_s,
                spec.n,
                readings[number][turn],
            )
            for turn, draft in enumerate(turns)
        ]
        written.append(Conversation(tuple(planned)))
    return tuple(written)


def _text(prompts: Prompts, num_words: int, shared: Iterator[Part], place: tuple[int, int]) -> str:
    """What the prompt shares, then words that no other has, as many as there could be."""
    number, turn = place
    return prompts.text(num_words, (*shared, Part(f"own {number} {turn}", num_words, is_shared=False)))


def _shared(spec: WorkloadSpec, draft: Draft, turn: int, prefix: int) -> Iterator[Part]:
    if spec.num_prefixes and not turn:
        yield Part(f"prefix {prefix}", spec.prefix_len)
    for block_id in draft.block_ids:
        yield block_part(block_id, draft.block_len)
