"""Looks at the tide for those who watch: one look for all of them, a few times a second, only while they do.

Runs on the event loop. One task asks the engine while there is a watcher; each watcher has the newest
snapshot only, so one that reads slowly misses some and holds up nobody. Bounds: ``MAX_WATCHERS``, shared
out like all room in the house.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from engine.client import Engine, EngineDeadError
from engine.stats import SessionKv
from gateway.errors import ApiError, ErrorKind
from gateway.limits import Account
from gateway.shared_room import SharedRoom
from gateway.tenant_register import Visitor
from gateway.tenants import Tenant
from gateway.tide import HouseRates, OwnFigures, Rate, SessionRegister, TideSnapshot, shown_sessions

MAX_WATCHERS = 256
_ENGINE_TIMEOUT_S = 2.0
_ENCODER = msgspec.json.Encoder()


class Watcher:
    """Somebody who watches as this tenant."""

    def __init__(self, tenant: str, account: Account) -> None:
        self.tenant = tenant
        self.account = account
        self.pace = Rate()
        self._shown = b""
        self._news = asyncio.Event()
        self._has_ended = False

    def show(self, snapshot: bytes) -> None:
        if snapshot != self._shown:
            self._shown = snapshot
            self._news.set()

    def end(self) -> None:
        self._has_ended = True
        self._news.set()

    async def next(self, timeout_s: float) -> bytes | None:
        """The newest snapshot, once it is another one; empty if none came in time, None at the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        if self._has_ended:
            return None
        has_news = self._news.is_set()
        self._news.clear()
        return self._shown if has_news else b""


class TideFeed:
    """``is_shared`` tells whether there are several tenants, ``condition`` what ``/health`` says."""

    def __init__(
        self,
        engine: Engine,
        interval_s: float,
        *,
        is_shared: Callable[[], bool],
        condition: Callable[[], str],
    ) -> None:
        self.register = SessionRegister()
        self._engine = engine
        self._interval_s = interval_s
        self._is_shared = is_shared
        self._condition = condition
        self._house = HouseRates()
        self._room = SharedRoom(MAX_WATCHERS)
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def num_watchers(self) -> int:
        return len(self._watchers)

    def note(self, tenant: Tenant, session: str, response_id: str) -> None:
        """A turn of a session begins; without a session there is nothing to show."""
        if session:
            self.register.note(tenant.name, session, response_id)

    def forget(self, tenant: Tenant, response_id: str) -> None:
        """A response was deleted."""
        self.register.forget(tenant.name, response_id)

    @contextlib.contextmanager
    def watching(self, visitor: Visitor) -> Iterator[Watcher]:
        """Scope of one watcher. Raises ApiError (429) if there are too many."""
        if self._room.lacking(visitor.holder, 1):
            raise ApiError(ErrorKind.BUSY, "Too many watch already.", retry_after_s=5)
        watcher = Watcher(visitor.tenant.name, visitor.account)
        self._room.take(visitor.holder, 1)
        self._watchers.add(watcher)
        if self._task is None:
            self._task = asyncio.create_task(self._look(), name="tidegate-tide")
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            self._room.give_back(visitor.holder, 1)

    def end_all(self) -> None:
        """Every watcher's stream ends: the server leaves."""
        for watcher in self._watchers:
            watcher.end()

    async def close(self) -> None:
        self.end_all()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self) -> None:
        try:
            while self._watchers:
                await self._show_all()
                await asyncio.sleep(self._interval_s)
        finally:
            self._task = None

    async def _show_all(self) -> None:
        uses = {watcher.tenant: self.register.recent(watcher.tenant) for watcher in self._watchers}
        found = await self._found([use.name for of_tenant in uses.values() for use in of_tenant])
        now_s = _now_s()
        house = self._house.figures(self._engine.stats, now_s)
        for watcher in self._watchers:
            if watcher.tenant not in uses:
                continue  # it came meanwhile
            snapshot = TideSnapshot(
                condition=self._condition(),
                block_tokens=self._engine.info.block_size,
                sessions=shown_sessions(uses[watcher.tenant], found),
                own=_own(watcher, now_s),
                house=None if self._is_shared() else house,
            )
            watcher.show(_ENCODER.encode(snapshot))

    async def _found(self, names: Sequence[str]) -> Mapping[str, SessionKv]:
        """What the engine knows of these sessions; nothing while it is gone or does not answer."""
        if not names:
            return {}
        try:
            async with asyncio.timeout(_ENGINE_TIMEOUT_S):
                report = await self._engine.describe_sessions(names)
        except (EngineDeadError, TimeoutError):
            return {}
        return {found.session: found for found in report.sessions}


def _own(watcher: Watcher, now_s: float) -> OwnFigures:
    account = watcher.account
    ttft_s = account.last_ttft_s
    return OwnFigures(
        tokens_per_s=round(watcher.pace.add(now_s, account.generated_total), 1),
        ttft_ms=None if ttft_s is None else round(ttft_s * 1000, 1),
        answers=account.in_flight,
    )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
