"""Servers that are kept running and measured one at a time. Blocks: while one starts or ends.

One that is not measured is stopped with its whole process group (SIGSTOP): an idle server may still wake up,
spin or clean up, and that would be another's time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cpu_engine.systems import System
from loadtest.measuring.server_process import Launch, ServerProcess, serving

_START_TIMEOUT_S = 900.0
_ANSWER_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is up, and stopped unless within ``going``. ``start_s``: to its first token."""

    system: System
    process: ServerProcess
    start_s: float

    @property
    def url(self) -> str:
        return self.process.base_url

    @contextlib.contextmanager
    def going(self) -> Iterator[None]:
        """Let it run until the scope ends."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def wait_for_token(self, prompt: str) -> None:
        """Within ``going``: until it answers. Raises OSError."""
        wait_for_token(self.url, prompt)

    def memory_bytes(self) -> int:
        """Of all its processes, what they share counted once, less the KV pool."""
        return group_memory_bytes(self.process.process.pid) - self.system.kv_bytes

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.process.pid, number)


@contextlib.contextmanager
def running(system: System, log: Path) -> Iterator[Running]:
    """Start it, have a first token of it, and stop it until it is wanted.

    Raises ServerProcessError and OSError.
    """
    started = time.perf_counter()
    with serving(Launch(system.command, log, start_timeout_s=_START_TIMEOUT_S)) as process:
        wait_for_token(process.base_url)
        server = Running(system, process, time.perf_counter() - started)
        server._signal(signal.SIGSTOP)
        try:
            yield server
        finally:
            server._signal(signal.SIGCONT)  # else it could not end


def wait_for_token(url: str, prompt: str = "The tide comes in and") -> None:
    """Until the first event of a completion. Raises OSError, also where the server dies over it."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=_ANSWER_TIMEOUT_S) as answer:
        model = json.load(answer)["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_ANSWER_TIMEOUT_S) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                return
    raise ConnectionError("the server ended the stream before a token came")


def group_memory_bytes(group: int) -> int:
    """The proportional set size of all processes of a process group."""
    return sum(_memory_bytes(pid) for pid in _pids_of(group))


def _pids_of(group: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                found.append(int(path.parent.name))
    return found


def _memory_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
