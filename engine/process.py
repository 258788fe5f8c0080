"""The engine process: loads the model, then steps it for the gateway at the other end of a socket.

Runs on: the process's main thread, which is the step thread and sole owner of all engine state.
Start: ``python -P -m engine.process FD``; the first message is ``Configure``. The process ends when
the socket does, so it never outlives its gateway; Ctrl-C and SIGTERM are the gateway's to handle.
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

from engine.config import ConfigError, EngineConfig
from engine.connection import EngineConnection
from engine.core import EngineCore
from engine.messages import (
    AbortRequest,
    AddRequest,
    CheckIntegrity,
    Configure,
    DescribeKv,
    DescribeSessions,
    EngineCommand,
    EngineFailed,
    EngineInfo,
    ForgetKv,
    ForkRequest,
    IntegrityReport,
    KvReport,
    LoadFailed,
    LoadProgress,
    PauseRequest,
    Ready,
    ResumeRequest,
    SessionsReport,
    Shutdown,
    StepReport,
)
from engine.reports import parts
from engine.stats import EngineStats

logger = logging.getLogger(__name__)

_SAVE_TIMEOUT_S = 5.0  # for blocks on their way to disk at shutdown; the gateway waits twice as long


class Core(Protocol):
    """What a step loop steps, as ``engine.core.EngineCore`` does."""

    def add(self, message: AddRequest) -> None: ...

    def fork(self, message: ForkRequest) -> None: ...

    def abort(self, request_id: str, index: int | None = None) -> None: ...

    def pause(self, request_id: str) -> None: ...

    def resume(self, request_id: str) -> None: ...

    def forget_kv(self, message: ForgetKv) -> None: ...

    def can_step(self) -> bool: ...

    @property
    def patience_s(self) -> float | None: ...

    def step(self) -> StepReport | None: ...

    def report(self) -> StepReport: ...

    def problems(self) -> tuple[str, ...]: ...

    def stats(self) -> EngineStats: ...

    def describe_kv(self, check_id: int, limit: int) -> KvReport: ...

    def describe_sessions(self, check_id: int, sessions: Sequence[str]) -> SessionsReport: ...

    def close(self, timeout_s: float) -> None: ...


class EngineServer:
    """The step loop. Waits on the inbox, its one wake-up, only when nothing can be stepped."""

    def __init__(self, connection: EngineConnection, core: Core) -> None:
        self._connection = connection
        self._core = core
        self._stopping = False

    def run(self) -> None:
        """Serve until ``Shutdown`` or until the gateway is gone."""
        self._connection.send(self._core.report())
        while True:
            for command in self._next_commands():
                self._handle(command)
            if self._stopping or self._connection.is_closed:
                return
            report = self._core.step()
            for part in () if report is None else parts(report):
                self._connection.send(part)

    def _next_commands(self) -> list[EngineCommand]:
        if self._core.can_step():
            return self._connection.poll()
        return self._connection.wait(self._core.patience_s)

    def _handle(self, command: EngineCommand) -> None:
        match command:
            case AddRequest():
                self._core.add(command)
            case ForkRequest():
                self._core.fork(command)
            case AbortRequest(request_id, index):
                self._core.abort(request_id, index)
            case PauseRequest(request_id):
                self._core.pause(request_id)
            case ResumeRequest(request_id):
                self._core.resume(request_id)
            case ForgetKv():
                self._core.forget_kv(command)
            case CheckIntegrity(check_id):
                self._connection.send(IntegrityReport(check_id, self._core.problems(), self._core.stats()))
            case DescribeKv(check_id, limit):
                self._connection.send(self._core.describe_kv(check_id, limit))
            case DescribeSessions(check_id, sessions):
                self._connection.send(self._core.describe_sessions(check_id, sessions))
            case Shutdown():
                self._stopping = True
            case Configure():
                logger.error("a second Configure was ignored")
            case _:
                assert_never(command)


class CoreBuilder(Protocol):
    """Makes the core to serve; ``engine.startup.build_core`` is the real one."""

    def __call__(
        self,
        config: EngineConfig,
        on_progress: Callable[[str, int, int], None],
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> tuple[Core, EngineInfo]:
        """``wake`` lets the step loop go on when it waits; it may be called from any thread."""
        ...


def _build_real_core(
    config: EngineConfig,
    on_progress: Callable[[str, int, int], None],
    clock: Callable[[], float],
    wake: Callable[[], None],
) -> tuple[EngineCore, EngineInfo]:
    # OpenMP's workers spin after each parallel region, which on few cores takes the time of whoever else
    # has work, the gateway first. libgomp reads this once, when torch loads it.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    from engine.startup import build_core  # here, so that this module imports without torch

    return build_core(config, on_progress, clock, wake)


def _load(connection: EngineConnection, config: EngineConfig, build: CoreBuilder) -> Core | None:
    """Build the core and announce it; None, with the reason sent, if that is not possible."""

    def on_progress(phase: str, done: int, total: int) -> None:
        if connection.is_closed:
            os._exit(0)  # nobody waits for this model any more
        connection.send(LoadProgress(phase, done, total))

    try:
        core, info = build(config, on_progress, time.perf_counter, connection.wake)
    except ConfigError as error:
        connection.send(LoadFailed(str(error), is_user_error=True))
        return None
    except Exception as error:
        logger.exception("loading failed")
        connection.send(LoadFailed(f"{type(error).__name__}: {error}", is_user_error=False))
        return None
    gc.collect()
    gc.freeze()
    connection.send(Ready(info))
    return core


def _serve(connection: EngineConnection, core: Core) -> int:
    try:
        EngineServer(connection, core).run()
    except Exception as error:
        logger.exception("the step loop failed")
        connection.send(EngineFailed(f"{type(error).__name__}: {error}"))
        return 1
    core.close(_SAVE_TIMEOUT_S)
    return 0


def main(argv: Sequence[str], build: CoreBuilder = _build_real_core) -> int:
    """Run one engine over the inherited socket with file descriptor ``argv[0]``."""
    logging.basicConfig(format="%(asctime)s %(levelname)s engine: %(message)s")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = EngineConnection(socket.socket(fileno=int(argv[0])), epoch=secrets.randbits(62) + 1)
    first = connection.get()
    status = 1
    if isinstance(first, Configure):
        logging.getLogger().setLevel(first.config.log_level.upper())
        core = _load(connection, first.config, build)
        status = 1 if core is None else _serve(connection, core)
    connection.close()
    return status


if __name__ == "__main__":
    exit_status = main(sys.argv[1:])
    logging.shutdown()
    os._exit(exit_status)  # no teardown of native thread pools: nothing here needs it, and it can hang
