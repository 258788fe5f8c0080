"""Medians, bounds and tables. Timings here are paired and interleaved; single numbers mean little."""

from __future__ import annotations

import json
import platform
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def bootstrap_bounds(values: Sequence[float], level: float = 0.95, rounds: int = 4000) -> tuple[float, float]:
    """One-sided lower and upper bounds of the median, each at ``level`` (percentile bootstrap)."""
    draws = random.Random(0)
    medians = sorted(statistics.median(draws.choices(values, k=len(values))) for _ in range(rounds))
    return medians[int((1 - level) * rounds)], medians[int(level * rounds) - 1]


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
    machine = {"system": platform.platform(), "processor": _processor(), "python": platform.python_version()}
    path.write_text(json.dumps({"machine": machine, **report}, indent=2) + "\n")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
