"""Many streams at once: the memory of each, idle and active, and a ramp to thousands without an error.

Memory is the gateway's resident set before and after they came, by their number; what the kernel holds is not
in it. What a first crowd made the process ask for is used again by the next, so each is counted on a fresh
gateway. An idle one is a connection that has asked for nothing.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

from benchmarks.gateway.requests import chat
from benchmarks.gateway.running import Measured, Pace
from benchmarks.gateway.sink import Task, sink
from benchmarks.gateway.usage import cpu_s, num_files, resident_bytes

_ENDLESS = 2**19
_SETTLE_S = 0.5
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the gateway's memory for each stream."""

    num_streams: int
    idle_bytes: float
    active_bytes: float


@dataclass(frozen=True, slots=True)
class Ramp:
    """``reached_s``: until all had begun. ``tokens_share``: of those that were to come then, at that pace."""

    num_streams: int
    reached_s: float
    tokens_per_s: float
    tokens_share: float
    gateway_share: float
    num_ended: int
    open_files: int


def memory(server: Measured, num_streams: int) -> Memory:
    """Of a gateway that nobody has used yet."""
    with sink(Task(server.port, chat(_ENDLESS), 1, 1)):
        pass  # what is loaded on first use is no stream's cost
    before, num_before = resident_bytes(server.pid), num_files(server.pid)
    with sink(Task(server.port, chat(_ENDLESS), num_streams, 0)):
        _wait_for_files(server, num_before + num_streams)
        time.sleep(_SETTLE_S)
        idle = resident_bytes(server.pid) - before
    time.sleep(_SETTLE_S)
    before = resident_bytes(server.pid) - idle  # which is used again
    with sink(Task(server.port, chat(_ENDLESS), num_streams, num_streams)):
        time.sleep(_SETTLE_S)
        active = resident_bytes(server.pid) - before
    return Memory(num_streams, idle / num_streams, active / num_streams)


def _wait_for_files(server: Measured, number: int) -> None:
    """Until the gateway has taken in the connections that the kernel has."""
    deadline = time.monotonic() + _PATIENCE_S
    while num_files(server.pid) < number:
        if time.monotonic() > deadline:
            raise RuntimeError("the gateway does not take connections in")
        time.sleep(0.05)


def ramp(server: Measured, num_streams: int, pace: Pace, length_s: float) -> Ramp:
    """The sink fails if any is refused, or does not begin."""
    started = time.monotonic()
    with sink(Task(server.port, chat(_ENDLESS), num_streams, num_streams)) as reader:
        reached_s = time.monotonic() - started
        before, used_s = reader.count(), cpu_s(server.pid)
        time.sleep(length_s)
        after, used_s = reader.count(), cpu_s(server.pid) - used_s
    passed_s = after.at_s - before.at_s
    tokens_per_s = (after.num_events - before.num_events) / passed_s
    _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    asked = num_streams * pace.tokens_per_s
    return Ramp(
        num_streams, reached_s, tokens_per_s, tokens_per_s / asked, used_s / passed_s, after.num_ended,
        open_files,
    )  # fmt: skip
