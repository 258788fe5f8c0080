"""A plugin of pytest that tells how each test ended, and which files could not be imported, one JSON object a
line, as it ends; and who reads that."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
import pytest

PATH_VARIABLE = "TIDEGATE_TESTED"  # names the file that is written

_WORST_LAST = ("passed", "skipped", "failed")


class Phase(msgspec.Struct, frozen=True):
    """A phase of a test: set-up, call or clean-up; or a file that cannot be imported. ``reason``: the first
    line of what went wrong."""

    name: str
    outcome: Literal["passed", "skipped", "failed"]
    reason: str = ""


def read(path: Path) -> list[Phase]:
    """What was told; nothing if nobody began."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Phase) for line in path.read_bytes().splitlines()]


def by_name(phases: Iterable[Phase]) -> list[Phase]:
    """Each test once, by the worst of its phases."""
    worst: dict[str, Phase] = {}
    for phase in phases:
        known = worst.get(phase.name)
        if known is None or _WORST_LAST.index(phase.outcome) > _WORST_LAST.index(known.outcome):
            worst[phase.name] = phase
    return list(worst.values())


class _Teller:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell(report)

    def _tell(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        lines = report.longreprtext.strip().splitlines() if report.failed else []
        marked = [line[1:].strip() for line in lines if line.startswith("E ")]
        reason = (marked or lines or [""])[0]
        with self._path.open("ab") as told:
            told.write(msgspec.json.encode(Phase(report.nodeid, report.outcome, reason)) + b"\n")


def pytest_configure(config: pytest.Config) -> None:
    """In the process that all tests are reported to, be they run there or not."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Teller(Path(os.environ[PATH_VARIABLE])))
