"""What the runner needs of a driver: send one request, write down when what came.

A driver speaks one API (completions, chat, responses) over one transport (SSE, WebSocket). It never raises
for what a server or a network does: that is the timeline's outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from loadtest.plan import PlannedRequest
from loadtest.timeline import Timeline


@dataclass(frozen=True, slots=True)
class PastTurn:
    """One turn of the conversation so far: what was asked, what was answered."""

    asked: str
    answered: str
    response_id: str = ""  # where the API keeps histories by id


class PreparedCall(Protocol):
    """A request, encoded but for its history. Opaque to all but the driver that made it."""

    @property
    def planned(self) -> PlannedRequest: ...


class Driver(Protocol):
    """Runs on: the event loop. Blocks: never."""

    def prepare(self, planned: PlannedRequest) -> PreparedCall:
        """Encode it, before the clock starts."""
        ...

    async def perform(
        self, call: PreparedCall, past: Sequence[PastTurn], timeline: Timeline
    ) -> PastTurn | None:
        """Send it and read its answer as planned; fill in ``timeline`` from ``sent_at`` to ``outcome``.

        The history is encoded just before ``sent_at``. Gives what a next turn builds on, or None if there can
        be none. When it is cancelled, the timeline stays UNFINISHED with all that came until then.
        """
        ...

    async def open(self) -> None:
        """Make ready what needs no request, such as sockets. Raises ServerUnreachableError."""
        ...

    async def close(self) -> None: ...


class ServerUnreachableError(Exception):
    """Nothing answers at the address, or not as this API does. The message is a sentence for the user."""
