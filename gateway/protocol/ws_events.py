"""The client's events on the WebSocket of /v1/responses, as they are read.

Pure. An event is taken apart no further than it must be to be routed: what a ``response.create`` asks for
stays the JSON it came as, and is checked where the body of a POST is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

from gateway.errors import ApiError, ErrorKind, bad_request, unsupported
from gateway.openai.body_parts import check_parts

CREATE, STEER, CANCEL, RESUME = "response.create", "response.steer", "response.cancel", "response.resume"
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_MAX_ID_CHARS = 256
_NULL, _FALSE, _TRUE = (msgspec.Raw(word) for word in (b"null", b"false", b"true"))
_ENCODER = msgspec.json.Encoder()
Fields = Mapping[str, msgspec.Raw]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Create:
    """A turn to take. ``fields`` are those of a POST's body."""

    fields: Fields = field(repr=False)
    stream_id: str | None
    previous_response_id: str | None

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.fields.values()))

    @property
    def takes_steering(self) -> bool:
        """Whether there will be an answer to steer, which no conversation waits for."""
        bound = (self._field("conversation"), self._field("context_management"))
        return bound == (_NULL, _NULL) and self._field("generate") != _FALSE

    def body(self) -> bytes:
        """What a POST that asks for a stream would have as its body."""
        return _ENCODER.encode({**self.fields, "stream": _TRUE})

    def settings(self) -> Create:
        """All but its input, and no more bytes kept than that."""
        fields = {name: value.copy() for name, value in self.fields.items() if name != "input"}
        return Create(fields, self.stream_id, self.previous_response_id)

    def with_input_before(self, inputs: Sequence[msgspec.Raw]) -> Create:
        """The same with ``inputs`` in front of its own."""
        fields = {**self.fields, "input": _joined((*inputs, self._field("input")))}
        return Create(fields, self.stream_id, self.previous_response_id)

    def successor(self, response_id: str, inputs: Sequence[msgspec.Raw]) -> Create:
        """The turn that goes on from what came of this one, with its settings."""
        fields = {**self.fields, "input": _joined(inputs), "previous_response_id": _raw(response_id)}
        return Create(fields, self.stream_id, response_id)

    def _field(self, name: str) -> msgspec.Raw:
        return self.fields.get(name, _NULL)


@dataclass(frozen=True, slots=True)
class Steer:
    """More input for a response that runs. ``flaw`` says what is wrong with ``input``, if something is."""

    response_id: str
    input: msgspec.Raw = field(repr=False)
    flaw: str | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    response_id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Tell the events of a response from behind this number on."""

    response_id: str
    starting_after: int = -1
    stream_id: str | None = None

    @property
    def num_bytes(self) -> int:
        return 0


ClientEvent = Create | Steer | Cancel | Resume


class EventError(Exception):
    """An event that cannot be followed. ``stream_id``: of the lane it was for, if that could be read."""

    def __init__(self, error: ApiError, stream_id: str | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.stream_id = stream_id


# ---- as they are read --------------------------------------------------------------------------


def read_event(data: bytes) -> ClientEvent:
    """Raises EventError."""
    try:
        fields = _fields(data)
        kind = _value(fields, "type", str, "")
        if kind in (CREATE, RESUME):
            return _in_lane(kind, fields)
        if kind == STEER:
            return _steer(fields)
        if kind == CANCEL:
            _check_names(fields, ("response_id",))
            return Cancel(_id(fields, "response_id"))
    except ApiError as error:
        raise EventError(error) from None
    known = ", ".join((CREATE, STEER, CANCEL, RESUME))
    raise EventError(bad_request("type", f"The type of an event must be one of {known}."))


def _fields(data: bytes) -> dict[str, msgspec.Raw]:
    check_parts(data)
    try:
        data.decode()
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise bad_request(None, "The message is not a JSON object in UTF-8.") from None
    except RecursionError:
        raise bad_request(None, "The message is nested too deeply.") from None


def _in_lane(kind: str, fields: dict[str, msgspec.Raw]) -> Create | Resume:
    stream_id = _stream_id(fields.pop("stream_id", _NULL))
    try:
        return _create(fields, stream_id) if kind == CREATE else _resume(fields, stream_id)
    except ApiError as error:
        raise EventError(error, stream_id) from None


def _stream_id(raw: msgspec.Raw) -> str | None:
    if raw == _NULL:
        return None
    try:
        given = msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, RecursionError):
        given = ""
    if not _STREAM_ID.fullmatch(given):
        raise ApiError(
            ErrorKind.INVALID_STREAM_ID,
            "'stream_id' must be 1 to 256 letters, digits, underscores, hyphens or periods.",
            param="stream_id",
        )
    return given


def _create(fields: dict[str, msgspec.Raw], stream_id: str | None) -> Create:
    if _value(fields, "background", bool | None, None):
        raise unsupported("background", "'background' is not supported over a WebSocket; POST it.")
    previous = _value(fields, "previous_response_id", str | None, None)
    own = {name: value for name, value in fields.items() if name not in ("type", "stream")}
    return Create(own, stream_id, previous)


def _resume(fields: Fields, stream_id: str | None) -> Resume:
    _check_names(fields, ("response_id", "starting_after"))
    starting_after = _value(fields, "starting_after", int | None, None)
    if starting_after is not None and starting_after < -1:
        raise bad_request("starting_after", "'starting_after' must be a sequence number.")
    return Resume(_id(fields, "response_id"), -1 if starting_after is None else starting_after, stream_id)


def _id(fields: Fields, name: str) -> str:
    given = _value(fields, name, str, "")
    if not 0 < len(given) <= _MAX_ID_CHARS:
        raise bad_request(name, f"'{name}' must be the id of a response.")
    return given


def _check_names(fields: Fields, names: Iterable[str]) -> None:
    if not fields.keys() <= {"type", *names}:
        raise ApiError(ErrorKind.UNSUPPORTED, f"Beside 'type' this event has {' and '.join(names)} only.")


def _value(fields: Fields, name: str, kind: Any, default: Value) -> Value:
    if name not in fields:
        return default
    try:
        value: Value = msgspec.json.decode(fields[name], type=kind)
    except (msgspec.DecodeError, RecursionError):
        raise bad_request(name, f"'{name}' has the wrong type.") from None
    return value


# ---- steering ----------------------------------------------------------------------------------


class _SteerPart(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["input_text"]
    text: str


class _SteerMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["message"] = "message"
    role: Literal["user"]
    content: str | list[_SteerPart]


_STEER_INPUT = msgspec.json.Decoder(str | list[_SteerMessage])


def _steer(fields: Fields) -> Steer:
    """Whatever is wrong with its input is told as a failed steer, which gives that back."""
    response_id = _id(fields, "previous_response_id")
    given = fields.get("input", _NULL).copy()
    if not fields.keys() <= {"type", "previous_response_id", "input"}:
        return Steer(response_id, given, "'response.steer' has 'previous_response_id' and 'input' only.")
    return Steer(response_id, given, _flaw(given))


def _flaw(given: msgspec.Raw) -> str | None:
    try:
        if _STEER_INPUT.decode(given):
            return None
    except (msgspec.DecodeError, RecursionError):
        pass
    return "'input' must be a text, or messages of the user of 'type', 'role' and 'content' with text parts."


class _OfUser(msgspec.Struct):
    content: msgspec.Raw
    type: str = "message"
    role: str = "user"


def _joined(inputs: Iterable[msgspec.Raw]) -> msgspec.Raw:
    """All inputs as one list of items. What is neither text nor list stands in it as it is, to be refused."""
    items: list[Any] = []
    for given in inputs:
        first = bytes(memoryview(given)[:1])
        if first == b"[":
            items += msgspec.json.decode(given, type=list[msgspec.Raw])
        elif first == b'"':
            items.append(_OfUser(given))
        elif given != _NULL:
            items.append(given)
    return _raw(items)


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_ENCODER.encode(value))
