"""Latency that the gateway adds to a token: from its step in the engine to the socket of whoever reads.

The scripted engine's words tell when they were emitted (``engine.scripted_words``), by the clock that all
processes of a machine share. What lies between is the engine's writer thread, the socket between the
processes, the gateway, the kernel, and the reader's own lag. Every so many streams one is watched, and parsed
when all is over. With one phase all streams get their tokens in the same step, as from one engine, and the
last of them waits for all others; with many the load is the same, but even.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.gateway.requests import stamped
from benchmarks.gateway.running import Measured, Pace
from benchmarks.gateway.sink import Arrival, Task, sink
from benchmarks.gateway.usage import cpu_s
from engine.scripted_words import Words

_TEXT = re.compile(rb'"text":"((?: [A-Za-z]+)+)"')
_SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of tokens on watched streams; shares of a core that each process took.

    There are fewer events than tokens where the gateway lagged, so that some had several.
    """

    num_streams: int
    events_per_s: float
    phases: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    gateway_share: float
    engine_share: float
    sink_share: float


def measure(
    server: Measured, words: Words, *, num_streams: int, pace: Pace, watch_each: int, length_s: float
) -> Latency:
    opening = stamped(2**19)
    with sink(Task(server.port, opening, num_streams, num_streams, watch_each)) as reader:
        time.sleep(min(_SETTLE_S, length_s))
        pids = (server.pid, *server.helpers, reader.pid)
        before, used = reader.count(), [cpu_s(pid) for pid in pids]
        time.sleep(length_s)
        after = reader.count()
        passed_s = after.at_s - before.at_s
        shares = [(cpu_s(pid) - then) / passed_s for pid, then in zip(pids, used, strict=True)]
        watched = reader.finish().watched
    numbers = {text: index for index, text in enumerate(words.texts)}
    delays = sorted(
        1000 * delay
        for arrivals in watched
        for at_s, delay in delays_s(arrivals, words, numbers)
        if before.at_s <= at_s <= after.at_s
    )
    return Latency(
        num_streams, (after.num_events - before.num_events) / passed_s, pace.phases,
        delays[len(delays) // 2], delays[int(0.99 * len(delays))], delays[-1],
        shares[0], sum(shares[1:-1]), shares[-1],
    )  # fmt: skip


def delays_s(
    arrivals: Sequence[Arrival], words: Words, numbers: dict[str, int]
) -> Iterator[tuple[float, float]]:
    """When each word of a stream came, and how long after it was emitted."""
    for arrival in arrivals:
        for stretch in _TEXT.findall(arrival.data):
            for word in stretch.decode().split():
                yield arrival.at_s, words.age_s(numbers[f" {word}"], 0, arrival.at_s)
