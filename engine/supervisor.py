"""An engine that outlives its process: when one dies, another is started in its place.

Runs on the event loop, in one task that ``close`` cancels and awaits. When and how often is for
``engine.restarts`` to say. Until another is ready the dead one's client stays in place: all that it ran has
been failed, whatever is new it refuses with EngineDeadError, and its last figures stay. Each process has a
client, a socket and an epoch of its own, so nothing of an earlier one can be taken for a later one's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from engine.client import (
    DeltaSink,
    Engine,
    EngineDeadError,
    EngineHealth,
    EngineStartError,
    StepListener,
)
from engine.forget_log import ForgetLog
from engine.messages import (
    AddRequest,
    EngineInfo,
    ForgetKv,
    ForkRequest,
    IntegrityReport,
    KvReport,
    LoadProgress,
    SessionsReport,
)
from engine.restarts import RestartPlan, differences
from engine.stats import EngineStats

logger = logging.getLogger(__name__)

_NAMES = {"fingerprint": "weights (or another way of computing)"}
OnProgress = Callable[[LoadProgress], None]


class StartEngine(Protocol):
    """Starts one engine, always with the same settings. Raises EngineStartError."""

    def __call__(self, *, on_progress: OnProgress) -> Awaitable[Engine]: ...


class SupervisedEngine:
    """Implements ``Engine``. ``wait_dead`` returns when no other is started any more, ``info`` says which
    one serves, or did last.
    """

    def __init__(self, engine: Engine, start: StartEngine, plan: RestartPlan) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine = engine
        self._start = start
        self._plan = plan
        self._listeners: list[StepListener] = []
        self._forgets = ForgetLog()
        self._num_restarts = 0
        self._task = self._loop.create_task(self._supervise(), name="tidegate-engine-supervisor")

    @classmethod
    async def start(
        cls, start: StartEngine, plan: RestartPlan, on_progress: OnProgress = lambda progress: None
    ) -> SupervisedEngine:
        """Start the first engine; ``start`` starts each. Raises what that raises."""
        loop = asyncio.get_running_loop()
        plan.note_start(loop.time())
        engine = await start(on_progress=on_progress)
        plan.note_ready(loop.time())
        return cls(engine, start, plan)

    # ---- what it does itself ----

    def health(self) -> EngineHealth:
        return self._engine.health() if self.restart_in_s is None else EngineHealth.RESTARTING

    @property
    def restart_in_s(self) -> float | None:
        if self._task.done() or self._engine.health() is not EngineHealth.DEAD:
            return None
        return self._plan.ready_in_s(self._loop.time())

    @property
    def num_restarts(self) -> int:
        return self._num_restarts

    def add_step_listener(self, listener: StepListener) -> None:
        self._listeners.append(listener)
        self._engine.add_step_listener(listener)

    def forget_kv(self, token_ids: Sequence[int], from_token: int, cache_salt: bytes) -> None:
        """What the engine is asked shortly before it dies, and while there is none, the next one is asked."""
        forget = ForgetKv(token_ids=tuple(token_ids), from_token=from_token, cache_salt=cache_salt)
        now_s = self._loop.time()
        if self.restart_in_s is None:
            self._engine.forget_kv(token_ids, from_token, cache_salt)
            self._forgets.note(forget, now_s)
        elif not self._forgets.try_add(forget, now_s):
            raise EngineDeadError("there is too much to forget until another takes its place")

    async def wait_dead(self) -> str:
        return await asyncio.shield(self._task)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._engine.close()

    async def _supervise(self) -> str:
        """Returns why there will be no engine any more."""
        reason = await self._engine.wait_dead()
        while (delay_s := self._plan.note_death(self._loop.time())) is not None:
            await self._engine.close()  # its process may be on its way out yet
            logger.warning("another engine is started in %g s", delay_s)
            await asyncio.sleep(delay_s)
            try:
                await self._replace()
            except _OtherModelError as error:
                return f"{reason}, and {error}"
            except (EngineStartError, EngineDeadError, OSError) as error:
                reason = f"it could not be started again: {str(error).rstrip('.')}"
                logger.error("the engine: %s", reason)
            else:
                reason = await self._engine.wait_dead()
        return f"{reason}{self._plan.limit}"

    async def _replace(self) -> None:
        """Raises _OtherModelError; EngineStartError, EngineDeadError or OSError if another try may do."""
        self._plan.note_start(self._loop.time())
        engine = await self._start(on_progress=lambda progress: None)
        others = differences(self._engine.info, engine.info)
        if others:
            await engine.close()
            raise _OtherModelError(others)
        self._plan.note_ready(self._loop.time())
        for listener in self._listeners:
            engine.add_step_listener(listener)
        self._engine = engine
        for forget in self._forgets.take():
            self.forget_kv(forget.token_ids, forget.from_token, forget.cache_salt)
        self._num_restarts += 1
        logger.warning("another engine serves; it found %d blocks on disk", engine.info.disk_blocks_found)

    # ---- what the engine does ----

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats

    @property
    def is_behind(self) -> bool:
        return self._engine.is_behind

    def submit(self, request: AddRequest, sink: DeltaSink) -> None:
        self._engine.submit(request, sink)

    def fork(self, request: ForkRequest, sinks: Mapping[str, DeltaSink]) -> None:
        self._engine.fork(request, sinks)

    def abort(self, request_id: str, index: int | None = None) -> None:
        self._engine.abort(request_id, index)

    def pause(self, request_id: str) -> None:
        self._engine.pause(request_id)

    def resume(self, request_id: str) -> None:
        self._engine.resume(request_id)

    async def check_integrity(self) -> IntegrityReport:
        return await self._engine.check_integrity()

    async def describe_kv(self, limit: int) -> KvReport:
        return await self._engine.describe_kv(limit)

    async def describe_sessions(self, sessions: Sequence[str]) -> SessionsReport:
        return await self._engine.describe_sessions(sessions)


class _OtherModelError(Exception):
    def __init__(self, others: tuple[str, ...]) -> None:
        names = ", ".join(_NAMES.get(name, name.replace("_", " ")) for name in others)
        super().__init__(f"what was started in its place is another model, with other {names}")
