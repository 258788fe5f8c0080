"""One WebSocket of /v1/responses: its lanes, who runs and who waits, and what steering comes to.

Pure: events and news of runs go in, actions come out; ``gateway/websocket.py`` carries them out. A lane takes
its turns one after the other, lanes run beside each other. Bounds are those of ``WsLimits``; what goes
beyond one costs that one event, never the connection.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from gateway.errors import ApiError, ErrorKind
from gateway.protocol import ws_told as told
from gateway.protocol.ws_events import Cancel, ClientEvent, Create, EventError, Resume, Steer
from gateway.protocol.ws_turns import (
    Action,
    Begin,
    CancelResponse,
    Close,
    Forget,
    Interrupt,
    NumberedEvent,
    Say,
    Steering,
    SteerMove,
    Turn,
    TurnMove,
    WsLimits,
)

_MAX_KNOWN = 256  # ended responses whose ids a steer still finds; those that are waited for besides


@dataclass(frozen=True, slots=True)
class _Known:
    """A response that ended on this connection, and the steers that wait for its calls' results."""

    lane: str | None
    is_delivered: bool
    pending: Sequence[Steering] = ()


class WsSession:
    """``held_bytes`` is what it keeps of what the client sent."""

    __slots__ = (
        "_body_bytes", "_busy", "_known", "_leaving", "_limits", "_names", "_num_steers", "_queue",
        "_running", "_steer_bytes", "is_closed",
    )  # fmt: skip

    def __init__(self, limits: WsLimits) -> None:
        self._limits = limits
        self._busy: dict[str | None, Turn] = {}  # by lane
        self._running: dict[str, Turn] = {}  # by response
        self._queue: deque[Turn] = deque()
        self._names: set[str] = set()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._body_bytes = 0
        self._num_steers = 0
        self._steer_bytes = 0
        self._leaving: ApiError | None = None
        self.is_closed = False

    @property
    def held_bytes(self) -> int:
        return self._body_bytes + self._steer_bytes

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self._busy and not self._queue

    # ---- what comes in -------------------------------------------------------------------------

    def take(self, event: ClientEvent) -> list[Action]:
        """An event of the client's."""
        if isinstance(event, Steer):
            return self._steer(event)
        if isinstance(event, Cancel):
            return [CancelResponse(event.response_id)]
        refusal = self._leaving or self._why_not(event)
        return self._enqueue(event) if refusal is None else self.misread(EventError(refusal, event.stream_id))

    def misread(self, error: EventError) -> list[Action]:
        """What the client sent cannot be followed."""
        return [Say(told.error_event(error.error, error.stream_id))]

    def started(self, turn: Turn, response_id: str) -> None:
        """The turn's response is there; its events will be told."""
        turn.move(TurnMove.STARTED)
        self._let_body_go(turn)
        turn.response_id = response_id
        self._running.setdefault(response_id, turn)

    def refused(self, turn: Turn, error: ApiError) -> list[Action]:
        """The turn's response could not be made, or cannot be told any further."""
        turn.move(TurnMove.REFUSED)
        self._let_body_go(turn)
        actions: list[Action] = []
        if not turn.follows_by_itself:
            actions.append(Say(told.error_event(error, turn.lane)))
        actions += self._fail(turn.carried, turn, "successor_creation_failed", error.message)
        actions += self._fail(turn.steers, turn, "response_not_active", error.message)
        parent = turn.previous_id
        if parent is not None and parent in self._known and self._known[parent].lane == turn.lane:
            del self._known[parent]
            actions.append(Forget(parent))
        return actions + self._free(turn)

    def tell(self, turn: Turn, events: Sequence[NumberedEvent]) -> list[Action]:
        """More of the turn's response; an event that is its last is followed by what comes next."""
        actions: list[Action] = []
        for event in events:
            turn.last_number = event.sequence_number
            actions.append(Say(told.in_lane(event.data, turn.lane)))
            if turn.carried:
                self._commit(turn)
            if event.is_last:
                actions += self._ended(turn, event)
        return actions

    def told_all(self, turn: Turn) -> list[Action]:
        """There are no more events: the client had seen the last one before it asked."""
        turn.move(TurnMove.ENDED)
        return self._free(turn)

    def leave(self, error: ApiError) -> list[Action]:
        """Take no more turns, and close for this reason when those that run have ended."""
        if self._leaving is not None:
            return []
        self._leaving = error
        actions: list[Action] = []
        while self._queue:
            turn = self._queue.popleft()
            turn.move(TurnMove.DROPPED)
            self._let_body_go(turn)
            actions.append(Say(told.error_event(error, turn.lane)))
        return actions + self._closing()

    # ---- lanes ---------------------------------------------------------------------------------

    def _enqueue(self, event: Create | Resume) -> list[Action]:
        if event.stream_id is not None:
            self._names.add(event.stream_id)
        turn = Turn(event, event.num_bytes)
        self._queue.append(turn)
        self._body_bytes += turn.num_bytes
        return self._begin_what_can()

    def _why_not(self, event: Create | Resume) -> ApiError | None:
        limits, lane = self._limits, event.stream_id
        if lane is not None and lane not in self._names and len(self._names) >= limits.max_lanes:
            message = f"A connection can have {limits.max_lanes} lanes that have a name."
            return ApiError(ErrorKind.STREAM_LIMIT, message, param="stream_id")
        is_long = self._body_bytes and self._body_bytes + event.num_bytes > limits.max_queued_bytes
        if len(self._queue) >= limits.max_queued or is_long:
            return ApiError(ErrorKind.TURN_LIMIT, "Too many turns wait on this connection.")
        return None

    def _begin_what_can(self) -> list[Action]:
        """Begin turns in the order they came in, each as soon as its lane and its predecessor are done."""
        actions: list[Action] = []
        passed = set[str | None]()
        for turn in tuple(self._queue):
            if len(self._busy) >= self._limits.max_active:
                break
            if turn.lane in self._busy or turn.lane in passed or turn.previous_id in self._running:
                passed.add(turn.lane)
                continue
            self._queue.remove(turn)
            actions.append(self._begin(turn))
        return actions

    def _begin(self, turn: Turn) -> Begin:
        turn.move(TurnMove.BEGIN)
        self._busy[turn.lane] = turn
        create = turn.asked
        if isinstance(create, Resume):
            return Begin(turn)
        self._carry_pending(turn)
        turn.asked = create.settings()
        return Begin(turn, create.with_input_before(_inputs(turn.carried)) if turn.carried else create)

    def _free(self, turn: Turn) -> list[Action]:
        """The turn is over: its lane, and its place among those that run, are another's."""
        del self._busy[turn.lane]
        if turn.response_id is not None and self._running.get(turn.response_id) is turn:
            del self._running[turn.response_id]
        return self._begin_what_can() + self._closing()

    def _let_body_go(self, turn: Turn) -> None:
        self._body_bytes -= turn.num_bytes
        turn.num_bytes = 0

    def _closing(self) -> list[Action]:
        if self._leaving is None or self._busy or self.is_closed:
            return []
        self.is_closed = True
        return [Close(self._leaving)]

    # ---- steering ------------------------------------------------------------------------------

    def _steer(self, steer: Steer) -> list[Action]:
        turn = self._running.get(steer.response_id)
        refusal = self._why_not_steered(steer, turn)
        if refusal is not None:
            number = 0 if turn is None else turn.last_number
            lane = self._lane_of(steer.response_id)
            return [Say(told.in_lane(told.steer_failed(None, steer, number, *refusal), lane))]
        assert turn is not None
        steering = Steering(f"steer_{uuid.uuid4().hex}", steer)
        turn.steers.append(steering)
        self._num_steers += 1
        self._steer_bytes += len(steer.input)
        event = told.steer_accepted(steering.id, steer, turn.last_number)
        return [Say(told.in_lane(event, turn.lane)), Interrupt(turn)]

    def _why_not_steered(self, steer: Steer, turn: Turn | None) -> tuple[str, str] | None:
        """Code and message."""
        if turn is None:
            known = self._known.get(steer.response_id)
            if known is None:
                return "response_not_found", "There is no such response on this connection."
            if known.is_delivered:
                return "response_already_completed", "The response has completed; create another."
            return "response_not_active", "The response has ended."
        if not isinstance(turn.asked, Create) or not turn.asked.takes_steering:
            return "steering_not_supported", "A response of this kind cannot be steered."
        if steer.flaw is not None:
            return "invalid_input", steer.flaw
        size = self._steer_bytes + len(steer.input)
        if self._num_steers >= self._limits.max_steers or size > self._limits.max_steer_bytes:
            return "too_many_pending_steers", "Too much steering input is pending."
        if self._leaving is not None:
            return "response_not_active", self._leaving.message
        return None

    def _lane_of(self, response_id: str) -> str | None:
        turn, known = self._running.get(response_id), self._known.get(response_id)
        return turn.lane if turn is not None else known.lane if known is not None else None

    def _ended(self, turn: Turn, event: NumberedEvent) -> list[Action]:
        turn.move(TurnMove.ENDED)
        assert turn.response_id is not None
        ending, steers = told.read_ending(event.data), turn.steers
        waits = bool(steers and ending.goes_on and ending.required)
        if isinstance(turn.asked, Create) or turn.response_id not in self._known:  # its own lane counts
            self._know(turn.response_id, _Known(turn.lane, ending.goes_on, steers if waits else ()))
        if waits:
            return self._wait(turn, ending) + self._free(turn)
        if steers and ending.goes_on and self._leaving is None:
            return [self._succeed(turn)]
        message = "The response has ended." if self._leaving is None else self._leaving.message
        return self._fail(steers, turn, "response_not_active", message) + self._free(turn)

    def _wait(self, turn: Turn, ending: told.Ending) -> list[Action]:
        actions: list[Action] = []
        for steering in turn.steers:
            steering.move(SteerMove.WAIT)
            event = told.steer_pending(steering.id, steering.steer, turn.last_number, ending.required)
            actions.append(Say(told.in_lane(event, turn.lane)))
        return actions

    def _succeed(self, turn: Turn) -> Begin:
        """Go on in the same lane, before all that wait, with what the turn was steered by."""
        assert isinstance(turn.asked, Create)
        assert turn.response_id is not None
        del self._running[turn.response_id]
        made = turn.asked.successor(turn.response_id, _inputs(turn.steers))
        successor = Turn(made.settings(), follows_by_itself=True)
        for steering in turn.steers:
            steering.move(SteerMove.CARRY)
        successor.carried = turn.steers
        successor.move(TurnMove.BEGIN)
        self._busy[turn.lane] = successor
        return Begin(successor, made)

    def _carry_pending(self, turn: Turn) -> None:
        """A turn of the same lane that brings the results brings what was steered, too."""
        known = self._known.get(turn.previous_id or "")
        if known is None or known.lane != turn.lane or not known.pending:
            return
        turn.carried = list(known.pending)
        for steering in turn.carried:
            steering.move(SteerMove.CARRY)
        assert turn.previous_id is not None
        self._know(turn.previous_id, _Known(known.lane, known.is_delivered))

    def _commit(self, turn: Turn) -> None:
        for steering in turn.carried:
            steering.move(SteerMove.COMMIT)
            self._let_go(steering)
        turn.carried = []

    def _fail(self, steers: Iterable[Steering], turn: Turn, code: str, message: str) -> list[Action]:
        actions: list[Action] = []
        for steering in steers:
            steering.move(SteerMove.FAIL)
            self._let_go(steering)
            event = told.steer_failed(steering.id, steering.steer, turn.last_number, code, message)
            actions.append(Say(told.in_lane(event, turn.lane)))
        return actions

    def _let_go(self, steering: Steering) -> None:
        self._num_steers -= 1
        self._steer_bytes -= len(steering.steer.input)

    # ---- what ended ----------------------------------------------------------------------------

    def _know(self, response_id: str, known: _Known) -> None:
        self._known[response_id] = known
        self._known.move_to_end(response_id)
        if len(self._known) > _MAX_KNOWN + self._limits.max_steers:
            del self._known[next(id for id, known in self._known.items() if not known.pending)]


def _inputs(steers: Iterable[Steering]) -> list[msgspec.Raw]:
    return [steering.steer.input for steering in steers]
