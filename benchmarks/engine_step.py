"""What the engine itself takes of a step, by stage: ``python -m benchmarks.engine_step``.

An engine core with a scripted executor decodes so many sequences of so long contexts, with so many requests
in line, in the stages of the real step loop; its messages are encoded as they are before they are sent. Times
are of the thread's processor time, so that what else the machine does counts for little. All shapes take
turns. A figure is the median over the rounds, of which each is the mean of as many steps as fill a block,
with its 95 % interval by the bootstrap; a ratio is that of the rounds that were taken side by side. Here all
sequences fill their blocks in the same step, the slowest of a round, which is told by itself.
"""

from __future__ import annotations

import argparse
import gc
import queue
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.report import interval_95, print_table, run_main, write_json
from benchmarks.standing_core import BLOCK_SIZE, TO_COME, StandingCore
from engine.messages import EngineCommand, FromEngine
from engine.reports import parts
from engine.wire import encode_frame

STAGES = ("drain", "schedule", "update", "report", "encode")
_GOAL_S, _GOAL_RUNNING = 0.5e-3, 256


@dataclass(frozen=True, slots=True)
class Shape:
    """So many requests of ``context`` tokens decode while ``waiting`` others are in line."""

    running: int
    context: int
    waiting: int


class Bench:
    """One engine of a shape, and the seconds of each round: a step's by stage, and the slowest step's."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.stages: dict[str, list[float]] = {stage: [] for stage in STAGES}
        self.slowest: list[float] = []
        self._engine = StandingCore(shape.running + 1, shape.context, clock=time.thread_time)
        self._engine.run(shape.running)
        self._engine.add(shape.waiting, num_answers=2, num_tokens=64)  # there is a place for one of the two
        self._inbox: queue.Queue[EngineCommand] = queue.Queue()

    def take_round(self) -> None:
        steps = [self._step() for _ in range(BLOCK_SIZE)]
        for stage in STAGES:
            self.stages[stage].append(statistics.fmean(step[stage] for step in steps))
        self.slowest.append(max(sum(step.values()) for step in steps))

    def forget_rounds(self) -> None:
        self.slowest.clear()
        for rounds in self.stages.values():
            rounds.clear()

    def _step(self) -> dict[str, float]:
        """As the step loop of ``engine.process`` has it."""
        started = time.thread_time()
        self._drain()
        drained = time.thread_time()
        report = self._engine.core.step()
        stepped = time.thread_time()
        assert report is not None
        for part in parts(report):
            encode_frame(FromEngine(1, part))
        inside = report.stage_seconds
        return {
            "drain": drained - started,
            "schedule": inside["schedule"],
            "update": inside["update"],
            "report": stepped - drained - sum(inside.values()),
            "encode": time.thread_time() - stepped,
        }

    def _drain(self) -> list[EngineCommand]:
        commands: list[EngineCommand] = []
        while True:
            try:
                commands.append(self._inbox.get_nowait())
            except queue.Empty:
                return commands

    @property
    def totals(self) -> list[float]:
        """Seconds of a step in each round."""
        return [sum(stages) for stages in zip(*self.stages.values(), strict=True)]


def measure(shapes: Sequence[Shape], num_rounds: int) -> dict[str, Any]:
    """The figures of all shapes, as they are written to JSON. Rounds of the shapes take turns."""
    benches = [Bench(shape) for shape in shapes]
    gc.collect()
    gc.freeze()  # as the engine does once it has loaded
    for bench in benches:
        bench.take_round()
        bench.forget_rounds()
    for number in range(num_rounds):
        for bench in benches if number % 2 else reversed(benches):
            bench.take_round()
    firsts = {bench.shape.running: bench for bench in reversed(benches)}
    figures = [_figures(bench, firsts[bench.shape.running]) for bench in benches]
    to_goal = [each["total_s"] / _GOAL_S for each in figures if each["running"] == _GOAL_RUNNING]
    return {"goal_s": _GOAL_S, "num_rounds": num_rounds, "times_the_goal": to_goal, "shapes": figures}


def _figures(bench: Bench, first: Bench) -> dict[str, Any]:
    """``ratio`` is to the first shape with as many sequences."""
    ratios = [ours / others for ours, others in zip(bench.totals, first.totals, strict=True)]
    return {
        **asdict(bench.shape),
        **{f"{stage}_s": statistics.median(bench.stages[stage]) for stage in STAGES},
        **_with_interval("total", bench.totals, "_s"),
        "slowest_s": statistics.median(bench.slowest),
        **_with_interval("ratio", ratios),
    }


def _with_interval(name: str, rounds: Sequence[float], unit: str = "") -> dict[str, float]:
    low, high = interval_95(rounds)
    return {f"{name}{unit}": statistics.median(rounds), f"{name}_low{unit}": low, f"{name}_high{unit}": high}


def print_figures(found: dict[str, Any]) -> None:
    rows = [
        (
            f"{each['running']} × {each['context']:,}",
            f"{each['waiting']:,}",
            _us(each["schedule_s"]),
            _us(each["update_s"]),
            _us(each["drain_s"] + each["report_s"] + each["encode_s"]),
            f"{_us(each['total_s'])} ({_us(each['total_low_s'])}–{_us(each['total_high_s'])})",
            _us(each["slowest_s"]),
            f"{each['total_s'] / each['running'] * 1e6:.1f}",
            f"{each['ratio']:.2f} ({each['ratio_low']:.2f}–{each['ratio_high']:.2f})",
        )
        for each in found["shapes"]
    ]
    columns = (
        "sequences",
        "waiting",
        "schedule",
        "update",
        "messages",
        "all",
        "slowest",
        "each",
        "to the first",
    )
    print_table(
        "The engine's own time in a step, in µs of processor time (and 95 % intervals)", columns, rows
    )
    if to_goal := found["times_the_goal"]:
        print(
            f"At {_GOAL_RUNNING} sequences {min(to_goal):.2f} to {max(to_goal):.2f} times the goal of 0.5 ms."
        )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--running", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 4096])
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 100_000])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="few shapes and rounds; the figures mean little")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.running, options.contexts, options.rounds = [16, 256], [256], 3
    if not 0 < options.rounds < TO_COME // BLOCK_SIZE - 1:
        parser.error(f"--rounds must be below {TO_COME // BLOCK_SIZE - 1}: no request is to end")
    shapes = [Shape(*each) for each in product(options.running, options.contexts, options.waiting)]
    found = measure(shapes, options.rounds)
    print_figures(found)
    write_json(options.json, found)


if __name__ == "__main__":
    run_main(main)
