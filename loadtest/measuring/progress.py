"""One line on the terminal that says how far a run is.

Runs on: a thread of its own, which reads counters and writes a line four times a second. A terminal that
stands still holds up that thread and not the clock of the run. Where no terminal is, one line stays of each
run that is over: a sweep takes half an hour, and its log should tell how far it is.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import Protocol, TextIO

_EVERY_S = 0.25
_WIPE = "\r\x1b[2K"


class Counters(Protocol):
    """What the runner counts, read at any time."""

    planned: int
    sent: int
    running: int
    completed: int
    failed: int
    pieces: int


class Display:
    """Shows runs one after the other. ``say`` is for what stays on the screen."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()

    def say(self, text: str) -> None:
        print(f"{_WIPE if self._is_terminal else ''}{text}", file=self._stream, flush=True)

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Say what goes on until the scope ends."""
        if self._is_terminal:
            print(what, end="", file=self._stream, flush=True)
        try:
            yield
        finally:
            if self._is_terminal:
                print(_WIPE, end="", file=self._stream, flush=True)

    @contextlib.contextmanager
    def showing(self, title: str, counters: Counters) -> Iterator[None]:
        """Show one run until the scope ends."""
        if not self._is_terminal:
            started = time.monotonic()
            yield
            seconds = time.monotonic() - started
            self.say(progress_line(title, counters, seconds, counters.pieces / max(seconds, _EVERY_S)))
            return
        over = threading.Event()
        thread = threading.Thread(
            target=self._draw, args=(title, counters, over), name="progress", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_EVERY_S)  # no longer: the terminal may stand still

    def _draw(self, title: str, counters: Counters, over: threading.Event) -> None:
        started = time.monotonic()
        before, before_at = 0, started
        while not over.wait(_EVERY_S):
            now, pieces = time.monotonic(), counters.pieces
            line = progress_line(title, counters, now - started, (pieces - before) / (now - before_at))
            before, before_at = pieces, now
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"{_WIPE}{line[:width]}")
            self._stream.flush()
        self._stream.write(_WIPE)
        self._stream.flush()


def progress_line(title: str, counters: Counters, seconds: float, pieces_a_second: float) -> str:
    """What is shown while a run goes on."""
    done = counters.completed + counters.failed
    parts = [
        title,
        f"{done} of {counters.planned} done",
        f"{counters.running} running",
        *([f"{counters.failed} FAILED"] if counters.failed else []),
        f"{pieces_a_second:,.0f} pieces/s",
        f"{seconds:.0f} s",
    ]
    return " · ".join(parts)
