"""The line that shows how far a run is."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass

from loadtest.measuring.progress import Display, progress_line


@dataclass
class Counts:
    planned: int = 100
    sent: int = 9
    running: int = 5
    completed: int = 3
    failed: int = 0
    pieces: int = 40


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_has_what_matters_and_failures_stand_out() -> None:
    assert progress_line("repeat 1 of 3", Counts(), 12.4, 1234.5) == (
        "repeat 1 of 3 · 3 of 100 done · 5 running · 1,234 pieces/s · 12 s"
    )
    assert "· 2 FAILED ·" in progress_line("run", Counts(failed=2), 1, 0)
    assert "5 of 100 done" in progress_line("run", Counts(failed=2), 1, 0)


def test_it_is_drawn_while_the_run_goes_on_and_wiped_afterwards() -> None:
    terminal, counts = Terminal(), Counts()
    with Display(terminal).showing("run", counts):
        deadline = time.monotonic() + 10
        while "50 of 100" not in terminal.getvalue():
            counts.completed = 50
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert terminal.getvalue().endswith("\r\x1b[2K")


def test_what_goes_on_is_said_until_it_is_over() -> None:
    terminal = Terminal()
    with Display(terminal).doing("looking"):
        assert terminal.getvalue() == "looking"
    assert terminal.getvalue() == "looking\r\x1b[2K"


def test_where_there_is_no_terminal_a_line_stays_of_each_run() -> None:
    stream = io.StringIO()
    display, counts = Display(stream), Counts()
    with display.doing("looking"), display.showing("repeat 1 of 2", counts):
        display.say("Stopping.")
        counts.completed, counts.running = 99, 0
    said = stream.getvalue().splitlines()
    assert said[0] == "Stopping."
    assert len(said) == 2 and said[1].startswith("repeat 1 of 2 · 99 of 100 done · 0 running · ")
