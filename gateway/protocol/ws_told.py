"""Our own events on the WebSocket of /v1/responses, beside those of responses: errors, and news of steers.

Pure. They repeat the number of the last event that was told of the response they are about, so that who
goes on from the last number seen misses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.errors import TABLE, ApiError, clip
from gateway.protocol.ws_events import Steer

_ENCODER = msgspec.json.Encoder()


def in_lane(data: bytes, stream_id: str | None) -> bytes:
    """An event that is encoded already, marked as of this lane; of the default lane it stays as it is."""
    return data if stream_id is None else b'%b,"stream_id":"%b"}' % (data[:-1], stream_id.encode())


class _ErrorDetail(msgspec.Struct):
    code: str
    message: str
    param: str | None
    type: str


class ErrorEvent(msgspec.Struct, tag_field="type", tag="error"):
    """What an event asked for cannot be done. ``status`` is what HTTP would have said."""

    status: int
    error: _ErrorDetail


def error_event(error: ApiError, stream_id: str | None) -> bytes:
    shape = TABLE[error.kind]
    param = None if error.param is None else clip(error.param, 100)
    detail = _ErrorDetail(shape.code, clip(error.message), param, shape.type)
    return in_lane(_ENCODER.encode(ErrorEvent(error.status, detail)), stream_id)


class _SteerRef(msgspec.Struct, kw_only=True):
    id: str
    previous_response_id: str


class SteerAccepted(msgspec.Struct, tag_field="type", tag="response.steer.accepted", kw_only=True):
    sequence_number: int
    steer: _SteerRef


class RequiredOutput(msgspec.Struct, tag_field="type", tag="function_call_output"):
    """A call whose result is to come."""

    call_id: str
    name: str


class SteerPending(msgspec.Struct, tag_field="type", tag="response.steer.pending", kw_only=True):
    sequence_number: int
    steer: _SteerRef
    reason: str = "waiting_for_required_input"
    required_input: list[RequiredOutput]


class _SteerGivenBack(msgspec.Struct, kw_only=True, omit_defaults=True):
    id: str | None = None
    previous_response_id: str
    input: msgspec.Raw


class _SteerError(msgspec.Struct, kw_only=True):
    code: str
    message: str
    type: str = "invalid_request_error"


class SteerFailed(msgspec.Struct, tag_field="type", tag="response.steer.failed", kw_only=True):
    sequence_number: int
    steer: _SteerGivenBack
    error: _SteerError


def steer_accepted(steer_id: str, steer: Steer, number: int) -> bytes:
    ref = _SteerRef(id=steer_id, previous_response_id=steer.response_id)
    return _ENCODER.encode(SteerAccepted(sequence_number=number, steer=ref))


def steer_pending(steer_id: str, steer: Steer, number: int, required: Sequence[RequiredOutput]) -> bytes:
    ref = _SteerRef(id=steer_id, previous_response_id=steer.response_id)
    event = SteerPending(sequence_number=number, steer=ref, required_input=list(required))
    return _ENCODER.encode(event)


def steer_failed(steer_id: str | None, steer: Steer, number: int, code: str, message: str) -> bytes:
    given = _SteerGivenBack(id=steer_id, previous_response_id=steer.response_id, input=steer.input)
    return _ENCODER.encode(
        SteerFailed(sequence_number=number, steer=given, error=_SteerError(code=code, message=message))
    )


class _EndedItem(msgspec.Struct):
    type: str
    status: str = "completed"
    call_id: str = ""
    name: str = ""


class _Ended(msgspec.Struct):
    status: str
    output: list[_EndedItem] = []


class _LastEvent(msgspec.Struct):
    response: _Ended


@dataclass(frozen=True, slots=True)
class Ending:
    """``goes_on``: another turn may follow. ``required`` are calls that it leaves without their results."""

    goes_on: bool
    required: tuple[RequiredOutput, ...]


_LAST_EVENT = msgspec.json.Decoder(_LastEvent)


def read_ending(data: bytes) -> Ending:
    """Of a response's last event."""
    response = _LAST_EVENT.decode(data).response
    calls = (item for item in response.output if item.type == "function_call" and item.status == "completed")
    return Ending(
        response.status in ("completed", "incomplete"),
        tuple(RequiredOutput(call.call_id, call.name) for call in calls),
    )
