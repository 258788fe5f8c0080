"""The settings of a workload, and which of them contradict each other. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from loadtest.drafts import LengthSource
from loadtest.habits import Habits
from loadtest.spreads import Spread, SpreadError, parse_seconds, parse_tokens
from loadtest.traces import Trace

BY_TRACE = "trace"  # as a length: that of the trace's row
_INPUT_LEN = "512"
_OUTPUT_LEN = "128"
EACH_USER = 4  # of a closed load asks at least as often, where nobody says how often
MOST_REQUESTS = 10_000_000  # each is made ready before the clock starts


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


def check(spec: WorkloadSpec, rate: float | None) -> None:
    """Raises WorkloadError for what makes no workload for any server: what cannot be read, or contradicts."""
    arrival = spec.arrival_at(rate)
    faults = _closed_faults(spec, rate) if arrival is Arrival.CLOSED else _open_faults(spec, arrival, rate)
    for fault in (*_number_faults(spec, rate), *faults, *_content_faults(spec)):
        raise WorkloadError(fault)
    lengths_of(spec)
    habits_of(spec)


def _number_faults(spec: WorkloadSpec, rate: float | None) -> Iterator[str]:
    counts = (spec.num_requests, spec.sessions, spec.max_concurrency, spec.n)
    if any(number is not None and number < 1 for number in counts):
        yield "Numbers of requests, sessions, users and choices start at 1."
    if any(number is not None and number > MOST_REQUESTS for number in counts):
        yield f"Numbers of requests, sessions, users and choices end at {MOST_REQUESTS:,}."
    amounts = (rate, spec.ramp_to, spec.duration_s, spec.trace_scale, spec.burstiness)
    if any(amount is not None and not 0 < amount < math.inf for amount in amounts):
        yield "Rates, times, scales and burstiness must be above 0."
    if rate is not None and spec.duration_s is not None and rate * spec.duration_s > MOST_REQUESTS:
        yield f"A rate and a time that make more than {MOST_REQUESTS:,} requests: all are made ready first."
    if min(spec.num_prefixes, spec.prefix_len, spec.leave_share, spec.slow_share, spec.slow_pause_s) < 0:
        yield "Prefixes, shares and pauses cannot be below 0."


def _closed_faults(spec: WorkloadSpec, rate: float | None) -> Iterator[str]:
    if rate is not None:
        yield "A closed load has no rate: its users send when they are free."
    if not spec.max_concurrency:
        yield "Say at what rate requests come, or how many users there are."
    asked = spec.num_requests or spec.sessions
    if spec.max_concurrency and asked is not None and asked < spec.max_concurrency:
        yield f"There are more users than they have to ask: {spec.max_concurrency}, and {asked} to ask."
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


def lengths_of(spec: WorkloadSpec) -> LengthSource:
    """Raises WorkloadError, as does ``habits_of``."""
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


def habits_of(spec: WorkloadSpec) -> Habits:
    return Habits(
        _spread(spec.think_s, "Think time", parse_seconds),
        None if spec.return_s is None else _spread(spec.return_s, "Return time", parse_seconds),
        spec.leave_share,
        spec.slow_share,
        spec.slow_pause_s,
        spec.seed,
    )


def _spread(text: str, what: str, parse: Callable[[str], Spread] = parse_tokens) -> Spread:
    try:
        return parse(text)
    except SpreadError as error:
        raise WorkloadError(f"{what}: {error}") from None
