"""Processor time and memory of another process, as the kernel counts them."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Processor seconds of all its threads so far, to the nanosecond; its children are not in it."""
    stats = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(stat.read_text().split()[0]) for stat in stats) / 1e9


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def num_files(pid: int) -> int:
    """That it has open, connections among them."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def children(pid: int) -> list[int]:
    """Of its main thread."""
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
