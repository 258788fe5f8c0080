"""What idle WebSockets cost, and what they do to active ones: ``python -m benchmarks.idle_sockets``.

A gateway over the scripted engine at a fixed pace. Some WebSockets stream, and are read by a process that
does nothing else; beside them stand none at all or thousands that are idle, by turns. Memory is the gateway's
resident set before and after the idle ones came, divided by their number; what the kernel holds is not in it.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.report import print_table, write_json
from benchmarks.scripted_server import scripted_process
from benchmarks.socket_crowd import crowd


@dataclass(frozen=True, slots=True)
class Gaps:
    """Between tokens of a stream, in milliseconds."""

    median: float
    p99: float
    max: float

    @classmethod
    def of(cls, streams: list[list[float]]) -> Gaps:
        gaps = sorted(1000 * (later - earlier) for times in streams for earlier, later in pairwise(times))
        return cls(statistics.median(gaps), gaps[int(0.99 * len(gaps))], gaps[-1])


@dataclass(frozen=True, slots=True)
class Round:
    """One comparison. ``bytes_each``: of resident memory, for each idle WebSocket."""

    alone: Gaps
    beside_idle: Gaps
    bytes_each: float

    @property
    def pace_ratio(self) -> float:
        """Median gap beside idle ones, divided by that beside none."""
        return self.beside_idle.median / self.alone.median


def measure(*, num_idle: int, num_active: int, step_s: float, length_s: float, rounds: int) -> list[Round]:
    """Memory that a first crowd made the process ask for is used again by later ones, so the first counts."""
    found: list[Round] = []
    with scripted_process(step_s) as server:
        _streams(server.port, num_active, 0.2)  # what is loaded on first use is no one's cost
        for _ in range(rounds):
            alone = _streams(server.port, num_active, length_s)
            before = _resident_bytes(server.pid)
            with crowd(server.port, num_idle=num_idle) as idle:
                bytes_each = (_resident_bytes(server.pid) - before) / num_idle
                beside = _streams(server.port, num_active, length_s)
                idle.finish()
            found.append(Round(alone, beside, bytes_each))
    return found


def _streams(port: int, num_active: int, length_s: float) -> Gaps:
    with crowd(port, num_active=num_active) as active:
        time.sleep(length_s)
        return Gaps.of(active.finish())


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--idle", type=int, default=5000)
    parser.add_argument("--active", type=int, default=50)
    parser.add_argument("--step", type=float, default=0.05, help="seconds")
    parser.add_argument("--length", type=float, default=20.0, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(
        num_idle=options.idle, num_active=options.active, step_s=options.step, length_s=options.length,
        rounds=options.rounds,
    )  # fmt: skip
    report(found, options)


def report(found: list[Round], options: argparse.Namespace) -> None:
    columns = ("gap, ms", "median", "p99", "max")
    rows = [
        (f"{name}, round {number}", *(f"{value:.1f}" for value in asdict(gaps).values()))
        for number, round in enumerate(found, 1)
        for name, gaps in (("beside none", round.alone), (f"beside {options.idle} idle", round.beside_idle))
    ]
    kib_each = found[0].bytes_each / 1024
    ratio = statistics.median(round.pace_ratio for round in found)
    title = (
        f"{options.active} streams by WebSocket, a token every {options.step * 1000:g} ms; an idle one takes"
        f" {kib_each:.1f} KiB; median gap beside them / beside none: {ratio:.3f}"
    )
    print_table(title, columns, rows)
    write_json(
        options.json,
        {
            "processors": os.cpu_count(),
            "idle": options.idle,
            "active": options.active,
            "step_ms": options.step * 1000,
            "kib_each": round(kib_each, 1),
            "pace_ratio": round(ratio, 3),
            "rounds": [asdict(found_round) for found_round in found],
        },
    )


if __name__ == "__main__":
    main()
