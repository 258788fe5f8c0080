"""The gateway's side of the engine: what it may ask for, and the client that asks over a socket."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, assert_never

from engine.config import EngineConfig
from engine.link import EngineLink
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
    FromEngine,
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
    ToEngine,
    TokenDelta,
)
from engine.stats import EngineStats
from engine.watchdog import ProgressWatch

logger = logging.getLogger(__name__)

Answer = IntegrityReport | KvReport | SessionsReport

_CLOSE_TIMEOUT_S = 10
_LAST_WORDS_TIMEOUT_S = 0.5  # streams wait for them


class EngineDeadError(RuntimeError):
    """The engine process is gone; everything it was generating is lost."""


class EngineBusyError(RuntimeError):
    """The engine does not take in what it was sent; try again later."""


class EngineHealth(enum.Enum):
    """``STALLED``: requests are pending and no step has ended for longer than the stall timeout.

    ``RESTARTING``: it died, and another is started in its place.
    """

    OK = "ok"
    STALLED = "stalled"
    RESTARTING = "restarting"
    DEAD = "dead"


class DeltaSink(Protocol):
    """Where one request's deltas go. Both calls run on the event loop and must not block."""

    def deliver(self, delta: TokenDelta) -> None: ...

    def fail(self, error: EngineDeadError) -> None: ...


class StepListener(Protocol):
    """Told of every step (metrics)."""

    def __call__(self, report: StepReport) -> None: ...


class Engine(Protocol):
    """What the gateway needs of an engine. ``SupervisedEngine`` is the real one; tests script another.

    All methods run on the event loop; those that are not coroutines return at once. ``fork`` has a sink for
    each branch, by its request id. After ``abort`` the sink gets nothing more; with an index, little more of
    that sequence. ``abort``, ``pause`` and ``resume`` of an unknown id do nothing. ``submit`` and ``fork``
    raise EngineDeadError if the engine is gone, and EngineBusyError if it is so far behind that nothing more
    should be sent. ``forget_kv`` raises EngineDeadError too: what is on disk is not forgotten then. When the
    engine is gone ``restart_in_s`` is how long it may take until another takes its place, None if none will;
    ``stats`` are then its last.
    """

    @property
    def info(self) -> EngineInfo: ...

    @property
    def stats(self) -> EngineStats: ...

    @property
    def is_behind(self) -> bool:
        """More steps have ended than it has delivered, so that whoever can may wait for them."""
        ...

    @property
    def num_restarts(self) -> int: ...

    @property
    def restart_in_s(self) -> float | None: ...

    def submit(self, request: AddRequest, sink: DeltaSink) -> None: ...

    def fork(self, request: ForkRequest, sinks: Mapping[str, DeltaSink]) -> None: ...

    def abort(self, request_id: str, index: int | None = None) -> None: ...

    def pause(self, request_id: str) -> None: ...

    def resume(self, request_id: str) -> None: ...

    def forget_kv(self, token_ids: Sequence[int], from_token: int, cache_salt: bytes) -> None: ...

    def health(self) -> EngineHealth: ...

    async def check_integrity(self) -> IntegrityReport: ...

    async def describe_kv(self, limit: int) -> KvReport: ...

    async def describe_sessions(self, sessions: Sequence[str]) -> SessionsReport: ...

    def add_step_listener(self, listener: StepListener) -> None: ...

    async def wait_dead(self) -> str:
        """Return, with the reason, when the engine has died; wait until then."""
        ...

    async def close(self) -> None: ...


class EngineStartError(RuntimeError):
    """The engine could not start. ``is_user_error``: a path or setting is wrong, not the program."""

    def __init__(self, message: str, *, is_user_error: bool) -> None:
        super().__init__(message)
        self.is_user_error = is_user_error


class EngineClient:
    """An engine in a process of its own. Implements ``Engine``; all methods run on the event loop."""

    num_restarts = 0
    restart_in_s = None

    def __init__(self, *, stall_timeout_s: float, on_progress: Callable[[LoadProgress], None]) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._on_progress = on_progress
        self._watch = ProgressWatch(stall_timeout_s)
        self._link = EngineLink(self._receive, self._lose)
        self._process: asyncio.subprocess.Process | None = None
        self._burial: asyncio.Task[None] | None = None
        self._epoch = 0
        self._ready: asyncio.Future[EngineInfo] = loop.create_future()
        self._dead: asyncio.Future[str] = loop.create_future()
        self._closing = False
        self._stats = EngineStats()
        self._sinks: dict[str, DeltaSink] = {}
        self._paused: set[str] = set()
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._num_questions = 0
        self._listeners: list[StepListener] = []

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        stall_timeout_s: float = 60.0,
        on_progress: Callable[[LoadProgress], None] = lambda progress: None,
        module: str = "engine.process",
    ) -> EngineClient:
        """Start an engine process and wait until it is ready. Raises EngineStartError.

        ``module`` is what the process runs; ``stall_timeout_s`` is when ``health`` turns STALLED.
        """
        client = cls(stall_timeout_s=stall_timeout_s, on_progress=on_progress)
        try:
            await client._launch(config, module)
            await client._ready
        except BaseException as error:
            await client.close()
            if isinstance(error, UnicodeEncodeError):
                message = "A setting has characters that are not valid UTF-8."
                raise EngineStartError(message, is_user_error=True) from error
            raise
        return client

    async def _launch(self, config: EngineConfig, module: str) -> None:
        ours, theirs = socket.socketpair()
        try:
            await self._spawn(module, theirs.fileno())
            await self._loop.create_connection(lambda: self._link, sock=ours)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._send(Configure(config))

    async def _spawn(self, module: str, descriptor: int) -> None:
        """Cancelled half-way it still knows its process, for ``close`` to end."""
        spawning = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", module, str(descriptor),
                pass_fds=(descriptor,), stdin=asyncio.subprocess.DEVNULL,
            )
        )  # fmt: skip
        try:
            await asyncio.shield(spawning)
        finally:
            self._process = await spawning

    @property
    def info(self) -> EngineInfo:
        return self._ready.result()

    @property
    def stats(self) -> EngineStats:
        return self._stats

    @property
    def is_behind(self) -> bool:
        return self._link.is_behind

    @property
    def process_id(self) -> int:
        """Of the engine process."""
        assert self._process is not None
        return self._process.pid

    def submit(self, request: AddRequest, sink: DeltaSink) -> None:
        self._begin(request, {request.request_id: sink})

    def fork(self, request: ForkRequest, sinks: Mapping[str, DeltaSink]) -> None:
        assert sinks.keys() == {branch.request_id for branch in request.branches}
        self._begin(request, sinks)

    def _begin(self, command: AddRequest | ForkRequest, sinks: Mapping[str, DeltaSink]) -> None:
        if self._dead.done():
            raise EngineDeadError(self._dead.result())
        if self._link.is_congested:
            raise EngineBusyError("The engine is far behind; try again later.")
        assert not sinks.keys() & self._sinks.keys()
        self._sinks.update(sinks)
        self._note_pending()
        self._send(command)

    def abort(self, request_id: str, index: int | None = None) -> None:
        if index is not None:
            if request_id in self._sinks:
                self._send(AbortRequest(request_id, index))
        elif self._forget(request_id):
            self._send(AbortRequest(request_id))

    def pause(self, request_id: str) -> None:
        if request_id in self._sinks and request_id not in self._paused:
            self._paused.add(request_id)
            self._note_pending()
            self._send(PauseRequest(request_id))

    def resume(self, request_id: str) -> None:
        if request_id in self._paused:
            self._paused.discard(request_id)
            self._note_pending()
            self._send(ResumeRequest(request_id))

    def forget_kv(self, token_ids: Sequence[int], from_token: int, cache_salt: bytes) -> None:
        if self._dead.done():
            raise EngineDeadError(self._dead.result())
        self._send(ForgetKv(token_ids=tuple(token_ids), from_token=from_token, cache_salt=cache_salt))

    def health(self) -> EngineHealth:
        if self._dead.done():
            return EngineHealth.DEAD
        return EngineHealth.STALLED if self._watch.is_stalled(self._loop.time()) else EngineHealth.OK

    async def check_integrity(self) -> IntegrityReport:
        answer = await self._ask(CheckIntegrity)
        assert isinstance(answer, IntegrityReport)
        return answer

    async def describe_kv(self, limit: int) -> KvReport:
        answer = await self._ask(lambda check_id: DescribeKv(check_id, limit))
        assert isinstance(answer, KvReport)
        return answer

    async def describe_sessions(self, sessions: Sequence[str]) -> SessionsReport:
        answer = await self._ask(lambda check_id: DescribeSessions(check_id, tuple(sessions)))
        assert isinstance(answer, SessionsReport)
        return answer

    async def _ask(self, question: Callable[[int], EngineCommand]) -> Answer:
        if self._dead.done():
            raise EngineDeadError(self._dead.result())
        self._num_questions += 1
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._answers[self._num_questions] = answer
        self._send(question(self._num_questions))
        return await answer

    def add_step_listener(self, listener: StepListener) -> None:
        self._listeners.append(listener)

    async def wait_dead(self) -> str:
        return await asyncio.shield(self._dead)

    async def close(self) -> None:
        """End the process: politely, then by force. Requests still running get EngineDeadError."""
        self._closing = True
        if self._process is not None:
            await self._end(self._process)
        self._link.close()
        self._die("it was shut down")
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # whoever waited for it may be gone
        if self._burial is not None:
            await self._burial

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """A loading engine reads no messages and has nothing to lose, so it is not asked."""
        try:
            if self._is_loading:
                raise TimeoutError
            self._send(Shutdown())
            await asyncio.wait_for(process.wait(), _CLOSE_TIMEOUT_S)
        except TimeoutError:
            if not self._is_loading:
                logger.warning("the engine did not leave within %d s and is killed", _CLOSE_TIMEOUT_S)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    @property
    def _is_loading(self) -> bool:
        return not self._ready.done() or self._ready.cancelled()

    def _send(self, command: EngineCommand) -> None:
        if not self._dead.done():
            self._link.send(ToEngine(self._epoch, command))

    def _forget(self, request_id: str) -> bool:
        self._paused.discard(request_id)
        known = self._sinks.pop(request_id, None) is not None
        self._note_pending()
        return known

    def _note_pending(self) -> None:
        self._watch.note_pending(len(self._sinks) > len(self._paused), self._loop.time())

    def _receive(self, envelope: FromEngine) -> None:
        if self._epoch == 0:
            self._epoch = envelope.epoch
        if envelope.epoch != self._epoch:
            return
        match envelope.body:
            case StepReport():
                self._take_report(envelope.body)
            case LoadProgress():
                self._on_progress(envelope.body)
            case Ready(info):
                if not self._ready.done():
                    self._ready.set_result(info)
            case LoadFailed(message, is_user_error):
                self._fail_start(message, is_user_error)
            case IntegrityReport() | KvReport():
                self._stats = envelope.body.stats
                self._take_answer(envelope.body)
            case SessionsReport():
                self._take_answer(envelope.body)
            case EngineFailed(message):
                self._die(message)
            case _:
                assert_never(envelope.body)

    def _take_answer(self, found: Answer) -> None:
        answer = self._answers.pop(found.check_id, None)
        if answer is not None and not answer.done():
            answer.set_result(found)

    def _take_report(self, report: StepReport) -> None:
        self._stats = report.stats
        self._watch.note_step(report.step, self._loop.time())
        for delta in report.deltas:
            sink = self._sinks.get(delta.request_id)
            if sink is None:
                continue
            if delta.ends_request:
                self._forget(delta.request_id)
            sink.deliver(delta)
        for listener in self._listeners:
            listener(report)

    def _fail_start(self, message: str, is_user_error: bool) -> None:
        if not self._ready.done():
            self._ready.set_exception(EngineStartError(message, is_user_error=is_user_error))

    def _lose(self, reason: str) -> None:
        """The connection is gone. Find out how the process ended, then let the streams know."""
        if not self._dead.done() and self._burial is None:
            self._burial = self._loop.create_task(self._bury(reason), name="tidegate-engine-burial")

    async def _bury(self, reason: str) -> None:
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            reason = _how_it_ended(await asyncio.wait_for(self._process.wait(), _LAST_WORDS_TIMEOUT_S))
        self._die(reason)

    def _die(self, reason: str) -> None:
        """Once: every stream gets its error, everyone who waits an answer."""
        if self._dead.done():
            return
        self._fail_start(f"the engine process ended while loading ({reason})", is_user_error=False)
        self._dead.set_result(reason)
        sinks, self._sinks = self._sinks, {}
        self._stats = self._stats.of_the_dead()
        self._paused.clear()
        self._note_pending()
        if not self._closing or sinks:
            logger.error("the engine is gone: %s; requests lost: %s", reason, ", ".join(sinks) or "none")
        error = EngineDeadError(reason)
        for sink in sinks.values():
            sink.fail(error)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
        self._answers.clear()


def _how_it_ended(exit_status: int) -> str:
    if exit_status < 0:
        return f"its process was killed by {signal.Signals(-exit_status).name}"
    return f"its process ended with exit status {exit_status}"
