"""Carries out what a command measures, from the event loop to the exit code. Runs on: the main thread."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
import uvloop
from msgspec import structs
from rich.console import Console

from loadtest.commands.settings import Output
from loadtest.describe import (
    EXIT_INTERRUPTED,
    EXIT_NOT_TO_BE_TRUSTED,
    EXIT_NOTHING_DONE,
    EXIT_USER_ERROR,
    exit_status,
)
from loadtest.drivers.base import ServerUnreachableError
from loadtest.drivers.open_files import OpenFilesError
from loadtest.drivers.vocabulary import VocabularyError
from loadtest.measuring.bench import NothingMeasuredError
from loadtest.measuring.progress import Display
from loadtest.measuring.server_process import ServerProcessError
from loadtest.report.table import print_report
from loadtest.results import Report, RunReport
from loadtest.spec import WorkloadError

Work = Callable[[Display, asyncio.Event], Awaitable[Report]]
_Handlers = dict[signal.Signals, Any]
_ONE_STOP_S = 0.5  # `timeout` tells a process twice, by itself and with its group
_EXITS: dict[type[Exception], int] = {
    WorkloadError: EXIT_USER_ERROR,
    VocabularyError: EXIT_USER_ERROR,
    OpenFilesError: EXIT_USER_ERROR,
    ServerProcessError: EXIT_NOTHING_DONE,
    ServerUnreachableError: EXIT_NOTHING_DONE,
    NothingMeasuredError: EXIT_INTERRUPTED,
}


@dataclass(frozen=True, slots=True)
class Found:
    """``was_stopped``: there would have been more. ``server_ended``: by itself, before it was told to."""

    report: Report
    was_stopped: bool
    server_ended: bool = False

    @property
    def status(self) -> int:
        """The exit code that says what it is worth."""
        if self.was_stopped:
            return EXIT_INTERRUPTED
        return exit_status(self.report) or (EXIT_NOT_TO_BE_TRUSTED if self.server_ended else 0)

    def of_a_server_that_ended(self, note: str) -> Found:
        assert isinstance(self.report, RunReport)
        noted = structs.replace(self.report, notes=[note, *self.report.notes])
        return replace(self, report=noted, server_ended=True)


def measure_and_leave(work: Work, output: Output) -> NoReturn:
    with leaving_with_a_sentence():
        found = carry_out(work)
        hand_over(found.report, output)
    sys.exit(found.status)


def carry_out(work: Work) -> Found:
    """Run it on a loop of its own. The first Ctrl-C or SIGTERM ends what is measured; the next one does what
    it did before, which ends everything.
    """

    async def main(handlers: _Handlers) -> Found:
        display, stop = Display(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if not stop.is_set():
                display.say("Stopping; what was measured is kept. Once more leaves at once.")
                stop.set()
                loop.call_later(_ONE_STOP_S, give_back)

        def give_back() -> None:
            for number, handler in handlers.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

        for number in handlers:
            loop.add_signal_handler(number, on_signal)
        return Found(await work(display, stop), stop.is_set())

    with (
        _handlers_restored() as handlers,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(main(handlers))


def hand_over(report: Report, output: Output) -> None:
    """The figures first, and each whatever becomes of the others: what was measured is not to be had again.

    Raises click.FileError if one could not be written.
    """
    lost = list[click.FileError]()

    def keep(name: Path | str, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            lost.append(click.FileError(str(name), error.strerror or str(error)))

    if (json_path := output.json_path) is not None:
        keep(json_path, lambda: json_path.write_bytes(msgspec.json.encode(report) + b"\n"))
    keep("standard output", lambda: print_report(report, _Terminal()))
    if (html_path := output.html_path) is not None:
        from loadtest.report.page import write_html

        keep(html_path, lambda: write_html(report, html_path))
    if (png_path := output.png_path) is not None:
        from loadtest.report.plots import write_pngs

        keep(png_path, lambda: write_pngs(report, png_path))
    for error in lost[1:]:
        error.show()
    if lost:
        raise lost[0]


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Who reads has seen enough, which ends the table and nothing else."""
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


@contextlib.contextmanager
def leaving_with_a_sentence() -> Iterator[None]:
    """What a user, a server or a network can cause is told in plain words, and has its exit code."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except tuple(_EXITS) as error:
        click.echo(f"tideload: {error}", err=True)
        sys.exit(next(code for kind, code in _EXITS.items() if isinstance(error, kind)))


@contextlib.contextmanager
def _handlers_restored() -> Iterator[_Handlers]:
    """What signals do outside. A loop that goes takes its handlers along, and leaves the system's."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
