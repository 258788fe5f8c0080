"""A server that the load test starts itself: its command, its log, and its end.

Runs on: the main thread, outside the event loop. Blocks: while the server starts and ends. The server gets a
process group of its own: Ctrl-C reaches the load test and not the server, and what it started ends with it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadtest.drivers.target import Address, Target

PORT = "{port}"
_PROBES = ("/health", "/v1/models")
_PROBE_EVERY_S = 0.1
_PROBE_TIMEOUT_S = 5.0
_LOG_TAIL_BYTES = 2000


class ServerProcessError(Exception):
    """The server could not be started. The message is for the user and has the end of the log."""


@dataclass(frozen=True, slots=True)
class Launch:
    """``command`` may have ``{port}`` in any of its words; what it prints goes to ``log``."""

    command: tuple[str, ...]
    log: Path
    base_url: str = ""  # where it will answer; empty: at the port that was filled in
    start_timeout_s: float = 600.0
    end_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.base_url and not any(PORT in word for word in self.command):
            raise ServerProcessError(
                "Put {port} into the server's command where its port belongs, or say with --base-url where it"
                " listens."
            )


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """One that is ready."""

    base_url: str
    process: subprocess.Popen[bytes]

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self.process.poll()


@contextlib.contextmanager
def serving(launch: Launch) -> Iterator[ServerProcess]:
    """Start it, wait until it is ready, and end it with the scope. Raises ServerProcessError."""
    port = _free_port()
    base_url = launch.base_url or f"http://127.0.0.1:{port}"
    address = Target(base_url).address
    if any(_status(address, path) is not None for path in _PROBES):
        raise ServerProcessError(
            f"Something answers at {address.url} already, and would be measured in its place: end that, or"
            " take another port."
        )
    command = [word.replace(PORT, str(port)) for word in launch.command]
    with ending_on_signals(), _log(launch) as log:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        except OSError as error:
            raise ServerProcessError(f"{command[0]} cannot be started: {error.strerror or error}.") from error
        try:
            _wait_until_ready(launch, process, address)
            yield ServerProcess(base_url, process)
        finally:
            _end(process, launch.end_timeout_s)


def _wait_until_ready(launch: Launch, process: subprocess.Popen[bytes], address: Address) -> None:
    """What answers is it, and not another one, only if it still runs then."""
    deadline = time.monotonic() + launch.start_timeout_s
    while True:
        is_ready = _is_ready(address)
        if (status := process.poll()) is not None:
            raise ServerProcessError(f"The server ended with status {status}.{_tail(launch.log)}")
        if is_ready:
            return
        if time.monotonic() > deadline:
            raise ServerProcessError(
                f"The server was not ready after {launch.start_timeout_s:g} s.{_tail(launch.log)}"
            )
        time.sleep(_PROBE_EVERY_S)


def _is_ready(address: Address) -> bool:
    """Whether it answers, and not that it is not ready yet. An unknown path or a missing key is an answer."""
    statuses = [_status(address, path) for path in _PROBES]
    return all(status is not None and status < 500 for status in statuses)


def _status(address: Address, path: str) -> int | None:
    kind = http.client.HTTPSConnection if address.uses_tls else http.client.HTTPConnection
    try:
        connection = kind(address.host, address.port, timeout=_PROBE_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("GET", address.prefix + path)
            return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None


def _end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """First by request, then for all that is left of its group by force."""
    try:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    finally:
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _log(launch: Launch) -> Iterator[int]:
    try:
        log = os.open(launch.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as error:
        raise ServerProcessError(f"{launch.log} cannot be written: {error.strerror or error}.") from error
    try:
        yield log
    finally:
        os.close(log)


def _tail(log: Path) -> str:
    """Of one that may be larger than memory."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
        text = file.read(_LOG_TAIL_BYTES).decode(errors="replace").strip()
    return f" The end of {log}:\n{text}" if text else f" It said nothing ({log} is empty)."


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, so that the server ends too."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda given, _: sys.exit(128 + given)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
