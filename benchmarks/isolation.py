"""What one client's worst does to the streams of others: ``python -m benchmarks.isolation``.

Streams at a fixed pace run in a gateway over the scripted engine, and are read by a process that does nothing
else. A disturbance and as long a time of quiet take turns. A gap is the time between two arrivals on one;
what counts is by how much it exceeds the time of a step, next to the same figure for the quiet.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.disturbances import DISTURBANCES, many_clients
from benchmarks.report import print_table, write_json
from benchmarks.scripted_server import scripted_server
from benchmarks.stream_watch import Seen, watching

TARGET_MS = 100
ARRIVAL, DEPARTURE = "1,000 clients arrive", "1,000 clients leave"
_SHORTEST_S = 0.5
_ECHO_S = 0.3  # after a disturbance is over for its client, what it left behind still counts


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time on the monotonic clock."""

    start: float
    end: float

    def touches(self, start: float, end: float) -> bool:
        return start < self.end and end > self.start

    def covers(self, start: float, end: float) -> bool:
        return self.start <= start and end <= self.end


@dataclass(slots=True)
class Phases:
    """When it was disturbed, and when it was quiet for comparison."""

    disturbed: list[Span] = field(default_factory=list)
    quiet: list[Span] = field(default_factory=list)

    def disturb(self, disturbance: Callable[[], object]) -> None:
        """Carry it out, and be quiet for as long: before it and after it by turns."""
        length_s = max((span.end - span.start for span in self.disturbed[-1:]), default=_SHORTEST_S)
        if len(self.disturbed) % 2:
            self.quiet.append(_wait(length_s))
        start = time.monotonic()
        disturbance()
        time.sleep(_ECHO_S)
        end = _wait(start + _SHORTEST_S - time.monotonic()).end
        self.disturbed.append(Span(start, end))
        if len(self.disturbed) % 2:
            self.quiet.append(_wait(end - start))


def _wait(length_s: float) -> Span:
    start = time.monotonic()
    time.sleep(max(length_s, 0.0))
    return Span(start, time.monotonic())


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds: gaps beyond the step time, and the slowest answer of ``/health``."""

    median: float
    p99: float
    max: float
    health_max: float

    @classmethod
    def of(cls, seen: Seen, step_s: float, counts: Callable[[float, float], bool]) -> Figures:
        """Of the gaps and probes whose start and end ``counts``."""
        gaps = sorted(
            later - earlier - step_s
            for arrivals in seen.arrivals
            for earlier, later in pairwise(arrivals)
            if counts(earlier, later)
        )
        probes = [took for at, took in seen.probes if counts(at, at + took)]
        p99 = gaps[int(0.99 * len(gaps))]
        ms = (1000 * value for value in (statistics.median(gaps), p99, gaps[-1], max(probes, default=0.0)))
        return cls(*ms)

    def as_json(self) -> dict[str, float]:
        return {name: round(value, 2) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A gap that reaches into a disturbance is its doing; one that only reaches into quiet is not."""

    seen: Seen
    phases: Mapping[str, Phases]
    step_s: float

    def disturbed(self, name: str) -> Figures:
        return self._during(self.phases[name].disturbed)

    def quiet(self, name: str) -> Figures:
        spans = self.phases[name].quiet
        return Figures.of(self.seen, self.step_s, lambda *gap: any(span.covers(*gap) for span in spans))

    def mildest(self, name: str) -> Figures:
        """Of the round whose longest gap was shortest: what other load on the machine does not explain."""
        rounds = (self._during([span]) for span in self.phases[name].disturbed)
        return min(rounds, key=lambda figures: figures.max)

    def _during(self, spans: Sequence[Span]) -> Figures:
        return Figures.of(self.seen, self.step_s, lambda *gap: any(span.touches(*gap) for span in spans))


def measure(
    disturbances: Mapping[str, Callable[[int], object]],
    *,
    num_streams: int,
    step_s: float,
    rounds: int,
    crowd: Callable[[int], AbstractContextManager[None]] | None = None,
) -> Measurement:
    """Run every disturbance ``rounds`` times, and a crowd of clients that arrives and leaves at once."""
    phases = {name: Phases() for name in disturbances}
    if crowd is not None:
        phases |= {ARRIVAL: Phases(), DEPARTURE: Phases()}
    with scripted_server(step_s) as port, watching(port, num_streams) as watcher:
        for _ in range(rounds):
            for name, disturbance in disturbances.items():
                phases[name].disturb(partial(disturbance, port))
            if crowd is not None:
                with ExitStack() as scope:
                    phases[ARRIVAL].disturb(partial(scope.enter_context, crowd(port)))
                    phases[DEPARTURE].disturb(scope.close)
        return Measurement(watcher.finish(), phases, step_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--step", type=float, default=0.02, help="seconds")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", help="of the disturbances, those whose name contains this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = {name: call for name, call in DISTURBANCES.items() if (options.only or "") in name}
    crowd = many_clients if (options.only or "") in f"{ARRIVAL} {DEPARTURE}" else None
    found = measure(
        chosen, num_streams=options.streams, step_s=options.step, rounds=options.rounds, crowd=crowd
    )
    report(found, options)


def report(found: Measurement, options: argparse.Namespace) -> None:
    columns = ("gap beyond the step, ms", "median", "p99", "max", "quiet: p99", "max", "/health max", "quiet")
    results = {name: (found.disturbed(name), found.quiet(name)) for name in found.phases}
    rows = [
        (
            name,
            *(f"{value:.1f}" for value in (disturbed.median, disturbed.p99, disturbed.max)),
            *(f"{value:.1f}" for value in (quiet.p99, quiet.max, disturbed.health_max, quiet.health_max)),
        )
        for name, (disturbed, quiet) in results.items()
    ]
    title = (
        f"{options.streams} streams, a token every {options.step * 1000:g} ms; wanted: every gap under"
        f" {TARGET_MS} ms beyond it"
    )
    print_table(title, columns, rows)
    write_json(
        options.json,
        {
            "processors": os.cpu_count(),
            "streams": options.streams,
            "step_ms": options.step * 1000,
            "rounds": options.rounds,
            "target_ms": TARGET_MS,
            "gap_beyond_step_ms": {
                name: {"disturbed": disturbed.as_json(), "quiet": quiet.as_json()}
                for name, (disturbed, quiet) in results.items()
            },
        },
    )


if __name__ == "__main__":
    main()
