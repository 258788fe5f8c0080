"""What the load test itself can take: ``python -m benchmarks.load_tool``.

A scripted server in a process of its own writes single tokens on many streams; a whole run of the load test,
with its schedule, its line on the terminal and the server's metrics beside it, reads them on one core. It has
kept up if every token came, at the rate at which they were to be written, and the run calls itself on
schedule. Beside that stand the share of the core that it took, how late its event loop was, and how long
after the server wrote a piece it was stamped as come, by the one clock of the machine. What lies between
those two is the kernel's time, aiohttp's and ours.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import cast

import uvloop

from benchmarks.report import print_table, write_json
from benchmarks.scripted_openai import Record, Reply, Script, scripted_openai
from loadtest.clock import MonotonicClock
from loadtest.drivers.apis import Options
from loadtest.drivers.base import Driver
from loadtest.drivers.driver import ServerDriver
from loadtest.drivers.open_files import allow_connections
from loadtest.drivers.target import ApiName, Target, TransportName
from loadtest.measured import Measured, Progress
from loadtest.measuring.progress import Display
from loadtest.measuring.runner import Runner
from loadtest.measuring.scrape import Scraper, metrics_url
from loadtest.plan import Conversation, Load, Plan, PlannedRequest
from loadtest.results import RATE_TOLERANCE
from loadtest.schedule import schedule
from loadtest.timeline import Outcome, Timeline

_TO_REACH = 20_000  # tokens a second
_METRICS = "".join(f"tidegate_requests_running {number}\n" for number in range(300))


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one round. Times in milliseconds; ``core_share``: processor time of this process by time passed.

    ``tokens_s`` and ``asked_tokens_s`` are of the time in which all streams go on.
    """

    transport: str
    streams: int
    asked_tokens_s: float
    tokens_s: float
    core_share: float
    us_per_token: float  # of processor time
    loop_lag_p50: float
    loop_lag_p99: float
    delivery_p50: float
    delivery_p99: float
    faults: list[str]  # that the run found in itself

    @property
    def has_kept_up(self) -> bool:
        return not self.faults and self.tokens_s >= (1 - RATE_TOLERANCE) * self.asked_tokens_s


@dataclass(frozen=True, slots=True)
class Streams:
    """So many answers of ``length_s``; they start one by one in its first part, and then all go on."""

    number: int
    gap_s: float
    length_s: float

    @property
    def starts_s(self) -> float:
        """No multiple of the gap: their tokens come spread over it, not in step."""
        return min(1.0, self.length_s / 3) - 0.85 * self.gap_s

    def plan(self) -> Plan:
        step_s, output_len = self.starts_s / self.number, round(self.length_s / self.gap_s)
        singles = [
            PlannedRequest(index, f"stream {index}", 12, output_len, at_s=index * step_s)
            for index in range(self.number)
        ]
        return Plan(tuple(Conversation((one,)) for one in singles), Load.OPEN, asked_rate=1 / step_s)

    def tokens_s(self, timelines: Sequence[Timeline]) -> float:
        """Each piece is one token."""
        times = (at for timeline in timelines for at in timeline.piece_times[0])
        return sum(self.starts_s <= at < self.length_s for at in times) / (self.length_s - self.starts_s)


async def measure(transport: TransportName, streams: Streams) -> Figures:
    script = Script(replies=(Reply(gap_s=streams.gap_s),), metrics=_METRICS)
    with scripted_openai(script) as server, _apart_from(server.pid):
        api: ApiName = "chat" if transport == "sse" else "responses"
        target = Target(server.url, "scripted", api=api, transport=transport)
        options, clock = Options(tells_usage=True), MonotonicClock()
        plan = streams.plan()
        measured = await _run(plan, ServerDriver(target, options, clock), clock, target)
        origin = time.perf_counter() - clock.now()
        delays_s = _delays(measured.timelines, await asyncio.to_thread(server.records), origin)
    return _figures(transport, streams, measured, schedule(plan, measured).faults, delays_s)


async def _run(plan: Plan, driver: Driver, clock: MonotonicClock, target: Target) -> Measured:
    """As ``tideload run`` does it."""
    progress = Progress()
    scraper = Scraper(metrics_url(target.address), {}, clock, "tidegate")
    await driver.open()
    try:
        with Display(_Terminal()).showing("run", progress):
            measured = await Runner(driver, clock, progress, asyncio.Event()).run(plan, [scraper.watch])
    finally:
        await driver.close()
    failed = {one.reason for one in measured.timelines if one.outcome is not Outcome.COMPLETED}
    if failed or scraper.problem:
        raise RuntimeError(f"requests failed: {', '.join(sorted(failed))} {scraper.problem}")
    return measured


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _figures(
    transport: str,
    streams: Streams,
    measured: Measured,
    faults: list[str],
    delays_s: Sequence[float],
) -> Figures:
    ends = [timeline.ended_at for timeline in measured.timelines if timeline.ended_at is not None]
    used_s = measured.processor_share * max(ends)
    lag_p50, lag_p99, delivery_p50, delivery_p99 = (
        1000 * _quantile(values, share) for values in (measured.loop_lag_s, delays_s) for share in (0.5, 0.99)
    )
    return Figures(
        transport,
        streams.number,
        streams.number / streams.gap_s,
        streams.tokens_s(measured.timelines),
        measured.processor_share,
        1e6 * used_s / len(delays_s),
        lag_p50,
        lag_p99,
        delivery_p50,
        delivery_p99,
        faults,
    )


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
    rounds = []
    for number, transport in product(arguments.streams, arguments.transport):
        streams = Streams(number, arguments.gap_ms / 1000, arguments.length)
        rounds.append(uvloop.run(measure(cast(TransportName, transport), streams)))
    _print(rounds)
    write_json(
        arguments.json,
        {
            "gap_ms": arguments.gap_ms,
            "rounds": [{**asdict(found), "has_kept_up": found.has_kept_up} for found in rounds],
        },
    )


def _print(rounds: Sequence[Figures]) -> None:
    columns = (
        "transport", "streams", "asked", "tokens/s", "core", "µs a token", "loop lag p50, p99",
        "delivery p50, p99", "kept up",
    )  # fmt: skip
    rows = [
        (
            found.transport,
            str(found.streams),
            f"{found.asked_tokens_s:,.0f}",
            f"{found.tokens_s:,.0f}",
            f"{found.core_share:.0%}",
            f"{found.us_per_token:.1f}",
            f"{found.loop_lag_p50:.2f}, {found.loop_lag_p99:.2f} ms",
            f"{found.delivery_p50:.2f}, {found.delivery_p99:.2f} ms",
            "yes" if found.has_kept_up else "NO",
        )
        for found in rounds
    ]
    print_table("streamed tokens that a load test reads on one core", columns, rows)
    for transport in dict.fromkeys(found.transport for found in rounds):
        kept = [
            found.asked_tokens_s for found in rounds if found.transport == transport and found.has_kept_up
        ]
        has = "has" if max(kept, default=0) >= _TO_REACH else "has NOT"
        print(f"Over {transport} it {has} kept up with {_TO_REACH:,} tokens a second.")


if __name__ == "__main__":
    main()
