"""Reads streams and asks ``/health`` in a process of its own, and says when what arrived.

``python -m benchmarks.stream_watch PORT STREAMS PERIOD_S`` prints a line once every stream has begun, watches
until its input ends, and prints what it saw. It does nothing else, so what it sees late was late. Times are
of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

_CHUNK = 65536
_BODY = json.dumps(
    {"prompt": "Once upon a time", "stream": True, "max_tokens": 10**6, "ignore_eos": True}
).encode()
_OPEN_STREAM = (
    b"POST /v1/completions HTTP/1.1\r\nHost: watch\r\nContent-Type: application/json\r\n"
    b"Content-Length: " + str(len(_BODY)).encode() + b"\r\n\r\n" + _BODY
)
_PROBE = b"GET /health HTTP/1.1\r\nHost: watch\r\n\r\n"


@dataclass(slots=True)
class Seen:
    """``arrivals``: of each stream, when tokens came. ``probes``: when each was sent, how long it took."""

    arrivals: list[list[float]] = field(default_factory=list)
    probes: list[tuple[float, float]] = field(default_factory=list)


class _Watch:
    def __init__(self, port: int, num_streams: int, period_s: float) -> None:
        self.seen = Seen([[] for _ in range(num_streams)])
        self._period_s = period_s
        self._selector = selectors.DefaultSelector()
        self._is_over = False
        for arrivals in self.seen.arrivals:
            self._connect(port, partial(self._on_stream, arrivals)).sendall(_OPEN_STREAM)
        self._probe = self._connect(port, self._on_probe)
        self._probe_sent_at: float | None = None
        self._selector.register(sys.stdin, selectors.EVENT_READ)

    def run(self) -> None:
        announced = False
        next_probe = time.monotonic()
        while not self._is_over:
            for key, _ in self._selector.select(max(0.0, next_probe - time.monotonic())):
                self._read(key)
            if time.monotonic() >= next_probe:
                next_probe = time.monotonic() + self._period_s
                self._send_probe()
            if not announced and all(self.seen.arrivals):
                announced = True
                print("watching", flush=True)

    def _connect(self, port: int, on_data: Callable[[bytes], None]) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port))
        self._selector.register(connection, selectors.EVENT_READ, on_data)
        return connection

    def _read(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            self._is_over = True
            return
        assert isinstance(key.fileobj, socket.socket)
        data = key.fileobj.recv(_CHUNK)
        if not data:
            raise RuntimeError("the server closed a connection that it should have kept")
        key.data(data)

    def _on_stream(self, arrivals: list[float], data: bytes) -> None:
        if b"data: " in data:
            arrivals.append(time.monotonic())

    def _send_probe(self) -> None:
        """One at a time: the next waits for the answer to the last."""
        if self._probe_sent_at is None:
            self._probe_sent_at = time.monotonic()
            self._probe.sendall(_PROBE)

    def _on_probe(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"the server is not well: {data[:200]!r}")
        assert self._probe_sent_at is not None
        self.seen.probes.append((self._probe_sent_at, time.monotonic() - self._probe_sent_at))
        self._probe_sent_at = None


class Watcher:
    """The process, from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def finish(self) -> Seen:
        """End it, and take what it saw."""
        out, _ = self._process.communicate("\n", timeout=60)
        if self._process.returncode != 0:
            raise RuntimeError("the watcher failed; its error stands above")
        seen = json.loads(out)
        return Seen(seen["arrivals"], [tuple(probe) for probe in seen["probes"]])


@contextlib.contextmanager
def watching(port: int, num_streams: int, probe_period_s: float = 0.05) -> Iterator[Watcher]:
    """Watch in a process of its own; entered once every stream has begun."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.stream_watch",
        str(port),
        str(num_streams),
        str(probe_period_s),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "watching\n":
                raise RuntimeError("the watcher did not start; its error stands above")
            yield Watcher(process)
        finally:
            if process.poll() is None:
                process.kill()


if __name__ == "__main__":
    watch = _Watch(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
    watch.run()
    print(json.dumps({"arrivals": watch.seen.arrivals, "probes": watch.seen.probes}))
