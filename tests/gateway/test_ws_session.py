"""Lanes, limits and steering of one WebSocket, without a socket: events in, actions out."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import ApiError, ErrorKind, bad_request, shutting_down
from gateway.openai.responses.events import Event
from gateway.protocol.ws_events import EventError, Resume, Steer, read_event
from gateway.protocol.ws_session import WsSession
from gateway.protocol.ws_turns import (
    STEERS,
    TURNS,
    Action,
    Begin,
    CancelResponse,
    Close,
    Forget,
    IllegalMoveError,
    Interrupt,
    Say,
    Steering,
    SteerMove,
    SteerState,
    Turn,
    TurnMove,
    TurnState,
    WsLimits,
)

CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "status": "completed"}


class Talk:
    """A session, and what has come out of it."""

    def __init__(self, **limits: int) -> None:
        self.session = WsSession(WsLimits(**limits))
        self.said: list[dict[str, Any]] = []
        self.begun: list[Begin] = []
        self.others: list[Action] = []
        self._numbers: Counter[str] = Counter()
        self._made = 0

    def send(self, type: str, **fields: Any) -> None:
        try:
            event = read_event(json.dumps({"type": type, **fields}).encode())
        except EventError as error:
            self._take(self.session.misread(error))
        else:
            self._take(self.session.take(event))

    def create(self, lane: str | None = None, **fields: Any) -> None:
        self.send("response.create", **fields, **({} if lane is None else {"stream_id": lane}))

    def steer(self, response_id: str, text: Any = "more") -> None:
        self.send("response.steer", previous_response_id=response_id, input=text)

    def run(self, lane: str | None = None, **fields: Any) -> tuple[Turn, str]:
        """Create, and let it start."""
        self.create(lane, **fields)
        return self.start()

    def start(self) -> tuple[Turn, str]:
        """Let the turn that was begun last start, with its first event."""
        turn = self.begun[-1].turn
        self._made += 1
        response_id = f"resp_{self._made}"
        self.session.started(turn, response_id)
        self.tell(turn, "response.created")
        return turn, response_id

    def tell(self, turn: Turn, type: str, **response: Any) -> None:
        assert turn.response_id is not None
        number = self._numbers[turn.response_id]
        self._numbers[turn.response_id] += 1
        data = json.dumps({"type": type, "sequence_number": number, "response": response}).encode()
        self._take(self.session.tell(turn, [Event(number, type, data)]))

    def end(self, turn: Turn, status: str = "completed", output: Any = ()) -> None:
        kind = "incomplete" if status == "cancelled" else status
        self.tell(turn, f"response.{kind}", status=status, output=list(output))

    def refuse(self, turn: Turn, error: ApiError | None = None) -> None:
        self._take(self.session.refused(turn, error or bad_request("input", "No.")))

    def leave(self, error: ApiError | None = None) -> None:
        self._take(self.session.leave(error or shutting_down()))

    def body(self) -> Any:
        """Of the turn that was begun last."""
        create = self.begun[-1].create
        assert create is not None
        return json.loads(create.body())

    def last(self) -> dict[str, Any]:
        return self.said[-1]

    def types(self) -> list[str]:
        return [event["type"] for event in self.said]

    def lanes_begun(self) -> list[str | None]:
        return [begin.turn.lane for begin in self.begun]

    def _take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Say):
                self.said.append(json.loads(action.data))
            elif isinstance(action, Begin):
                self.begun.append(action)
            else:
                self.others.append(action)


# ---- lanes ---------------------------------------------------------------------------------------


def test_a_lane_takes_its_turns_in_order_and_lanes_run_beside_each_other() -> None:
    talk = Talk()
    talk.create("a", model="1")
    talk.create("a", model="2")
    talk.create("b", model="3")
    talk.create(model="4")
    assert talk.lanes_begun() == ["a", "b", None]
    turn = talk.begun[0].turn
    talk.session.started(turn, "resp_a")
    talk.end(turn)
    assert talk.lanes_begun() == ["a", "b", None, "a"]
    assert talk.body()["model"] == "2"


def test_events_of_named_lanes_say_so_and_those_of_the_default_lane_do_not() -> None:
    talk = Talk()
    talk.run("a.b-c_1")
    talk.run()
    assert [event.get("stream_id", None) for event in talk.said] == ["a.b-c_1", None]
    assert "stream_id" not in talk.last()


def test_a_turn_waits_for_the_one_it_follows_in_whatever_lane_that_runs() -> None:
    talk = Talk()
    first, response_id = talk.run("a")
    talk.create("b", previous_response_id=response_id)
    talk.create("b", model="later")
    talk.create("c")
    assert talk.lanes_begun() == ["a", "c"], "and what stands behind it in its lane waits too"
    talk.end(first)
    assert talk.lanes_begun() == ["a", "c", "b"]
    assert talk.body()["previous_response_id"] == response_id


def test_so_many_run_at_once_and_the_rest_waits() -> None:
    talk = Talk(max_active=2)
    for lane in "abcd":
        talk.create(lane)
    assert talk.lanes_begun() == ["a", "b"]
    talk.refuse(talk.begun[0].turn)
    assert talk.lanes_begun() == ["a", "b", "c"]
    assert talk.last()["stream_id"] == "a"


def test_a_connection_has_so_many_names() -> None:
    talk = Talk(max_lanes=2)
    talk.create("a")
    talk.create("b")
    talk.create("c")
    assert talk.last()["error"]["code"] == "websocket_stream_limit_reached"
    assert (talk.last()["status"], talk.last()["stream_id"]) == (400, "c")
    talk.create("a")
    talk.create()
    assert len(talk.begun) == 3
    talk.refuse(talk.begun[0].turn)
    talk.create("d")
    assert talk.last()["error"]["code"] == "websocket_stream_limit_reached", "a name is never given back"


@pytest.mark.parametrize("limits", [{"max_queued": 2}, {"max_queued_bytes": 350}])
def test_so_much_waits_and_no_more(limits: dict[str, int]) -> None:
    talk = Talk(**limits)
    for _ in range(4):
        talk.create(input="x" * 98)
    assert talk.types() == ["error"]
    assert (talk.last()["status"], talk.last()["error"]["type"]) == (429, "rate_limit_error")
    talk.refuse(talk.begun[0].turn)
    talk.refuse(talk.begun[1].turn)
    talk.refuse(talk.begun[2].turn)
    assert len(talk.begun) == 3
    assert talk.session.held_bytes == 0
    assert talk.session.is_idle


def test_what_is_wrong_with_an_event_costs_that_event_only() -> None:
    talk = Talk()
    talk.send("response.nothing")
    talk.create(7)  # type: ignore[arg-type]
    assert [event["error"]["code"] for event in talk.said] == ["invalid_value", "invalid_stream_id"]
    assert all(event["type"] == "error" and event["status"] == 400 for event in talk.said)
    assert set(talk.last()["error"]) == {"code", "message", "param", "type"}
    talk.run()
    assert talk.last()["type"] == "response.created"


def test_a_response_is_cancelled_by_its_id() -> None:
    talk = Talk()
    talk.send("response.cancel", response_id="resp_7")
    assert talk.others == [CancelResponse("resp_7")]


def test_a_response_is_told_again_in_the_lane_that_asks() -> None:
    talk = Talk()
    talk.send("response.resume", response_id="resp_7", starting_after=3, stream_id="a")
    begin = talk.begun[-1]
    assert begin.create is None
    assert begin.turn.asked == Resume("resp_7", 3, "a")
    turn, response_id = talk.start()
    talk.steer(response_id)
    assert talk.last()["error"]["code"] == "steering_not_supported"
    talk.end(turn)
    assert talk.session.is_idle


# ---- what is remembered --------------------------------------------------------------------------


def test_a_turn_that_is_refused_in_the_lane_of_its_parent_evicts_that_and_a_fork_does_not() -> None:
    talk = Talk()
    turn, parent = talk.run("a")
    talk.end(turn)
    talk.create("b", previous_response_id=parent)
    talk.refuse(talk.begun[-1].turn)
    assert talk.others == []
    talk.create("a", previous_response_id=parent)
    talk.refuse(talk.begun[-1].turn)
    assert talk.others == [Forget(parent)]


def test_ended_responses_are_forgotten_in_the_end() -> None:
    talk = Talk()
    for _ in range(600):
        talk.end(talk.run()[0])
    talk.steer("resp_600")
    talk.steer("resp_1")
    assert [event["error"]["code"] for event in talk.said[-2:]] == [
        "response_already_completed", "response_not_found",
    ]  # fmt: skip


# ---- leaving -------------------------------------------------------------------------------------


def test_leaving_ends_what_waits_and_closes_when_what_runs_has_ended() -> None:
    talk = Talk()
    turn, response_id = talk.run("a")
    talk.create("a")
    talk.leave()
    assert talk.last()["error"]["code"] == "shutting_down"
    talk.create("b")
    assert (talk.last()["status"], talk.last()["stream_id"]) == (503, "b")
    talk.steer(response_id)
    assert talk.last()["error"]["code"] == "response_not_active"
    assert talk.others == []
    talk.end(turn)
    (close,) = talk.others
    assert isinstance(close, Close)
    assert close.error.kind is ErrorKind.SHUTDOWN
    assert talk.last()["type"] == "response.completed"


def test_an_idle_one_closes_at_once_and_only_once() -> None:
    talk = Talk()
    talk.leave()
    talk.leave(ApiError(ErrorKind.IDLE, "Idle."))
    assert [type(action) for action in talk.others] == [Close]
    assert talk.session.is_closed


def test_a_steered_response_that_ends_while_leaving_gives_the_steer_back() -> None:
    talk = Talk()
    turn, response_id = talk.run()
    talk.steer(response_id)
    talk.leave()
    talk.end(turn, "incomplete")
    assert talk.last()["type"] == "response.steer.failed"
    assert talk.last()["steer"]["input"] == "more"
    assert isinstance(talk.others[-1], Close)


# ---- steering ------------------------------------------------------------------------------------


def test_steering_interrupts_and_a_successor_follows_with_the_same_settings() -> None:
    talk = Talk()
    turn, parent = talk.run("a", model="m", instructions="brief", input="first", store=False)
    talk.create("a", model="queued")
    talk.steer(parent, "one")
    accepted = talk.last()
    assert accepted["type"] == "response.steer.accepted"
    assert accepted["stream_id"] == "a"
    assert accepted["steer"]["previous_response_id"] == parent
    talk.steer(parent, [{"role": "user", "content": "two"}])
    assert talk.others == [Interrupt(turn), Interrupt(turn)]
    talk.end(turn, "incomplete")
    assert talk.begun[-1].turn.lane == "a"
    body = talk.body()
    assert [item["content"] for item in body.pop("input")] == ["one", "two"]
    assert body == {
        "model": "m", "instructions": "brief", "store": False, "previous_response_id": parent, "stream": True,
    }  # fmt: skip
    successor, _ = talk.start()
    assert talk.types()[-2:] == ["response.incomplete", "response.created"]
    assert talk.session.held_bytes == len(json.dumps("queued"))
    talk.end(successor)
    assert talk.body()["model"] == "queued", "what waited comes after the successor"
    assert "response.steer.failed" not in talk.types()


def test_a_response_that_ends_by_itself_is_followed_too() -> None:
    talk = Talk()
    turn, parent = talk.run()
    talk.steer(parent)
    talk.end(turn, "completed")
    assert talk.body()["previous_response_id"] == parent


def test_a_successor_can_be_steered_again() -> None:
    talk = Talk()
    turn, parent = talk.run(model="m")
    talk.steer(parent)
    talk.end(turn, "incomplete")
    successor, response_id = talk.start()
    talk.steer(response_id, "again")
    talk.end(successor, "incomplete")
    assert talk.body() == {
        "model": "m", "previous_response_id": response_id, "stream": True,
        "input": [{"content": "again", "type": "message", "role": "user"}],
    }  # fmt: skip


def test_a_response_that_waits_for_results_keeps_the_steers_for_who_brings_them() -> None:
    talk = Talk()
    turn, parent = talk.run("a", model="m")
    talk.steer(parent, "one")
    talk.steer(parent, "two")
    talk.end(turn, "completed", [{"type": "reasoning", "id": "rs_1"}, CALL])
    assert talk.types()[-3:] == ["response.completed", "response.steer.pending", "response.steer.pending"]
    pending = talk.last()
    assert pending["required_input"] == [{"type": "function_call_output", "call_id": "c1", "name": "f"}]
    assert (pending["reason"], pending["stream_id"]) == ("waiting_for_required_input", "a")
    assert len(talk.begun) == 1
    output = {"type": "function_call_output", "call_id": "c1", "output": "5"}
    talk.create("b", previous_response_id=parent, input=[output])
    assert talk.body()["input"] == [output], "another lane brings nothing but its own"
    talk.create("a", model="other", previous_response_id=parent, input=[output])
    assert [item.get("content") for item in talk.body()["input"]] == ["one", "two", None]
    assert talk.body()["model"] == "other"
    talk.start()
    talk.create("a", previous_response_id=parent, input=[output])
    assert talk.session.held_bytes > 0
    talk.end(talk.begun[-1].turn)
    assert talk.body()["input"] == [output], "once"


def test_steers_wait_though_the_response_is_told_elsewhere_too() -> None:
    talk = Talk()
    turn, response_id = talk.run("a")
    talk.send("response.resume", response_id=response_id, stream_id="b")
    again = talk.begun[-1].turn
    talk.session.started(again, response_id)
    talk.steer(response_id)
    talk.end(turn, output=[CALL])
    talk.end(again, output=[CALL])
    result = {"type": "function_call_output", "call_id": "c1", "output": "1"}
    talk.create("a", previous_response_id=response_id, input=[result])
    assert [item["type"] for item in talk.body()["input"]] == ["message", "function_call_output"]


def test_steers_that_wait_are_given_back_if_what_brings_the_results_is_refused() -> None:
    talk = Talk()
    turn, parent = talk.run()
    talk.steer(parent, "one")
    steer_id = talk.last()["steer"]["id"]
    talk.end(turn, "completed", [CALL])
    talk.create(previous_response_id=parent, input=[])
    talk.refuse(talk.begun[-1].turn)
    assert talk.types()[-2:] == ["error", "response.steer.failed"]
    assert talk.last()["steer"] == {"id": steer_id, "previous_response_id": parent, "input": "one"}
    assert talk.last()["error"]["code"] == "successor_creation_failed"
    assert talk.session.held_bytes == 0


def test_a_successor_that_is_refused_gives_all_steers_back_and_says_nothing_else() -> None:
    talk = Talk()
    turn, parent = talk.run("a")
    talk.steer(parent, "one")
    talk.steer(parent, "two")
    talk.create("a", model="next")
    talk.end(turn, "incomplete")
    num_said = len(talk.said)
    talk.refuse(talk.begun[-1].turn)
    assert [event["steer"]["input"] for event in talk.said[num_said:]] == ["one", "two"]
    assert {event["error"]["code"] for event in talk.said[num_said:]} == {"successor_creation_failed"}
    assert talk.body()["model"] == "next"


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_nothing_follows_a_response_that_does_not_count(status: str) -> None:
    talk = Talk()
    turn, parent = talk.run()
    talk.steer(parent)
    talk.end(turn, status)
    assert talk.last()["error"]["code"] == "response_not_active"
    assert len(talk.begun) == 1
    talk.steer(parent)
    assert talk.last()["error"]["code"] == "response_not_active"
    assert "id" not in talk.last()["steer"]


@pytest.mark.parametrize(
    ("fields", "text", "code"),
    [
        ({}, "", "invalid_input"),
        ({}, [{"role": "system", "content": "x"}], "invalid_input"),
        ({"conversation": "conv_1"}, "x", "steering_not_supported"),
        ({"generate": False}, "x", "steering_not_supported"),
    ],
)
def test_a_steer_that_is_refused_comes_back(fields: dict[str, Any], text: Any, code: str) -> None:
    talk = Talk()
    _, response_id = talk.run("a", **fields)
    talk.steer(response_id, text)
    told = talk.last()
    assert told["type"] == "response.steer.failed"
    assert told["steer"] == {"previous_response_id": response_id, "input": text}
    assert (told["error"]["code"], told["error"]["type"]) == (code, "invalid_request_error")
    assert told["stream_id"] == "a"
    assert talk.others == []


def test_a_response_of_another_connection_is_not_found() -> None:
    talk = Talk()
    talk.steer("resp_7")
    assert talk.last()["error"]["code"] == "response_not_found"
    assert "stream_id" not in talk.last()


@pytest.mark.parametrize("limits", [{"max_steers": 2}, {"max_steer_bytes": 12}])
def test_so_many_steers_are_pending(limits: dict[str, int]) -> None:
    talk = Talk(**limits)
    turn, response_id = talk.run()
    for _ in range(3):
        talk.steer(response_id)
    assert talk.last()["error"]["code"] == "too_many_pending_steers"
    talk.end(turn)
    _, response_id = talk.start()
    talk.steer(response_id)
    assert talk.last()["type"] == "response.steer.accepted", "there is room again"


def test_news_of_steers_repeats_the_last_number() -> None:
    talk = Talk()
    turn, response_id = talk.run()
    talk.tell(turn, "response.in_progress")
    talk.steer(response_id)
    talk.end(turn, "completed", [CALL])
    assert [event["sequence_number"] for event in talk.said] == [0, 1, 1, 2, 2]


# ---- the tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", TurnState)
@pytest.mark.parametrize("move", TurnMove)
def test_a_turn_moves_by_its_table(state: TurnState, move: TurnMove) -> None:
    turn = Turn(Resume("r"), state=state)
    if (state, move) in TURNS:
        turn.move(move)
        assert turn.state is TURNS[state, move]
    else:
        with pytest.raises(IllegalMoveError):
            turn.move(move)
        assert turn.state is state


@pytest.mark.parametrize("state", SteerState)
@pytest.mark.parametrize("move", SteerMove)
def test_a_steer_moves_by_its_table(state: SteerState, move: SteerMove) -> None:
    steering = Steering("steer_1", Steer("r", None), state)  # type: ignore[arg-type]
    if (state, move) in STEERS:
        steering.move(move)
        assert steering.state is STEERS[state, move]
    else:
        with pytest.raises(IllegalMoveError):
            steering.move(move)
        assert steering.state is state


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("create", "follow", "steer", "start", "end", "call", "fail", "refuse", "leave")),
        st.integers(0, 5),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_random_lives(steps: list[tuple[str, int]]) -> None:
    """No lane overlaps, no bound is passed, and what was accepted comes to exactly one end."""
    talk = Talk(max_active=3, max_lanes=4, max_queued=5)
    for step, number in steps:
        lane = None if number == 5 else "abcde"[number]
        over = [begin.turn for begin in talk.begun if begin.turn.state is TurnState.OVER]
        running = [begin.turn for begin in talk.begun if begin.turn.state is TurnState.RUNNING]
        starting = [begin.turn for begin in talk.begun if begin.turn.state is TurnState.STARTING]
        if step == "create":
            talk.create(lane, input="x")
        elif step == "follow" and over:
            talk.create(lane, previous_response_id=over[number % len(over)].response_id, input=[])
        elif step == "steer" and running:
            talk.steer(str(running[number % len(running)].response_id), f"steer {number}")
        elif step == "leave" and number == 0:
            talk.leave()
        elif step in ("start", "refuse") and starting:
            turn = starting[number % len(starting)]
            if step == "refuse":
                talk.refuse(turn)
            else:
                talk._made += 1
                talk.session.started(turn, f"resp_{talk._made}")
                talk.tell(turn, "response.created")
        elif step in ("end", "call", "fail") and running:
            turn = running[number % len(running)]
            talk.end(turn, "failed" if step == "fail" else "completed", [CALL] if step == "call" else [])
        busy = [b.turn for b in talk.begun if b.turn.state in (TurnState.STARTING, TurnState.RUNNING)]
        assert len({turn.lane for turn in busy}) == len(busy) <= 3
        assert talk.session.held_bytes >= 0
        assert not (talk.session.is_closed and busy)
    check_steers(talk)


def check_steers(talk: Talk) -> None:
    accepted = [e["steer"]["id"] for e in talk.said if e["type"] == "response.steer.accepted"]
    failed = Counter(e["steer"].get("id") for e in talk.said if e["type"] == "response.steer.failed")
    assert all(failed[steer_id] <= 1 for steer_id in accepted)
    kept = {s.id: s for b in talk.begun for s in (*b.turn.steers, *b.turn.carried)}
    for steer_id in accepted:
        if steer_id in kept:
            assert (kept[steer_id].state is SteerState.FAILED) == bool(failed[steer_id])
