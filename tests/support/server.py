"""A real ``tidegate serve`` process on a free port of 127.0.0.1, ended by its own process id."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import workers

ADMIN_KEY = "test-admin-key"
START_TIMEOUT_S = 120
_PORTS = range(20_000, 32_000)  # below those that the system gives to outgoing connections


def free_port() -> int:
    """Where nobody listens, and neither a connection nor another worker's server can come first."""
    while True:
        port = random.choice(_PORTS[workers.INDEX :: workers.NUMBER])
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _threads() -> list[str]:
    """What is usual, but within a worker's share of the processors."""
    return ["--threads", str(workers.PROCESSORS)] if workers.NUMBER > 1 else []


@dataclass
class Server:
    """A running server. ``log`` is what it has printed so far."""

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path
    trust: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self.trust is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def engine_pid(self) -> int:
        """The server's one child."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == 1, children
        return int(children[0])

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        return self._send(urllib.request.Request(self.url + path, headers=headers))

    def post(self, path: str, body: dict[str, object]) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        return self._send(urllib.request.Request(self.url + path, json.dumps(body).encode(), headers))

    def _send(self, request: urllib.request.Request) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=10, context=self.trust) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def integrity(self) -> dict[str, Any]:
        """The engine's own recount, with its present figures."""
        status, body = self.get("/debug/integrity", Authorization=f"Bearer {ADMIN_KEY}")
        assert status == 200, body
        report: dict[str, Any] = json.loads(body)
        return report

    def wait_idle(self, timeout_s: float = 30) -> dict[str, Any]:
        """Wait until nothing runs, waits or is copied between tiers, and return the recount then."""
        deadline = time.monotonic() + timeout_s
        while True:
            report = self.integrity()
            stats = report["stats"]
            num_copying = sum(tier["blocks_copying"] for tier in stats["tiers"].values())
            if stats["num_running"] + stats["num_waiting"] + num_copying == 0:
                return report
            assert time.monotonic() < deadline, report
            time.sleep(0.05)

    def stop(self, timeout_s: float = 30) -> int:
        """SIGTERM, and the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def running_server(
    *arguments: str, env: dict[str, str] | None = None, trust: ssl.SSLContext | None = None
) -> Iterator[Server]:
    """Serve with these arguments until the scope ends; over HTTPS if there is a certificate to ``trust``."""
    port = free_port()
    command = [sys.executable, "-P", "-m", "gateway.cli", "serve", *_threads(), *arguments]
    command += ["--port", str(port), "--admin-key", ADMIN_KEY]
    with tempfile.TemporaryDirectory() as folder:
        log_path = Path(folder) / "log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(env or {})})
        server = Server(process, port, log_path, trust)
        try:
            _wait_until_up(server)
            yield server
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def _wait_until_up(server: Server) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert server.process.poll() is None, server.log
        with contextlib.suppress(OSError):
            if server.get("/health")[0] == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"not up after {START_TIMEOUT_S} s: {server.log}")
