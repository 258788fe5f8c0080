"""The life of one server: start the engine, serve, drain on a signal or when the engine is gone for good.

Runs on: the main thread, on uvloop. While an engine that died is started again (``engine/supervisor.py``) the
server goes on. Exit status: 0 after a drain, 1 if the engine died too often, or could not start through a
fault of ours, 2 if a setting or path is wrong, 128 plus the signal's number if told to stop while loading, or
twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from engine.client import EngineClient, EngineStartError
from engine.config import ConfigError, EngineConfig
from engine.messages import EngineInfo, LoadProgress
from engine.restarts import RestartPlan
from engine.supervisor import StartEngine, SupervisedEngine
from gateway.app import serve
from gateway.detokenizer import UnsupportedTokenizerError
from gateway.listeners import base_url, bound_listeners
from gateway.responses.store import StateStore
from gateway.state import GatewaySettings
from gateway.tenant_register import TenantRegister
from gateway.thoughts import ReasoningParserError
from gateway.tls import ServerTls
from gateway.tools.registry import ToolParserError, check_parser

log = logging.getLogger("tidegate.gateway")

DEFAULT_ENGINE_RESTARTS = 5
EXIT_FAULT, EXIT_USER_ERROR, EXIT_SIGNALLED = 1, 2, 128
_OTHER_FILES = 64  # that a server has open besides its clients' connections
_ONE_STOP_S = 1.0  # signals this close together are one: make and a supervisor may both pass theirs on


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a server ended. ``message`` is a sentence for the user, if there is something to say."""

    status: int
    message: str | None = None


def run_server(
    config: EngineConfig, settings: GatewaySettings, *, stall_timeout_s: float, engine_restarts: int
) -> Outcome:
    """Serve until a signal, or until the engine has died more than ``engine_restarts`` times; blocks."""
    settings = _within_open_files(settings, _raise_open_file_limit())
    try:
        check_parser(settings.tool_call_parser)
        tenants = TenantRegister.open(settings.api_keys, settings.keys_file)
        tls = None if settings.tls is None else ServerTls(settings.tls)
        with (
            bound_listeners(settings.host, settings.port, settings.send_buffer_bytes) as listeners,
            StateStore.open(settings.state) as store,
        ):
            module = "engine.process" if config.script is None else "engine.scripted_process"
            start = partial(EngineClient.start, config, stall_timeout_s=stall_timeout_s, module=module)
            plan = RestartPlan(engine_restarts)
            return uvloop.run(_Server(start, plan, settings, tenants, listeners, tls, store).run())
    except (ConfigError, UnsupportedTokenizerError, ToolParserError, ReasoningParserError) as error:
        return Outcome(EXIT_USER_ERROR, str(error))
    except EngineStartError as error:
        return Outcome(EXIT_USER_ERROR if error.is_user_error else EXIT_FAULT, str(error))


class _Server:
    """One run. The first signal lets it drain, a second ends the drain, a third everything.

    SIGHUP reads keys and certificates again; without any it ends the process, as for any program.
    """

    def __init__(
        self,
        start_engine: StartEngine,
        plan: RestartPlan,
        settings: GatewaySettings,
        tenants: TenantRegister,
        listeners: Sequence[socket.socket],
        tls: ServerTls | None,
        store: StateStore,
    ) -> None:
        self._start_engine = start_engine
        self._plan = plan
        self._settings = settings
        self._tenants = tenants
        self._listeners = listeners
        self._tls = tls
        self._store = store
        self._reloads: list[Callable[[], Awaitable[None]]] = []  # what SIGHUP sets going, in this order
        if settings.keys_file is not None:
            self._reloads.append(tenants.reload)
        if tls is not None:
            self._reloads.append(tls.reload)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._work: asyncio.Task[Outcome] | None = None
        self._reload: asyncio.Task[None] | None = None
        self._is_loading = True
        self._last_signal = 0
        self._last_signal_at = float("-inf")

    async def run(self) -> Outcome:
        self._work = asyncio.create_task(self._load_and_serve(), name="tidegate-server")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if self._reloads:
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        try:
            return await self._work
        except asyncio.CancelledError:
            return Outcome(EXIT_SIGNALLED + self._last_signal)
        finally:
            if self._reload is not None:
                await asyncio.gather(self._reload, return_exceptions=True)

    def _on_hangup(self) -> None:
        """Reload keys file and certificate. One reload at a time, in the order of the signals."""
        self._reload = asyncio.create_task(self._reload_after(self._reload), name="tidegate-reload")

    async def _reload_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        for reload in self._reloads:
            await reload()

    def _on_signal(self, number: int) -> None:
        assert self._work is not None
        now = asyncio.get_running_loop().time()
        if now - self._last_signal_at < _ONE_STOP_S:
            return
        self._last_signal, self._last_signal_at = number, now
        if self._is_loading or self._hurry.is_set():
            self._work.cancel()
        elif self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _load_and_serve(self) -> Outcome:
        with _loading_display() as on_progress:
            engine = await SupervisedEngine.start(self._start_engine, self._plan, on_progress)
        self._is_loading = False
        watch = asyncio.create_task(self._stop_on_death(engine), name="tidegate-stop-on-death")
        try:
            await serve(
                engine,
                self._settings,
                self._listeners,
                self._stop,
                lambda: self._announce(engine.info),
                self._hurry,
                self._tenants,
                None if self._tls is None else self._tls.context,
                self._store,
            )
            if watch.done():
                return Outcome(EXIT_FAULT, f"The engine died: {watch.result()}.")
            return Outcome(EXIT_SIGNALLED + self._last_signal if self._hurry.is_set() else 0)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await engine.close()

    async def _stop_on_death(self, engine: SupervisedEngine) -> str:
        try:
            return await engine.wait_dead()
        finally:
            self._stop.set()

    def _announce(self, info: EngineInfo) -> None:
        for note in info.notes:
            log.info("%s", note)
        log.info(
            "%s in %s on %s; window %d tokens; KV pool %d blocks of %d tokens (%.2f GiB)",
            info.model_name, info.dtype, info.device, info.max_model_len,
            info.num_blocks, info.block_size, info.kv_bytes / 2**30,
        )  # fmt: skip
        if info.host_blocks:
            log.info(
                "below it: host %d blocks (%.2f GiB), disk %d blocks (%.2f GiB), %d of them found there",
                info.host_blocks, info.host_kv_bytes / 2**30,
                info.disk_blocks, info.disk_kv_bytes / 2**30, info.disk_blocks_found,
            )  # fmt: skip
        if info.host_link:
            log.info("between GPU and host: %s", info.host_link)
        scheme = "http" if self._tls is None else "https"
        url = base_url(self._listeners, scheme)
        log.info("serving %s on %s", info.model_name, url)
        if self._settings.web:
            log.info("chat with it at %s/", url)


@contextlib.contextmanager
def _loading_display() -> Iterator[Callable[[LoadProgress], None]]:
    """A progress bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    columns = (TextColumn("loading {task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        tasks: dict[str, TaskID] = {}

        def show(progress: LoadProgress) -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = display.add_task(progress.phase)
            display.update(tasks[progress.phase], total=progress.total, completed=progress.done)

        yield show


def _raise_open_file_limit() -> int:
    """Each client is an open file; take what the system allows, and say how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _within_open_files(settings: GatewaySettings, open_files: int) -> GatewaySettings:
    """With no more connections than there may be open files: past that nothing could be answered at all."""
    limits = settings.connection_limits
    room = max(1, open_files - _OTHER_FILES)
    if open_files == resource.RLIM_INFINITY or limits.max_connections <= room:
        return settings
    log.warning("at most %d connections instead of %d: see `ulimit -n`", room, limits.max_connections)
    return replace(settings, connection_limits=replace(limits, max_connections=room))
