"""WebSockets of /v1/responses in a process of its own: some that only answer pings, some that stream.

``python -m benchmarks.socket_crowd PORT IDLE ACTIVE`` prints a line once all are open and every stream has
begun, goes on until its input ends, and prints when the tokens of each stream came, by the monotonic clock.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import cast

import uvloop

_HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: crowd\r\nUser-Agent: AsyncOpenAI/Python 3.57.0\r\n"
    b"Authorization: Bearer " + b"k" * 46 + b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n"
)
_CREATE = json.dumps(
    {"type": "response.create", "input": "Once upon a time", "max_output_tokens": 10**6, "store": False}
).encode()
_PING, _TEXT = 0x9, 0x1
_AT_ONCE = 100


def _masked(opcode: int, payload: bytes) -> bytes:
    """A short frame, under a mask of zeros."""
    size = bytes((0x80 | len(payload),)) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2)
    return bytes((0x80 | opcode,)) + size + bytes(4) + payload


class _Socket(asyncio.Protocol):
    """``arrivals`` is None for one that is idle."""

    def __init__(self, is_active: bool) -> None:
        loop = asyncio.get_running_loop()
        self.ready = loop.create_future()
        self.arrivals: list[float] | None = [] if is_active else None
        self._data = b""
        self._is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(_HANDSHAKE % base64.b64encode(os.urandom(16)))

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._is_open:
            head, mark, self._data = self._data.partition(b"\r\n\r\n")
            if not mark:
                self._data = head
                return
            if not head.startswith(b"HTTP/1.1 101 "):
                raise RuntimeError(f"no WebSocket: {head[:200]!r}")
            self._is_open = True
            if self.arrivals is None:
                self.ready.set_result(None)
            else:
                self._transport.write(_masked(_TEXT, _CREATE))
        for opcode, payload in self._frames():
            if opcode == _PING:
                self._transport.write(_masked(0xA, payload))
            elif b'"response.output_text.delta"' in payload and self.arrivals is not None:
                self.arrivals.append(time.monotonic())
                if not self.ready.done():
                    self.ready.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(RuntimeError("the server closed a connection"))

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        while len(self._data) >= 2:
            size, start = self._data[1] & 0x7F, 2
            if size >= 126:
                start = 4 if size == 126 else 10
                size = int.from_bytes(self._data[2:start])
            if len(self._data) < start + size:
                return
            opcode, payload = self._data[0] & 0xF, self._data[start : start + size]
            self._data = self._data[start + size :]
            yield opcode, payload


async def _crowd(port: int, num_idle: int, num_active: int) -> list[list[float]]:
    loop = asyncio.get_running_loop()
    sockets: list[_Socket] = []
    kinds = [False] * num_idle + [True] * num_active
    for first in range(0, len(kinds), _AT_ONCE):
        made = [
            loop.create_connection(lambda active=active: _Socket(active), "127.0.0.1", port)  # type: ignore[misc]
            for active in kinds[first : first + _AT_ONCE]
        ]
        batch = [socket for _, socket in await asyncio.gather(*made)]
        await asyncio.gather(*(socket.ready for socket in batch if socket.arrivals is None))
        sockets += batch
    await asyncio.gather(*(socket.ready for socket in sockets))
    print("open", flush=True)
    stop = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), stop.set)
    await stop.wait()
    lost = sum(socket._transport.is_closing() for socket in sockets)
    if lost:
        raise RuntimeError(f"the server closed {lost} connections that it should have kept")
    return [socket.arrivals for socket in sockets if socket.arrivals is not None]


class Crowd:
    """The process, from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def finish(self) -> list[list[float]]:
        """End it, and take when the tokens of each stream came."""
        out, _ = self._process.communicate("\n", timeout=60)
        if self._process.returncode != 0:
            raise RuntimeError("the crowd failed; its error stands above")
        arrivals: list[list[float]] = json.loads(out)
        return arrivals


@contextlib.contextmanager
def crowd(port: int, *, num_idle: int = 0, num_active: int = 0) -> Iterator[Crowd]:
    """Entered once all are open and every stream has begun."""
    command = [sys.executable, "-m", "benchmarks.socket_crowd", str(port), str(num_idle), str(num_active)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "open\n":
                raise RuntimeError("the crowd did not come; its error stands above")
            yield Crowd(process)
        finally:
            if process.poll() is None:
                process.kill()


if __name__ == "__main__":
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    arrivals = uvloop.run(_crowd(*map(int, sys.argv[1:4])))
    os.set_blocking(sys.stdout.fileno(), True)  # the loop may have changed that
    print(json.dumps(arrivals))
