"""The WebSockets that are open, so that a server that stops can tell them.

Runs on the event loop. Bound: that of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gateway.errors import ApiError
from gateway.shared_room import SharedRoom

_MAX_REMEMBERED_BYTES = 256 * 2**20


class OpenSocket(Protocol):
    """One that can be asked to end."""

    def leave(self, error: ApiError) -> None:
        """Take no more turns, and close for this reason when those that run have ended."""
        ...


class OpenSockets:
    """All of a gateway's. After ``leave`` a new one is told at once.

    ``memory`` is the room for what they all remember, which no tenant can have to itself.
    """

    def __init__(self) -> None:
        self.memory = SharedRoom(_MAX_REMEMBERED_BYTES)
        self._sockets: set[OpenSocket] = set()
        self._leaving: ApiError | None = None
        self._none = asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return len(self._sockets)

    @contextmanager
    def open(self, socket: OpenSocket) -> Iterator[None]:
        """Scope of a WebSocket."""
        self._sockets.add(socket)
        self._none.clear()
        if self._leaving is not None:
            socket.leave(self._leaving)
        try:
            yield
        finally:
            self._sockets.discard(socket)
            if not self._sockets:
                self._none.set()

    def leave(self, error: ApiError) -> None:
        self._leaving = error
        for socket in tuple(self._sockets):
            socket.leave(error)

    async def wait_closed(self) -> None:
        await self._none.wait()
