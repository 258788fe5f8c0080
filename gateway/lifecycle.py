"""The life of one server: start the engine, serve, drain on a signal or when the engine dies.

Runs on: the main thread, on uvloop. Exit status: 0 after a drain, 1 if the engine died or could not
start through a fault of ours, 2 if a setting or path is wrong, 130 if interrupted while loading.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from engine.client import EngineClient, EngineStartError
from engine.config import ConfigError, EngineConfig
from engine.messages import EngineInfo, LoadProgress
from gateway.app import serve
from gateway.detokenizer import UnsupportedTokenizerError
from gateway.state import GatewaySettings

log = logging.getLogger("tidegate.gateway")

EXIT_FAULT, EXIT_USER_ERROR, EXIT_INTERRUPTED = 1, 2, 130


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a server ended. ``message`` is a sentence for the user, if there is something to say."""

    status: int
    message: str | None = None


def run_server(config: EngineConfig, settings: GatewaySettings, *, stall_timeout_s: float) -> Outcome:
    """Serve until a signal or the engine's death; blocks."""
    try:
        _check_address(settings)
        _raise_open_file_limit()
        return uvloop.run(_run(config, settings, stall_timeout_s))
    except (ConfigError, UnsupportedTokenizerError) as error:
        return Outcome(EXIT_USER_ERROR, str(error))
    except EngineStartError as error:
        return Outcome(EXIT_USER_ERROR if error.is_user_error else EXIT_FAULT, str(error))


async def _run(config: EngineConfig, settings: GatewaySettings, stall_timeout_s: float) -> Outcome:
    stop = asyncio.Event()
    with _stopped_by_signals(stop), _loading_display() as on_progress:
        starting = asyncio.create_task(
            EngineClient.start(config, stall_timeout_s=stall_timeout_s, on_progress=on_progress)
        )
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return Outcome(EXIT_INTERRUPTED)
    with _stopped_by_signals(stop):
        return await _serve(starting.result(), settings, stop)


async def _serve(engine: EngineClient, settings: GatewaySettings, stop: asyncio.Event) -> Outcome:
    watch = asyncio.create_task(_stop_on_death(engine, stop), name="tidegate-stop-on-death")
    try:
        await serve(engine, settings, stop, on_started=lambda url: _announce(engine.info, url))
        died = watch.done()
        return Outcome(EXIT_FAULT, f"The engine died: {watch.result()}.") if died else Outcome(0)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await engine.close()


async def _stop_on_death(engine: EngineClient, stop: asyncio.Event) -> str:
    reason = await engine.wait_dead()
    stop.set()
    return reason


def _announce(info: EngineInfo, url: str) -> None:
    for note in info.notes:
        log.info("%s", note)
    log.info(
        "%s in %s on %s; window %d tokens; KV pool %d blocks of %d tokens (%.2f GiB)",
        info.model_name, info.dtype, info.device, info.max_model_len,
        info.num_blocks, info.block_size, info.kv_bytes / 2**30,
    )  # fmt: skip
    log.info("serving %s on %s", info.model_name, url)


@contextlib.contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


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


def _check_address(settings: GatewaySettings) -> None:
    """Find out now, not after loading a model, that the port is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((settings.host, settings.port))
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {settings.host}:{settings.port}: {error.strerror or error}."
        ) from error


def _raise_open_file_limit() -> None:
    """Each client is an open file; take what the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
