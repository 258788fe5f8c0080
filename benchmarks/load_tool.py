"""What the load test itself can take: ``python -m benchmarks.load_tool``.

A scripted server in a process of its own writes single tokens on many streams; the load test's driver reads
them here, on one core. Beside the rate stand the share of that core that it took, how late this event loop
was, and how long after the server wrote a piece it was stamped as come, by the one clock of the machine. What
lies between those two is the kernel's time and ours; a server that is late itself is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import cast

import uvloop

from benchmarks.report import print_table, write_json
from loadtest.clock import MonotonicClock
from loadtest.drivers.apis import Options
from loadtest.drivers.driver import ServerDriver
from loadtest.drivers.open_files import allow_connections
from loadtest.drivers.target import ApiName, Target, TransportName
from loadtest.lag import LagMeter
from loadtest.plan import PlannedRequest
from loadtest.timeline import Outcome, Timeline
from tests.support.scripted_openai import Record, Reply, Script, scripted_openai

_MAX_LAG_MS = 5.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one round. Times in milliseconds; ``core_share``: processor time of this process by time passed."""

    transport: str
    streams: int
    tokens_s: float
    core_share: float
    loop_lag_p50: float
    loop_lag_p99: float
    delivery_p50: float
    delivery_p99: float


@dataclass(slots=True)
class _Cost:
    used_s: float
    passed_s: float
    lags_s: list[float]


async def measure(transport: TransportName, *, streams: int, gap_s: float, length_s: float) -> Figures:
    """Every stream is one answer of ``length_s``; they start spread over one gap."""
    with scripted_openai(Script(replies=(Reply(gap_s=gap_s),))) as server, _apart_from(server.pid):
        api: ApiName = "chat" if transport == "sse" else "responses"
        target = Target(server.url, "scripted", api=api, transport=transport)
        driver = ServerDriver(target, Options(tells_usage=True), clock := MonotonicClock())
        origin = time.perf_counter() - clock.now()
        requests = [PlannedRequest(i, f"stream {i}", 12, round(length_s / gap_s)) for i in range(streams)]
        timelines = [Timeline(planned, 0, 12, 0.0) for planned in requests]
        cost = await _read_all(driver, clock, timelines, gap_s)
        await driver.close()
        delays_s = _delays(timelines, await asyncio.to_thread(server.records), origin)
    failed = {timeline.reason for timeline in timelines if timeline.outcome is not Outcome.COMPLETED}
    if failed:
        raise RuntimeError(f"requests failed: {', '.join(sorted(failed))}")
    tokens = sum(timeline.usage.completion_tokens for timeline in timelines if timeline.usage is not None)
    return Figures(
        transport,
        streams,
        tokens / cost.passed_s,
        cost.used_s / cost.passed_s,
        *(1000 * _quantile(values, share) for values in (cost.lags_s, delays_s) for share in (0.5, 0.99)),
    )


async def _read_all(
    driver: ServerDriver, clock: MonotonicClock, timelines: Sequence[Timeline], gap_s: float
) -> _Cost:
    gc.collect()
    gc.freeze()
    calls = [driver.prepare(timeline.planned) for timeline in timelines]
    meter = LagMeter(MonotonicClock())

    async def user(index: int) -> None:
        await clock.sleep_until(began_at + gap_s * index / len(calls))
        await driver.perform(calls[index], (), timelines[index])

    probe = asyncio.create_task(meter.watch(), name="lag-meter")
    began_at, used_s = clock.now(), time.process_time()
    try:
        await asyncio.gather(*(user(index) for index in range(len(calls))))
    finally:
        gc.unfreeze()
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
    return _Cost(time.process_time() - used_s, clock.now() - began_at, meter.samples_s)


@contextlib.contextmanager
def _apart_from(pid: int) -> Iterator[None]:
    """This process has one core to itself, and the other process the rest, where there are several."""
    cores = os.sched_getaffinity(0)
    first, rest = {min(cores)}, cores - {min(cores)}
    os.sched_setaffinity(pid, rest or first)
    os.sched_setaffinity(0, first)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _delays(timelines: Sequence[Timeline], records: Sequence[Record], origin: float) -> list[float]:
    written = {record.prompt: record.written_at[0] for record in records}
    return [
        came + origin - wrote
        for timeline in timelines
        for came, wrote in zip(timeline.piece_times[0], written[timeline.planned.text], strict=True)
    ]


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[200, 400, 600])
    parser.add_argument("--gap-ms", type=float, default=20.0, help="between tokens of a stream (20)")
    parser.add_argument("--length", type=float, default=10.0, metavar="S", help="of each stream (10)")
    parser.add_argument("--transport", choices=("sse", "ws"), nargs="+", default=["sse", "ws"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE too")
    arguments = parser.parse_args()
    allow_connections(max(arguments.streams))
    rounds = [
        uvloop.run(
            measure(
                cast(TransportName, transport),
                streams=streams,
                gap_s=arguments.gap_ms / 1000,
                length_s=arguments.length,
            )
        )
        for transport, streams in chain.from_iterable(
            [(transport, streams) for streams in arguments.streams] for transport in arguments.transport
        )
    ]
    _print(rounds)
    write_json(arguments.json, {"gap_ms": arguments.gap_ms, "rounds": [asdict(found) for found in rounds]})


def _print(rounds: Sequence[Figures]) -> None:
    columns = (
        "transport", "streams", "tokens/s", "core", "loop lag p50", "p99", "delivery p50", "p99", "kept up",
    )  # fmt: skip
    rows = [
        (
            found.transport,
            str(found.streams),
            f"{found.tokens_s:,.0f}",
            f"{found.core_share:.0%}",
            *(
                f"{value:.2f} ms"
                for value in (
                    found.loop_lag_p50,
                    found.loop_lag_p99,
                    found.delivery_p50,
                    found.delivery_p99,
                )
            ),
            "yes" if found.loop_lag_p99 < _MAX_LAG_MS else "no",
        )
        for found in rounds
    ]
    print_table("streamed tokens that the load test reads on one core", columns, rows)


if __name__ == "__main__":
    main()
