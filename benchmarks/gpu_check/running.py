"""Runs the parts of a check one after another, each in a process of its own and for a bounded time.

Whatever becomes of a part (an exception, a signal, a hang), the next one begins on a card that its process
has left. Processes are forked from one that has loaded torch and nothing else, which saves each the seconds
that this takes; a fork is safe for CUDA because nobody has used it there. Runs on: the main process, which
never touches the card.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import msgspec

from benchmarks.gpu_check.figures import Facts, Failure, Figure, Line, Outcome, PartReport, limits_of
from benchmarks.gpu_check.part import run_part
from benchmarks.gpu_check.parts import LEAST_S, Part, Settings

_TOLD_LINES = 25  # of the log of a part that failed
_LAST_S = 3.0  # of its time, in which a part tells where it is
_LOOKING_S = 60.0
_NO_GPU = 7  # an exit status
_PRELOADED = ["torch"]
_INTERPRET = "TRITON_INTERPRET"

Work = Callable[..., int]


@dataclass(frozen=True, slots=True)
class Ended:
    """A part's process as it ended; ``status`` is None where its time was over or it was interrupted."""

    status: int | None
    lines: tuple[Line, ...]
    log: str
    is_interrupted: bool = False


class Runner:
    """Runs parts until ``deadline`` (of ``time.monotonic``); logs and results go to ``directory``."""

    def __init__(self, device: str, scale: str, directory: Path, deadline: float) -> None:
        self.device = device
        self.facts: dict[str, str] = {}
        self.scale = scale
        self._directory = directory
        self._deadline = deadline
        self._figures: list[Figure] = []

    @property
    def left_s(self) -> float:
        """Of the time for all parts."""
        return max(0.0, self._deadline - time.monotonic())

    def run(self, part: Part) -> PartReport:
        """Run a part for as long as it may; never raises for what becomes of it."""
        budget_s = min(part.budget_s, self.left_s)
        if budget_s < LEAST_S:
            return left_out(part.name, "no time was left for it")
        started = time.monotonic()
        ended = self._run_process(part.name, budget_s)
        report = report_of(part.name, ended, time.monotonic() - started, budget_s)
        for line in ended.lines:
            if isinstance(line, Facts):
                self.facts |= line.facts
        self._figures += report.figures
        if report.outcome in (Outcome.FAILED, Outcome.OUT_OF_TIME):
            tail = "\n".join(ended.log.splitlines()[-_TOLD_LINES:])
            print(f"--- {part.name}: {report.reason}\n{tail}", file=sys.stderr, flush=True)
        return report

    def _run_process(self, name: str, budget_s: float) -> Ended:
        results, log = self._directory / f"{name}.jsonl", self._directory / f"{name}.log"
        settings = Settings(
            device=self.device,
            scale=self.scale,
            measured=limits_of(self._figures),
            deadline=time.monotonic() + budget_s,
        )
        results.write_bytes(b"")
        log.write_bytes(b"")
        status, is_interrupted = None, False
        try:
            status = run_bounded(run_part, (name, settings, results), log, budget_s)
        except KeyboardInterrupt:  # what it has told counts as it does however a part ends
            is_interrupted = True
        lines = read_lines(results.read_bytes())
        return Ended(status, lines, log.read_text(errors="replace"), is_interrupted)


def left_out(name: str, reason: str) -> PartReport:
    """Of a part that was not begun."""
    return PartReport(name=name, outcome=Outcome.LEFT_OUT, reason=reason)


def has_no_gpu(log: Path) -> bool:
    """Whether torch says so, in a process of its own. Where it cannot be asked, parts will tell why."""
    return run_bounded(_look_for_gpu, (), log, _LOOKING_S) == _NO_GPU


def _look_for_gpu() -> int:
    import torch

    return 0 if torch.cuda.is_available() else _NO_GPU


def set_environment(device: str) -> None:
    """Without a GPU kernels run in Triton's interpreter, for which one asks before importing them."""
    os.environ.pop(_INTERPRET, None)
    if device == "cpu":
        os.environ[_INTERPRET] = "1"
    os.environ["PYTHONUNBUFFERED"] = "1"


def run_bounded(work: Work, arguments: tuple[object, ...], log: Path, budget_s: float) -> int | None:
    """``work``'s exit status, that of a process killed by a signal being negative; None if its time was over.

    What it prints goes to ``log``, and where it is just before its time is over. Ends all that it started.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=_in_own_group, args=(work, arguments, log, budget_s))
    process.start()
    try:
        process.join(budget_s)
        return process.exitcode
    finally:
        _end_group(process)


def _in_own_group(work: Work, arguments: tuple[object, ...], log: Path, budget_s: float) -> None:
    os.setpgrp()
    with log.open("ab") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(budget_s / 2, budget_s - _LAST_S))
    sys.exit(work(*arguments))


def _end_group(process: ForkServerProcess) -> None:
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def read_lines(written: bytes) -> tuple[Line, ...]:
    """What a part told. A last line that it did not get to write whole is dropped."""
    whole = written[: written.rfind(b"\n") + 1]
    return tuple(msgspec.json.decode(line, type=Line) for line in whole.splitlines())


def report_of(name: str, ended: Ended, seconds: float, budget_s: float) -> PartReport:
    """Put together what a part told and how it ended."""
    failures = tuple(line for line in ended.lines if isinstance(line, Failure))
    outcome, reason = _judge(ended, failures, budget_s)
    return PartReport(
        name=name,
        outcome=outcome,
        seconds=seconds,
        budget_s=budget_s,
        reason=reason,
        figures=tuple(line for line in ended.lines if isinstance(line, Figure)),
        failures=failures,
    )


def _judge(ended: Ended, failures: tuple[Failure, ...], budget_s: float) -> tuple[Outcome, str]:
    if ended.is_interrupted:
        return Outcome.INTERRUPTED, "interrupted"
    if ended.status is None:
        return Outcome.OUT_OF_TIME, f"not done after {budget_s:.0f} s"
    if ended.status == 0 and not failures:
        return Outcome.DONE, ""
    if ended.status < 0:
        return Outcome.FAILED, f"ended by {signal.Signals(-ended.status).name}"
    if failures:
        return Outcome.FAILED, failures[0].reason
    last = next((line for line in reversed(ended.log.splitlines()) if line.strip()), "")
    return Outcome.FAILED, last.strip() or f"ended with exit code {ended.status}"
