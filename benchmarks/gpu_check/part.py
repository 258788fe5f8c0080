"""One part of a check, in a process of its own: the module of its name measures, and tells as it does."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from benchmarks.gpu_check.figures import Line
from benchmarks.gpu_check.parts import Settings


def run_part(name: str, settings: Settings, results: Path) -> int:
    """Append what it finds to ``results``, one JSON object a line. 0 if nothing failed."""
    # Not before: the process that waits for this one does without torch.
    from benchmarks.gpu_check.context import Context
    from benchmarks.gpu_check.machine import facts_of

    with results.open("ab", buffering=0) as lines:
        context = Context(settings, _writer(lines))
        with context.case(name):
            context.tell_facts(facts_of(context.device))
            importlib.import_module(f"benchmarks.gpu_check.{name}").measure(context)
    return int(context.has_failed)


def _writer(lines: BinaryIO) -> Callable[[Line], None]:
    def write(line: Line) -> None:
        lines.write(msgspec.json.encode(line) + b"\n")

    return write
