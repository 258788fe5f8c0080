"""Medians, bounds and tables. Timings here are paired and interleaved; single numbers mean little."""

from __future__ import annotations

import json
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_TELLING_FEATURES = (
    "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16",
)  # fmt: skip


def bootstrap_bounds(values: Sequence[float], level: float = 0.95, rounds: int = 4000) -> tuple[float, float]:
    """One-sided lower and upper bounds of the median, each at ``level`` (percentile bootstrap)."""
    draws = random.Random(0)
    medians = sorted(statistics.median(draws.choices(values, k=len(values))) for _ in range(rounds))
    return medians[int((1 - level) * rounds)], medians[int(level * rounds) - 1]


def interval_95(values: Sequence[float]) -> tuple[float, float]:
    """Of the median, at 95 % in all."""
    return bootstrap_bounds(values, 0.975)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=120, highlight=False).print(table)


def write_json(path: Path | None, report: dict[str, Any]) -> None:
    """Write a report with what it was measured on."""
    if path is None:
        return
    machine = {"system": platform.platform(), "processor": processor(), "python": platform.python_version()}
    path.write_text(json.dumps({"machine": machine, **report}, indent=2) + "\n")


def check_place(option: str, named: Path, directory: Path) -> None:
    """Raises ValueError where no file can be made, before there is anything to write."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ValueError(f"{option} {named} cannot be written: {error.strerror}") from error


def run_main(main: Callable[[], None]) -> None:
    """Ctrl-C ends it with a word and the status of a shell, not with a traceback."""
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def processor() -> str:
    """How many there are to use, their name, and what they know that products are made of.

    Machines are told apart by it. A name alone may be that of a whole family.
    """
    name = f"{len(os.sched_getaffinity(0))} x {_first_of_cpuinfo('model name') or platform.processor()}"
    features = processor_features()
    known = [feature for feature in _TELLING_FEATURES if feature in features]
    return f"{name} with {', '.join(known)}" if known else name


def processor_features() -> frozenset[str]:
    """Instructions that it knows, as Linux names them."""
    return frozenset((_first_of_cpuinfo("flags") or _first_of_cpuinfo("Features")).split())


def _first_of_cpuinfo(key: str) -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        found, _, value = line.partition(":")
        if found.strip() == key:
            return value.strip()
    return ""
