"""The gateway's side of the engine: what it may ask for, and the client that asks over a socket."""

from __future__ import annotations

import enum
from typing import Protocol

from engine.messages import AddRequest, EngineInfo, EngineStats, IntegrityReport, StepReport, TokenDelta


class EngineDeadError(RuntimeError):
    """The engine process is gone; everything it was generating is lost."""


class EngineHealth(enum.Enum):
    """``STALLED``: requests are pending and no step has ended for longer than the stall timeout."""

    OK = "ok"
    STALLED = "stalled"
    DEAD = "dead"


class DeltaSink(Protocol):
    """Where one request's deltas go. Both calls run on the event loop and must not block."""

    def deliver(self, delta: TokenDelta) -> None: ...

    def fail(self, error: EngineDeadError) -> None: ...


class StepListener(Protocol):
    """Told of every step (metrics)."""

    def __call__(self, report: StepReport) -> None: ...


class Engine(Protocol):
    """What the gateway needs of an engine. ``EngineClient`` is the real one; tests script another.

    All methods run on the event loop. ``submit``, ``abort``, ``pause`` and ``resume`` return at
    once. After ``abort`` the sink gets nothing more. ``abort``, ``pause`` and ``resume`` of an
    unknown id do nothing. ``submit`` raises EngineDeadError if the engine is gone.
    """

    @property
    def info(self) -> EngineInfo: ...

    @property
    def stats(self) -> EngineStats: ...

    def submit(self, request: AddRequest, sink: DeltaSink) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def pause(self, request_id: str) -> None: ...

    def resume(self, request_id: str) -> None: ...

    def health(self) -> EngineHealth: ...

    async def check_integrity(self) -> IntegrityReport: ...

    def add_step_listener(self, listener: StepListener) -> None: ...

    async def wait_dead(self) -> str:
        """Return, with the reason, when the engine has died; wait until then."""
        ...

    async def close(self) -> None: ...
