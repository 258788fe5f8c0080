"""One answer of the scripted server: pieces written on time, or what the script has go wrong instead.

Runs on the event loop of the scripted process.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.scripted_events import Counts, Events
from benchmarks.scripted_openai import Record, Reply


class Sink(Protocol):
    """How events get onto a connection."""

    transport: asyncio.Transport

    def begin(self) -> None: ...

    def write(self, events: Sequence[bytes]) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    prompt_tokens: int
    num_tokens: int  # of each choice
    num_choices: int


class Stream:
    """``on_end`` is called once, however it ends. ``leave`` is for when the client has gone.

    From ``hold`` to ``go_on`` no piece is written: the client does not read.
    """

    def __init__(
        self,
        sink: Sink,
        events: Events,
        record: Record,
        reply: Reply,
        wanted: Wanted,
        on_end: Callable[[], None],
    ) -> None:
        self._sink = sink
        self._events = events
        self._record = record
        self._reply = reply
        self._wanted = wanted
        self._on_end = on_end
        self._num_tokens = wanted.num_tokens if reply.num_tokens is None else reply.num_tokens
        self._told = 0  # of each choice
        self._num_pieces = 0
        self._gaps = itertools.cycle(reply.gaps_s or [reply.gap_s])
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = self._is_held = self._is_waiting = False
        record.written_at = [[] for _ in range(wanted.num_choices)]

    def start(self) -> None:
        self._record.turn_at = self._due = time.perf_counter()
        self._after(self._reply.first_s, self._first)

    def leave(self) -> None:
        if not self._is_over:
            self._record.was_left = True
            self._finish()

    def hold(self) -> None:
        self._is_held = True

    def go_on(self) -> None:
        self._is_held = False
        if self._is_waiting and not self._is_over:
            self._is_waiting = False
            self._due = time.perf_counter()
            self._next()

    def _first(self) -> None:
        self._sink.begin()
        self._sink.write(self._events.opening())
        self._next()

    def _next(self) -> None:
        reply = self._reply
        if self._is_held:
            self._is_waiting = True
            return
        if self._goes_wrong():
            return
        pieces = self._pieces()
        while reply.together and self._told < self._num_tokens:
            pieces += self._pieces()
        if reply.together:
            pieces += self._events.closing(self._wanted.num_choices, self._counts)
        self._sink.write(pieces)
        if reply.together:
            self._end(())
        elif self._told >= self._num_tokens:
            self._after(reply.end_s, self._close)
        else:
            self._after(next(self._gaps), self._next)

    def _pieces(self) -> list[bytes]:
        """One of each choice; stamped just before they are written."""
        size = min(self._reply.tokens_each, self._num_tokens - self._told)
        if size <= 0:
            return []
        self._told += size
        self._num_pieces += 1
        text = f" {self._reply.word}" * size
        events = []
        for choice, written_at in enumerate(self._record.written_at):
            events.append(self._events.piece(choice, text, self._counts))
            written_at.append(time.perf_counter())
        return events

    @property
    def _counts(self) -> Counts:
        return Counts(self._wanted.prompt_tokens, self._told * self._wanted.num_choices)

    def _goes_wrong(self) -> bool:
        reply, transport = self._reply, self._sink.transport
        if reply.fail_after == self._num_pieces:
            self._end(self._events.failure(reply.code))
        elif reply.cut_after == self._num_pieces:
            transport.close()
        elif reply.reset_after == self._num_pieces:
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            transport.abort()
        elif reply.stall_after != self._num_pieces:
            return False
        return True

    def _close(self) -> None:
        self._end(self._events.closing(self._wanted.num_choices, self._counts))

    def _end(self, events: Sequence[bytes]) -> None:
        self._record.ended_at = time.perf_counter()
        self._sink.write(events)
        if self._reply.end_late_s:
            asyncio.get_running_loop().call_later(self._reply.end_late_s, self._sink.end)
        elif not self._reply.stays_open:
            self._sink.end()
        self._finish()

    def _finish(self) -> None:
        if not self._is_over:
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()
            self._on_end()

    def _after(self, delay_s: float, then: Callable[[], None]) -> None:
        """By the script's own times, so that lateness does not add up."""
        self._due += delay_s
        left_s = max(0.0, self._due - time.perf_counter())
        self._timer = asyncio.get_running_loop().call_later(left_s, then)
