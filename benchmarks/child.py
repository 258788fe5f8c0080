"""Processes that end when their input does; among them servers that read one line and print their port."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Child:
    port: int
    pid: int


@contextlib.contextmanager
def child(module: str, arguments: Sequence[str], line: bytes, patience_s: float) -> Iterator[Child]:
    """A server, until the scope ends; so ``module_process``."""
    with module_process(module, arguments, patience_s) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line + b"\n")
        process.stdin.flush()
        yield Child(int(process.stdout.readline()), process.pid)


@contextlib.contextmanager
def module_process(
    module: str, arguments: Sequence[str], patience_s: float, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run it, with pipes, until the scope ends; one that has not ended ``patience_s`` later is killed."""
    command, pipe = [sys.executable, "-m", module, *arguments], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, **options) as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                process.kill()
