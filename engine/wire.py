"""Frames on the socket between gateway and engine: 4 bytes of length (big endian), then msgpack.

Pure: bytes in, messages out. Both directions use the envelopes of ``engine.messages``.
"""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

import msgspec

from engine.messages import FromEngine, ToEngine

MAX_FRAME_BYTES = 256 * 2**20
_LENGTH = struct.Struct(">I")

Envelope = TypeVar("Envelope", ToEngine, FromEngine)


class WireError(RuntimeError):
    """The peer sent something that is no frame of ours; the connection cannot go on."""


def encode_frame(envelope: ToEngine | FromEngine) -> bytes:
    """One frame, ready to send. Raises WireError if it would be longer than a peer accepts."""
    payload = msgspec.msgpack.encode(envelope)
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError(f"a message of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder(Generic[Envelope]):
    """Cuts a byte stream into envelopes. Holds at most one incomplete frame."""

    def __init__(self, envelope_type: type[Envelope]) -> None:
        self._buffer = bytearray()
        self._decoder: msgspec.msgpack.Decoder[Envelope] = msgspec.msgpack.Decoder(envelope_type)

    @property
    def has_rest(self) -> bool:
        """Whether part of another frame has come."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[Envelope]:
        """Envelopes completed by ``data``, in order. Raises WireError on a frame that is not ours."""
        self._buffer += data
        envelopes: list[Envelope] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise WireError(f"the peer announced a frame of {length} bytes")
            stop = start + _LENGTH.size + length
            if len(self._buffer) < stop:
                break
            envelopes.append(self._decode(bytes(self._buffer[start + _LENGTH.size : stop])))
            start = stop
        del self._buffer[:start]
        return envelopes

    def _decode(self, payload: bytes) -> Envelope:
        try:
            return self._decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise WireError(f"the peer sent a message that cannot be read: {error}") from error
