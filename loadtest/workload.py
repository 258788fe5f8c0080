"""What is asked of a server, from settings to a plan. Pure: the same settings and salt make the same plan.

``seed`` decides lengths, times and who leaves; ``salt`` decides the words and nothing else. Each kind of
chance has a generator of its own, so that another rate leaves lengths as they are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import count

from loadtest import arrivals
from loadtest.drafts import Draft, Drafts, LengthSource, Room, Wanted, drawn, replayed
from loadtest.habits import Habits
from loadtest.plan import Conversation, Load, Plan, PlannedRequest
from loadtest.prompts import Part, Prompts, Words, block_part
from loadtest.spreads import Spread, SpreadError, parse_seconds, parse_tokens
from loadtest.traces import Trace

BY_TRACE = "trace"  # as a length: that of the trace's row
_INPUT_LEN = "512"
_OUTPUT_LEN = "128"
_WARMUP_USERS = 4
EACH_USER = 4  # of a closed load asks at least as often, where nobody says how often
_ROUNDING = 1e-9  # of a rate times a duration


class WorkloadError(ValueError):
    """The settings make no workload, or not for this server. The message is one plain sentence."""


class Arrival(StrEnum):
    """How requests come."""

    POISSON = "poisson"
    GAMMA = "gamma"  # with ``burstiness``
    CONSTANT = "constant"
    TRACE = "trace"  # at the trace's own times
    CLOSED = "closed"  # when a user is free


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Everything about what is asked but the rate. Spreads are written as ``loadtest.spreads`` has them.

    A length that is None is the trace's, or without a trace 512 and 128. ``arrival`` None: the trace's times
    if it has some, else random ones at the rate, or where there is no rate, a closed load.
    """

    input_len: str | None = None
    output_len: str | None = None
    later_input_len: str | None = None  # what a later turn adds; None: as input_len
    trace: Trace | None = None
    trace_scale: float = 1.0  # times the trace's times; less makes it denser
    num_requests: int | None = None  # None: all of the trace, or as many as sessions or duration make
    sessions: int | None = None  # conversations
    duration_s: float | None = None  # in which conversations begin; of a closed load, requests
    arrival: Arrival | None = None
    burstiness: float = 1.0  # shape of the gamma distribution of gaps: 1 is Poisson, less is burstier
    ramp_to: float | None = None  # the rate goes linearly from the one asked for to this
    max_concurrency: int | None = None  # of a closed load: its users
    num_prefixes: int = 0
    prefix_len: int = 0  # tokens, before the prompt and beyond its length
    turns: str = "1"
    think_s: str = "0"  # between an answer and the same user's next request
    return_s: str | None = None  # between the starts of two turns; the later of this and the pause counts
    n: int = 1
    leave_share: float = 0.0  # of the conversations: in the last turn the client leaves on the way
    slow_share: float = 0.0  # of the conversations: the client pauses after each piece
    slow_pause_s: float = 0.2
    seed: int = 0

    def as_json(self) -> dict[str, str | int | float | bool | None]:
        """Every setting, defaults too; the trace by its name and its digest."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found["input_len"] = self.input_len or self.default_input_len
        found["output_len"] = self.output_len or self.default_output_len
        found["trace"] = self.trace and self.trace.name
        found["trace_sha256"] = self.trace and self.trace.sha256
        found["trace_unanswered"] = self.trace and self.trace.unanswered
        found["arrival"] = self.arrival and self.arrival.value
        return found

    def arrival_at(self, rate: float | None) -> Arrival:
        """How requests come if they are asked for at this rate."""
        if self.arrival is not None:
            return self.arrival
        if self.trace is not None and self.trace.has_times and not self.is_drawn:
            return Arrival.TRACE
        if rate is None:
            return Arrival.CLOSED
        return Arrival.POISSON if self.burstiness == 1 else Arrival.GAMMA

    @property
    def is_drawn(self) -> bool:
        """Whether lengths are drawn; else the rows of a trace are taken in their order."""
        return self.trace is None or not self.trace.is_ordered or self.turns != "1"

    @property
    def has_conversations(self) -> bool:
        """Whether requests are turns of some; else each is one of its own."""
        of_trace = self.trace is not None and self.trace.has_sessions
        return self.sessions is not None or self.turns != "1" or of_trace

    @property
    def default_input_len(self) -> str:
        return _INPUT_LEN if self.trace is None else BY_TRACE

    @property
    def default_output_len(self) -> str:
        return _OUTPUT_LEN if self.trace is None else BY_TRACE


def of_repeat(spec: WorkloadSpec, repeat: int) -> WorkloadSpec:
    """The same with a seed of its own, which of the first is the one that was given.

    Repeats with the same lengths and times would be one sample, taken several times: one burst would look
    like a rule. A trace that is replayed in its order stays what it is.
    """
    if not repeat:
        return spec
    return replace(spec, seed=random.Random(f"{spec.seed} repeat {repeat}").getrandbits(32))


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
    habits = _habits(spec)
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
    written = _written(calm, _habits(calm), singles, schedule, room, prompts)
    return Plan(written, Load.CLOSED, None, users, drafts.dropped)


# ---- what can be asked for -------------------------------------------------------------------------


def check(spec: WorkloadSpec, rate: float | None) -> None:
    """Raises WorkloadError for what makes no workload for any server: what cannot be read, or contradicts."""
    arrival = spec.arrival_at(rate)
    faults = _closed_faults(spec, rate) if arrival is Arrival.CLOSED else _open_faults(spec, arrival, rate)
    for fault in (*_number_faults(spec, rate), *faults, *_content_faults(spec)):
        raise WorkloadError(fault)
    _lengths(spec)
    _habits(spec)


def _number_faults(spec: WorkloadSpec, rate: float | None) -> Iterator[str]:
    counts = (spec.num_requests, spec.sessions, spec.max_concurrency, spec.n)
    if any(number is not None and number < 1 for number in counts):
        yield "Numbers of requests, sessions, users and choices start at 1."
    amounts = (rate, spec.ramp_to, spec.duration_s, spec.trace_scale, spec.burstiness)
    if any(amount is not None and not 0 < amount < math.inf for amount in amounts):
        yield "Rates, times, scales and burstiness must be above 0."
    if min(spec.num_prefixes, spec.prefix_len, spec.leave_share, spec.slow_share, spec.slow_pause_s) < 0:
        yield "Prefixes, shares and pauses cannot be below 0."


def _closed_faults(spec: WorkloadSpec, rate: float | None) -> Iterator[str]:
    if rate is not None:
        yield "A closed load has no rate: its users send when they are free."
    if not spec.max_concurrency:
        yield "Say at what rate requests come, or how many users there are."
    if spec.return_s is not None:
        yield "Users of a closed load come back when they have thought: give a think time instead."
    if spec.burstiness != 1 or spec.ramp_to is not None:
        yield "A closed load has neither burstiness nor a ramp."


def _open_faults(spec: WorkloadSpec, arrival: Arrival, rate: float | None) -> Iterator[str]:
    by_trace = arrival is Arrival.TRACE
    if by_trace and (spec.trace is None or not spec.trace.has_times or spec.is_drawn):
        yield "There are no times of a trace to go by: give a trace that has some, and leave turns to it."
    if by_trace and rate is not None and spec.trace_scale != 1:
        yield "Give a rate or a scale of the trace's times, not both."
    if not by_trace and rate is None:
        yield f"Arrivals that are {arrival.value} need a rate."
    if arrival is not Arrival.GAMMA and spec.burstiness != 1:
        yield f"Burstiness is of gamma arrivals; these are {arrival.value}."
    if spec.ramp_to is not None and by_trace:
        yield "The trace's own times have no ramp."


def _content_faults(spec: WorkloadSpec) -> Iterator[str]:
    trace = spec.trace
    if spec.turns != "1" and trace is not None and (trace.has_blocks or trace.has_sessions):
        yield "The trace has its own turns or shared prompts: no other turns can be made of its lengths."
    if spec.num_prefixes and trace is not None and trace.has_blocks and spec.input_len in (None, BY_TRACE):
        yield "The trace says itself which prompts begin alike: it takes no further prefixes."
    if (spec.prefix_len > 0) != (spec.num_prefixes > 0):
        yield "Shared prefixes need both a number and a length."
    if spec.sessions is not None and spec.num_requests is not None:
        yield "Say how many sessions or how many requests, not both."
    if spec.is_drawn and (spec.num_requests, spec.sessions, spec.duration_s) == (None, None, None):
        yield "Say how many requests, how many sessions, or for how long."
    if spec.leave_share + spec.slow_share > 1:
        yield "More clients leave or read slowly than there are."


def _spread(text: str, what: str, parse: Callable[[str], Spread] = parse_tokens) -> Spread:
    try:
        return parse(text)
    except SpreadError as error:
        raise WorkloadError(f"{what}: {error}") from None


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
    return (drawn if spec.is_drawn else replayed)(_lengths(spec), room, wanted, rng)


def _lengths(spec: WorkloadSpec) -> LengthSource:
    return LengthSource(
        spec.trace,
        _length(spec, spec.input_len or spec.default_input_len, "Prompt length"),
        _length(spec, spec.output_len or spec.default_output_len, "Answer length"),
        None if spec.later_input_len is None else _spread(spec.later_input_len, "Length of a later turn"),
        _spread(spec.turns, "Turns"),
        spec.prefix_len,
    )


def _length(spec: WorkloadSpec, text: str, what: str) -> Spread | None:
    """None for what the trace has."""
    if text != BY_TRACE:
        return _spread(text, what)
    if spec.trace is None:
        raise WorkloadError(f"{what}: there is no trace to take it from.")
    return None


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
                prompts.text(room.num_words(turn, draft), _parts(spec, draft, number, turn, prefix)),
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


def _habits(spec: WorkloadSpec) -> Habits:
    return Habits(
        _spread(spec.think_s, "Think time", parse_seconds),
        None if spec.return_s is None else _spread(spec.return_s, "Return time", parse_seconds),
        spec.leave_share,
        spec.slow_share,
        spec.slow_pause_s,
        spec.seed,
    )


def _parts(spec: WorkloadSpec, draft: Draft, number: int, turn: int, prefix: int) -> Iterator[Part]:
    """What the prompt shares, then words that no other has, as many as there could be."""
    if spec.num_prefixes and not turn:
        yield Part(f"prefix {prefix}", spec.prefix_len)
    for block_id in draft.block_ids:
        yield block_part(block_id, draft.block_len)
    yield Part(f"own {number} {turn}", draft.input_len, is_shared=False)
