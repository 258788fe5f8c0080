"""What one WebSocket of /v1/responses keeps account of: turns, steers, and what is to be done about them.

Pure. Turns and steers live by the tables here: a move that is not in them raises and changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeVar

from gateway.errors import ApiError
from gateway.protocol.ws_events import Create, Resume, Steer


class NumberedEvent(Protocol):
    """One of a response's events. ``data`` is its JSON, which ends with ``}``."""

    @property
    def sequence_number(self) -> int: ...

    @property
    def data(self) -> bytes: ...

    @property
    def is_last(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WsLimits:
    """Of one connection. ``max_queued`` turns wait; all that have not started have ``max_queued_bytes``.

    ``max_steers`` steers, of ``max_steer_bytes``, have not come to anything yet.
    """

    max_lanes: int = 32
    max_active: int = 16
    max_queued: int = 64
    max_queued_bytes: int = 16 * 2**20
    max_steers: int = 32
    max_steer_bytes: int = 2**20


# ---- the tables --------------------------------------------------------------------------------


class TurnState(enum.Enum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    OVER = "over"


class TurnMove(enum.Enum):
    BEGIN = "begin"
    STARTED = "started"
    REFUSED = "refused"
    ENDED = "ended"
    DROPPED = "dropped"


class SteerState(enum.Enum):
    """Its response runs; that waits for its calls' results; a turn carries it; and how it ended."""

    ACCEPTED = "accepted"
    PENDING = "pending"
    CARRIED = "carried"
    COMMITTED = "committed"
    FAILED = "failed"


class SteerMove(enum.Enum):
    WAIT = "wait"
    CARRY = "carry"
    COMMIT = "commit"
    FAIL = "fail"


State = TypeVar("State", TurnState, SteerState)
Move = TypeVar("Move", TurnMove, SteerMove)
TURNS: Mapping[tuple[TurnState, TurnMove], TurnState] = MappingProxyType(
    {
        (TurnState.QUEUED, TurnMove.BEGIN): TurnState.STARTING,
        (TurnState.QUEUED, TurnMove.DROPPED): TurnState.OVER,
        (TurnState.STARTING, TurnMove.STARTED): TurnState.RUNNING,
        (TurnState.STARTING, TurnMove.REFUSED): TurnState.OVER,
        (TurnState.RUNNING, TurnMove.REFUSED): TurnState.OVER,
        (TurnState.RUNNING, TurnMove.ENDED): TurnState.OVER,
    }
)
STEERS: Mapping[tuple[SteerState, SteerMove], SteerState] = MappingProxyType(
    {
        (SteerState.ACCEPTED, SteerMove.WAIT): SteerState.PENDING,
        (SteerState.ACCEPTED, SteerMove.CARRY): SteerState.CARRIED,
        (SteerState.ACCEPTED, SteerMove.FAIL): SteerState.FAILED,
        (SteerState.PENDING, SteerMove.CARRY): SteerState.CARRIED,
        (SteerState.CARRIED, SteerMove.COMMIT): SteerState.COMMITTED,
        (SteerState.CARRIED, SteerMove.FAIL): SteerState.FAILED,
    }
)


class IllegalMoveError(RuntimeError):
    """A fault of ours; nothing has changed."""


def _next(table: Mapping[tuple[State, Move], State], state: State, move: Move) -> State:
    try:
        return table[state, move]
    except KeyError:
        raise IllegalMoveError(f"{move.value} while {state.value}") from None


@dataclass(slots=True, eq=False)
class Steering:
    """One accepted steer."""

    id: str
    steer: Steer
    state: SteerState = SteerState.ACCEPTED

    def move(self, move: SteerMove) -> None:
        self.state = _next(STEERS, self.state, move)


@dataclass(slots=True, eq=False)
class Turn:
    """One thing that a lane does: a response to make, or one to tell again.

    ``steers`` are for the response that it makes, ``carried`` those whose input it brings. ``last_number``
    is that of the last event told.
    """

    asked: Create | Resume
    num_bytes: int = 0
    follows_by_itself: bool = False
    state: TurnState = TurnState.QUEUED
    response_id: str | None = None
    last_number: int = 0
    steers: list[Steering] = field(default_factory=list)
    carried: list[Steering] = field(default_factory=list)

    @property
    def lane(self) -> str | None:
        return self.asked.stream_id

    @property
    def previous_id(self) -> str | None:
        return self.asked.previous_response_id if isinstance(self.asked, Create) else None

    def move(self, move: TurnMove) -> None:
        self.state = _next(TURNS, self.state, move)


# ---- what comes out ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say:
    """Send this message."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Begin:
    """Create a response from ``create``, or follow the one that is asked for, and report on it."""

    turn: Turn
    create: Create | None = None


@dataclass(frozen=True, slots=True)
class Interrupt:
    """End what the turn says where it is, for it is steered."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class CancelResponse:
    response_id: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Remember that response no longer."""

    response_id: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close with the code of this error; nothing comes after it."""

    error: ApiError


Action = Say | Begin | Interrupt | CancelResponse | Forget | Close
