"""The engine's end of the socket: two I/O threads between it and bounded queues.

Runs on: threads ``engine-read`` and ``engine-write``, which only decode and encode; everything else
is called by the step thread. At its bound the inbox stops reading (the kernel's socket buffer then
holds the gateway back) and the outbox makes the step thread wait. Once the peer is gone nothing
blocks: what is sent is dropped and ``get`` answers None. A gateway that is alive but has stopped reading
holds up the step thread, and only that: ``close`` gives up on it after its time-out. A copy that ends
calls ``wake``, so the inbox is the step thread's one place to wait.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading

from engine.messages import Configure, EngineCommand, EngineEvent, FromEngine, ToEngine
from engine.wire import FrameDecoder, WireError, encode_frame

logger = logging.getLogger(__name__)

INBOX_BOUND = 4096
OUTBOX_BOUND = 256
_READ_BYTES = 256 * 1024


class EngineConnection:
    """Commands in, events out. ``epoch`` marks every event; commands of another epoch are dropped."""

    def __init__(self, sock: socket.socket, epoch: int) -> None:
        self._sock = sock
        self._epoch = epoch
        self._inbox: queue.Queue[EngineCommand | None] = queue.Queue(INBOX_BOUND)
        self._outbox: queue.Queue[EngineEvent | None] = queue.Queue(OUTBOX_BOUND)
        self._closed = threading.Event()
        self._has_wake = threading.Event()  # a None is in the inbox, or about to be
        self._reader = threading.Thread(target=self._read, name="engine-read", daemon=True)
        self._writer = threading.Thread(target=self._write, name="engine-write", daemon=True)
        self._reader.start()
        self._writer.start()

    @property
    def is_closed(self) -> bool:
        """Whether the gateway is gone."""
        return self._closed.is_set()

    def get(self) -> EngineCommand | None:
        """Wait for the next command; None once the gateway is gone."""
        return self._inbox.get()

    def poll(self) -> list[EngineCommand]:
        """The commands that have arrived, without waiting."""
        commands: list[EngineCommand] = []
        while len(commands) < INBOX_BOUND:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                break
            if command is None:
                self._has_wake.clear()
            else:
                commands.append(command)
        return commands

    def wait(self, timeout_s: float | None = None) -> list[EngineCommand]:
        """Wait until a command arrives, ``wake`` is called, the gateway is gone or the time is up.

        Returns the commands that there are.
        """
        try:
            first = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return []
        if first is None:
            self._has_wake.clear()
            return self.poll()
        return [first, *self.poll()]

    def wake(self) -> None:
        """Let ``wait`` return, now or when it is next called. From any thread; never blocks."""
        if self._has_wake.is_set():
            return  # whoever takes it from the inbox looks at the copies after that
        self._has_wake.set()
        try:
            self._inbox.put_nowait(None)
        except queue.Full:  # then there is enough in it to wake anybody
            self._has_wake.clear()

    def send(self, event: EngineEvent) -> None:
        """Queue an event; waits while the outbox is full and the gateway alive."""
        self._outbox.put(event)

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is queued, for at most ``timeout_s``, then close the socket."""
        with contextlib.suppress(queue.Full):
            self._outbox.put(None, timeout=timeout_s)
        self._writer.join(timeout_s)
        self._closed.set()
        self._sock.close()

    def _read(self) -> None:
        decoder = FrameDecoder(ToEngine)
        try:
            while data := self._sock.recv(_READ_BYTES):
                for envelope in decoder.feed(data):
                    if envelope.epoch == self._epoch or isinstance(envelope.body, Configure):
                        self._inbox.put(envelope.body)
        except OSError:
            pass
        except WireError:
            logger.exception("the gateway's messages cannot be read")
        self._closed.set()
        self._inbox.put(None)

    def _write(self) -> None:
        while (event := self._outbox.get()) is not None:
            if self._closed.is_set():
                continue
            try:
                self._sock.sendall(encode_frame(FromEngine(self._epoch, event, self._outbox.qsize())))
            except OSError:
                self._closed.set()
            except Exception:
                logger.exception("a message cannot be sent; the gateway is cut off")
                self._closed.set()
                self._sock.shutdown(socket.SHUT_RDWR)
