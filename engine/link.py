"""The gateway's end of the socket to the engine: frames out, events in.

Runs on the event loop; decodes and encodes only. What the events mean is ``EngineClient``'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from engine.messages import FromEngine, ToEngine
from engine.wire import FrameDecoder, WireError, encode_frame

_SEND_BUFFER_BYTES = 16 * 2**20


class EngineLink(asyncio.Protocol):
    """Bytes of the socket to events, and back. All calls on the event loop.

    Bound: past ``_SEND_BUFFER_BYTES`` of unsent data ``is_congested`` is set, and the client sends no new
    requests; what is small (aborts, resumes) still goes.
    """

    def __init__(self, on_event: Callable[[FromEngine], None], on_closed: Callable[[str], None]) -> None:
        self._on_event = on_event
        self._on_closed = on_closed
        self._decoder = FrameDecoder(FromEngine)
        self._transport: asyncio.Transport | None = None
        self.is_congested = False
        self.is_behind = False  # there is more than the event that is told: here, or at the engine

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses of it
        self._transport.set_write_buffer_limits(high=_SEND_BUFFER_BYTES)

    def pause_writing(self) -> None:
        self.is_congested = True

    def resume_writing(self) -> None:
        self.is_congested = False

    def data_received(self, data: bytes) -> None:
        try:
            events = self._decoder.feed(data)
        except WireError as error:
            self._on_closed(str(error))
            self.close()
            return
        num_more = len(events) + self._decoder.has_rest
        for event in events:
            num_more -= 1
            self.is_behind = num_more > 0 or event.num_behind > 0
            self._on_event(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_behind = False
        self._on_closed("its connection closed" if exc is None else f"its connection broke: {exc}")

    def send(self, envelope: ToEngine) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(encode_frame(envelope))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
