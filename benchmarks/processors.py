"""Who used the processors of this machine, and for how long: a server, this process, everybody else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE, _IOWAIT = 3, 4  # in the first line of /proc/stat


@dataclass(slots=True)
class ProcessorUse:
    """Shares of all processors together, from 0 to 1. ``others`` is noise: what a measurement cannot help."""

    server: float = 0.0
    client: float = 0.0
    others: float = 0.0


@contextmanager
def processor_use(server_pid: int) -> Iterator[ProcessorUse]:
    """Of a server, with its child processes, while the scope lasts; filled in at its end."""
    use = ProcessorUse()
    started, before = time.monotonic(), _snapshot(server_pid)
    yield use
    available = (time.monotonic() - started) * (os.cpu_count() or 1)
    busy, server, client = (now - then for now, then in zip(_snapshot(server_pid), before, strict=True))
    use.server, use.client = server / available, client / available
    use.others = max(0.0, (busy - server - client) / available)


def _snapshot(server_pid: int) -> tuple[float, float, float]:
    """Seconds of everybody together, stolen ones included, of the server and of this process."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    busy = sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]
    return busy / _TICKS_PER_S, _seconds_of(server_pid), time.process_time()


def _seconds_of(pid: int) -> float:
    """Of a process and all below it that live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S + sum(_seconds_of(int(pid)) for pid in children)
