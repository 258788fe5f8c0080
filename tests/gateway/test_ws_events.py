"""Client events of the WebSocket: what is read of them, and what is wrong with the rest."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.errors import ErrorKind
from gateway.protocol.ws_events import Cancel, Create, EventError, Resume, Steer, read_event


def read(**event: Any) -> Any:
    return read_event(json.dumps(event).encode())


def create(**fields: Any) -> Create:
    event = read(type="response.create", **fields)
    assert isinstance(event, Create)
    return event


def body_of(made: Create) -> Any:
    return json.loads(made.body())


def test_a_create_becomes_the_body_of_a_post_that_streams() -> None:
    fields = {
        "model": "m",
        "input": [{"role": "user", "content": "é😀"}],
        "store": False,
        "x": [1, {}],
    }
    made = create(stream_id="a.b-c_1", stream=False, previous_response_id="resp_1", **fields)
    assert (made.stream_id, made.previous_response_id) == ("a.b-c_1", "resp_1")
    assert body_of(made) == {**fields, "previous_response_id": "resp_1", "stream": True}


def test_null_is_the_default_lane() -> None:
    assert create(stream_id=None).stream_id is None


@pytest.mark.parametrize("name", ["", "a b", "é", "a" * 257, "a\n", 1, ["a"], {"a": 1}, True])
@pytest.mark.parametrize("kind", ["response.create", "response.resume"])
def test_what_cannot_name_a_lane_is_refused(kind: str, name: Any) -> None:
    with pytest.raises(EventError) as caught:
        read(type=kind, response_id="resp_1", stream_id=name)
    assert caught.value.error.kind is ErrorKind.INVALID_STREAM_ID
    assert caught.value.stream_id is None


@pytest.mark.parametrize("name", ["a", "A-Za-z0-9_.-", "x" * 256])
def test_what_can_name_a_lane_does(name: str) -> None:
    assert create(stream_id=name).stream_id == name


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b"", None), (b"[]", None), (b'"x"', None), (b"{", None), (b"\xff", None), (b'{"type":"\xff"}', None),
        (b"{}", "type"), (b'{"type":1}', "type"), (b'{"type":"response.nothing"}', "type"),
        (b'{"type":"response.create","background":true}', "background"),
        (b'{"type":"response.create","previous_response_id":7}', "previous_response_id"),
        (b'{"type":"response.steer","input":"x"}', "previous_response_id"),
        (b'{"type":"response.cancel"}', "response_id"),
        (b'{"type":"response.cancel","response_id":""}', "response_id"),
        (b'{"type":"response.resume","response_id":"r","starting_after":-2}', "starting_after"),
        (b'{"type":"response.resume","response_id":"r","starting_after":"1"}', "starting_after"),
        (b'{"type":"x","y":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
        (b'{"type":"x","y":[' + b"[]," * 150_000 + b"1]}", None),
    ],
)  # fmt: skip
def test_what_cannot_be_read_names_the_field_and_repeats_nothing(data: bytes, param: str | None) -> None:
    with pytest.raises(EventError) as caught:
        read_event(data)
    assert caught.value.error.param == param
    assert caught.value.error.status == 400
    assert "nothing" not in caught.value.error.message


def test_an_error_in_a_lane_says_which() -> None:
    with pytest.raises(EventError) as caught:
        read(type="response.create", stream_id="a", background=True)
    assert caught.value.stream_id == "a"


def test_cancel_and_resume() -> None:
    assert read(type="response.cancel", response_id="r") == Cancel("r")
    assert read(type="response.resume", response_id="r") == Resume("r", -1, None)
    assert read(type="response.resume", response_id="r", starting_after=0, stream_id="a") == Resume(
        "r", 0, "a"
    )
    for event in ({"type": "response.cancel"}, {"type": "response.resume"}):
        with pytest.raises(EventError):
            read(response_id="r", input="x", **event)


# ---- steering ------------------------------------------------------------------------------------

GOOD = [
    "more",
    [{"role": "user", "content": "more"}],
    [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "more"}]}] * 2,
]
BAD = [
    "", [], None, 1, {"role": "user", "content": "x"}, [{"role": "assistant", "content": "x"}],
    [{"role": "user", "content": "x", "id": "msg_1"}], [{"role": "user"}], ["x"],
    [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
    [{"type": "function_call_output", "call_id": "c", "output": "x"}],
]  # fmt: skip


@pytest.mark.parametrize("given", GOOD)
def test_a_steer_is_input_of_the_user(given: Any) -> None:
    event = read(type="response.steer", previous_response_id="r", input=given)
    assert isinstance(event, Steer)
    assert (event.response_id, event.flaw) == ("r", None)


@pytest.mark.parametrize("given", BAD)
def test_any_other_steer_is_flawed_and_kept_as_it_came(given: Any) -> None:
    event = read(type="response.steer", previous_response_id="r", input=given)
    assert event.flaw is not None
    assert json.loads(bytes(event.input)) == given


def test_a_steer_has_no_lane() -> None:
    assert read(type="response.steer", previous_response_id="r", input="x", stream_id="a").flaw is not None


@pytest.mark.parametrize(
    ("fields", "takes"),
    [
        ({}, True), ({"generate": True}, True), ({"generate": False}, False), ({"conversation": None}, True),
        ({"conversation": "conv_1"}, False), ({"context_management": [{"type": "compaction"}]}, False),
    ],
)  # fmt: skip
def test_which_responses_can_be_steered(fields: dict[str, Any], takes: bool) -> None:
    assert create(**fields).takes_steering == takes


def test_a_successor_has_the_settings_and_all_that_was_steered() -> None:
    made = create(model="m", input="first", instructions="be brief", stream_id="a", previous_response_id="r0")
    inputs = [msgspec.Raw(json.dumps(given).encode()) for given in GOOD]
    successor = made.settings().successor("r1", inputs)
    assert (successor.stream_id, successor.previous_response_id) == ("a", "r1")
    body = body_of(successor)
    items = body.pop("input")
    assert body == {"model": "m", "instructions": "be brief", "previous_response_id": "r1", "stream": True}
    assert len(items) == 4
    assert {"role": "user", "content": "more", "type": "message"} in items


def test_settings_are_all_but_the_input() -> None:
    made = create(input="x" * 1000, model="m")
    assert body_of(made.settings()) == {"model": "m", "stream": True}
    assert made.settings().num_bytes < 10 < made.num_bytes


def test_what_was_steered_comes_before_what_is_sent() -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "5"}
    steered = [msgspec.Raw(b'"one"'), msgspec.Raw(b'[{"role":"user","content":"two"}]')]
    for given, more in (
        ([output], [output]),
        ("three", [{"type": "message", "role": "user", "content": "three"}]),
    ):
        items = body_of(create(input=given).with_input_before(steered))["input"]
        assert [item.get("content") for item in items[:2]] == ["one", "two"]
        assert items[2:] == more
    assert len(body_of(create().with_input_before(steered))["input"]) == 2
