"""Reads streams off raw sockets and parses nothing: a process of its own.

``python -m benchmarks.gateway.sink`` reads one line, a ``Task``, opens its streams, and prints ``open`` once
each has begun. Each further line it answers with a ``Count``; when its input ends it prints a last one and
leaves. Of every ``watch_each``-th stream it keeps what came and when, for
whoever has the time to parse it; the last count has it.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec

from benchmarks.gateway.requests import Opening

_READ_BYTES = 256 * 2**10
_AT_ONCE = 64  # connections that are opened before anything is read
_UNDER_WAY = 1000  # streams that have not begun, at most
_GIVE_UP_S = 120.0


class Task(msgspec.Struct):
    """``num_streams`` connections to ``port``; those beyond ``num_active`` of them ask for nothing."""

    port: int
    opening: Opening
    num_streams: int
    num_active: int
    watch_each: int = 0  # none, if 0


class Arrival(msgspec.Struct, array_like=True):
    """What came of one read of a watched stream. Seconds of the monotonic clock."""

    at_s: float
    data: bytes


class Count(msgspec.Struct):
    """Of all streams so far."""

    at_s: float
    num_events: int
    num_bytes: int
    num_reads: int
    num_ended: int
    watched: list[list[Arrival]] = []


class _Sink:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._missing: set[int] = set()  # streams of which nothing has come
        self._watched: dict[int, list[Arrival]] = {}
        self._buffer = bytearray(_READ_BYTES)
        self._num_events = self._num_bytes = self._num_reads = self._num_ended = 0

    def open(self) -> None:
        """All connections, and the first event of every stream that is active."""
        for first in range(0, self._task.num_streams, _AT_ONCE):
            last = min(first + _AT_ONCE, self._task.num_streams)
            self._begin([self._connected() for _ in range(first, last)], first)
            self._wait_heads(_UNDER_WAY)
        self._wait_heads(0)

    def _connected(self) -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", self._task.port), timeout=_GIVE_UP_S)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def _begin(self, opened: Sequence[socket.socket], first: int) -> None:
        """Send a batch's requests, and take the first answer to each. The others are read meanwhile."""
        opening = self._task.opening
        active = opened[: max(0, self._task.num_active - first)]
        for one in active:
            one.sendall(opening.first)
        if opening.then:
            for one in active:
                self._take_head(one)
                one.sendall(opening.then)
        for number, one in enumerate(opened, start=first):
            one.setblocking(False)
            self._sockets[one.fileno()] = one
            if self._task.watch_each and number % self._task.watch_each == 0:
                self._watched[one.fileno()] = []
            self._epoll.register(one.fileno(), select.EPOLLIN)
        if not opening.then:
            self._missing |= {one.fileno() for one in active}

    def _take_head(self, one: socket.socket) -> None:
        """Of a handshake, which is all that comes."""
        head = one.recv(4096)
        if not head.startswith(b"HTTP/1.1 101 "):
            raise RuntimeError(f"no WebSocket: {head[:200]!r}")

    def _wait_heads(self, num_left: int) -> None:
        """Until no more streams than that have still to begin."""
        deadline = time.monotonic() + _GIVE_UP_S
        while len(self._missing) > num_left:
            self.read(0.1)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(self._missing)} streams did not begin")

    def read(self, timeout_s: float) -> list[int]:
        """What there is, once from each socket; returns which they were, the input (0) among them."""
        ready = [fd for fd, _ in self._epoll.poll(timeout_s)]
        buffer, mark = self._buffer, self._task.opening.mark
        for fd in ready:
            if not fd:
                continue
            try:
                size = self._sockets[fd].recv_into(buffer)
            except ConnectionResetError:
                size = 0
            if not size:
                self._end(fd)
                continue
            if fd in self._missing:
                self._check_head(fd, size)
            self._num_reads += 1
            self._num_bytes += size
            self._num_events += buffer.count(mark, 0, size)
            if fd in self._watched:
                self._watched[fd].append(Arrival(time.monotonic(), bytes(buffer[:size])))
        return ready

    def _check_head(self, fd: int, size: int) -> None:
        self._missing.discard(fd)
        if not self._buffer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 101 ")):
            raise RuntimeError(f"no stream: {bytes(self._buffer[: min(size, 400)])!r}")

    def _end(self, fd: int) -> None:
        self._epoll.unregister(fd)
        self._sockets.pop(fd).close()
        self._num_ended += 1

    def count(self, *, is_last: bool = False) -> Count:
        return Count(
            time.monotonic(), self._num_events, self._num_bytes, self._num_reads, self._num_ended,
            list(self._watched.values()) if is_last else [],
        )  # fmt: skip

    def serve(self) -> None:
        """Count on demand until the input ends."""
        self._epoll.register(0, select.EPOLLIN)
        while True:
            if 0 in self.read(1.0):
                if not sys.stdin.buffer.readline():
                    break
                _say(self.count())
        self._epoll.unregister(0)
        _say(self.count(is_last=True))


def _say(count: Count) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(count) + b"\n")
    sys.stdout.buffer.flush()


class Sink:
    """The process, from outside."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def count(self) -> Count:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self._answer()

    def finish(self) -> Count:
        """Hang up; with what came on the streams that were watched."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._answer()

    def _answer(self) -> Count:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the sink failed; its error stands above")
        return msgspec.json.decode(line, type=Count)


@contextlib.contextmanager
def sink(task: Task) -> Iterator[Sink]:
    """Entered once all its streams have begun."""
    command = [sys.executable, "-m", "benchmarks.gateway.sink"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(msgspec.json.encode(task) + b"\n")
            process.stdin.flush()
            if process.stdout.readline() != b"open\n":
                raise RuntimeError("the streams did not begin; the error stands above")
            yield Sink(process)
        finally:
            process.kill()


def _main() -> None:
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    streams = _Sink(msgspec.json.decode(sys.stdin.buffer.readline(), type=Task))
    streams.open()
    sys.stdout.write("open\n")
    sys.stdout.flush()
    streams.serve()


if __name__ == "__main__":
    _main()
