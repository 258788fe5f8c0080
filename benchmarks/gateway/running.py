"""What is measured, as processes: the gateway with its engine, and the floor; each on a core of its own.

Where there are two cores or more, what is measured has one, and the engine and whoever reads share the rest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.child import module_process
from benchmarks.gateway.usage import children
from benchmarks.servers import serving

_CORES = sorted(os.sched_getaffinity(0))
_WINDOW = 1_000_000  # so that no stream ends before it is told to


@dataclass(frozen=True, slots=True)
class Pace:
    """``tokens_per_s`` of each stream; see ``engine.scripted_core`` for ``phases``."""

    tokens_per_s: float
    phases: int = 1

    @property
    def engine(self) -> str:
        return f"scripted:{self.tokens_per_s:.6f}/{self.phases}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A server under measurement, and the processes that it keeps busy beside itself."""

    port: int
    pid: int
    helpers: Sequence[int] = ()


@contextlib.contextmanager
def gateway(pace: Pace, num_streams: int) -> Iterator[Measured]:
    """``tidegate serve`` over a scripted engine, with room for so many streams."""
    arguments = (
        "--engine", pace.engine, "--max-model-len", str(_WINDOW), "--max-waiting-tokens", str(2**40),
        "--max-num-seqs", str(num_streams), "--max-connections", str(num_streams + 100),
        "--no-web", "--log-level", "error",
    )  # fmt: skip
    with serving(arguments) as server:
        pid = server.process.pid
        engines = children(pid)
        _share_cores(pid, *engines)
        yield Measured(server.port, pid, engines)


@contextlib.contextmanager
def floor(pace: Pace) -> Iterator[Measured]:
    """The bare loop at the same pace."""
    arguments = (str(pace.tokens_per_s), str(pace.phases))
    with module_process("benchmarks.gateway.floor", arguments, patience_s=30) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        _share_cores(process.pid)
        yield Measured(port, process.pid)


def _share_cores(measured: int, *others: int) -> None:
    first, *rest = _CORES
    for pid, cores in ((measured, {first}), *((other, set(rest)) for other in others)):
        for task in os.listdir(f"/proc/{pid}/task") if rest else ():
            os.sched_setaffinity(int(task), cores)


@contextlib.contextmanager
def out_of_the_way() -> Iterator[None]:
    """This process, and those that it starts to read, leave the first core to what is measured."""
    os.sched_setaffinity(0, _CORES[1:] or _CORES)
    try:
        yield
    finally:
        os.sched_setaffinity(0, _CORES)
