"""What is to be asked, when, and how its answer is read. Values only: made before the clock starts.

Lengths are tokens as the server counts them; times are seconds from the start of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Load(Enum):
    """Who decides when a request is sent."""

    OPEN = "open"  # a schedule, whatever the server does
    CLOSED = "closed"  # the end of the one before it: a fixed number of users


@dataclass(frozen=True, slots=True)
class Reading:
    """How a client takes its answer: it may leave after some tokens, and may pause after each piece."""

    leave_after: float = math.inf  # tokens, of the first choice
    pause_s: float = 0.0


READ_ALL = Reading()


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request. ``text`` is all of its prompt, or what its turn adds to the session's history."""

    index: int  # its place in the plan
    text: str
    input_len: int  # tokens of ``text`` with what the server's template puts around it
    output_len: int  # tokens of each choice, forced where the server can
    at_s: float | None = None  # intended time; None: when whoever sends it gets there
    think_s: float = 0.0  # pause between the end of the turn before it and its intended time
    n: int = 1
    reading: Reading = READ_ALL


@dataclass(frozen=True, slots=True)
class Conversation:
    """Requests of which each needs the answer to the one before it; mostly there is but one."""

    turns: tuple[PlannedRequest, ...]

    def __post_init__(self) -> None:
        assert self.turns


@dataclass(frozen=True, slots=True)
class Plan:
    """A run's requests in the order in which they are intended.

    ``asked_rate`` is what the user asked for, in conversations a second (of single requests: requests); of a
    ramp the mean, of a trace's own times what they make. It is exactly (count - 1) / (last start - first).
    None where all start at once, and under a closed load, where ``max_concurrency`` is the number of users.
    Under an open one that is a cap.
    """

    conversations: tuple[Conversation, ...]
    load: Load
    asked_rate: float | None = None
    max_concurrency: int | None = None
    dropped: int = 0  # rows of a trace, or draws, that do not fit the server's context window
    stop_s: float = math.inf  # of a closed load: nothing is intended from then on
    time_scale: float | None = None  # by which a trace's times were multiplied, where these are the schedule

    @property
    def requests(self) -> Sequence[PlannedRequest]:
        return [turn for conversation in self.conversations for turn in conversation.turns]
