"""A server in a process of its own: it reads one line, prints its port, and serves until its input ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Child:
    port: int
    pid: int


@contextlib.contextmanager
def child(module: str, arguments: Sequence[str], line: bytes, patience_s: float) -> Iterator[Child]:
    """Run until the scope ends; one that has not ended ``patience_s`` later is killed."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            yield Child(int(process.stdout.readline()), process.pid)
        finally:
            process.stdin.close()
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                process.kill()
