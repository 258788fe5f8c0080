"""The command that checks a GPU: what it refuses before it begins, and what is kept however it ends."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch

from benchmarks.gpu_check import command, parts, running, table
from benchmarks.gpu_check.figures import Figure, Outcome, PartReport, Report
from benchmarks.gpu_check.parts import Part
from benchmarks.gpu_check.running import Runner

FOUND = Figure(name="f", value=1.0, unit="s")


# ---- before it begins --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("speed",), "there is no part speed; the parts are limits, "),
        (("--minutes", "0"), "must be a number above 0"),
        (("--minutes", "nan"), "must be a number above 0"),
        (("--json", "."), "--json . is a directory."),
        (("--json", "/proc/none/found.json"), "--json /proc/none/found.json cannot be written: No such file"),
        (("--logs", "/proc/none"), "--logs /proc/none cannot be written: No such file"),
        ((), f"torch of {sys.executable} finds no GPU; --device cpu is a dry run without one."),
    ],
)
def test_what_cannot_begin_is_one_sentence(
    arguments: tuple[str, ...],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setattr(command, "set_environment", lambda _: None)
    monkeypatch.setattr(command, "has_no_gpu", lambda _: True)
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]


def test_torch_is_asked_whether_there_is_a_gpu(tmp_path: Path) -> None:
    assert running.has_no_gpu(tmp_path / "log") is not torch.cuda.is_available()


# ---- however it ends ---------------------------------------------------------------------------------


def interrupted(_: object, arguments: tuple[str, object, Path], log: Path, budget_s: float) -> int:
    """A part's process that told something by the time somebody ended the check."""
    name, _settings, results = arguments
    results.write_bytes(msgspec.json.encode(FOUND) + b"\n")
    if name == "decode":
        raise KeyboardInterrupt
    return 0


def test_an_interrupt_loses_nothing_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "run_bounded", interrupted)
    path = tmp_path / "found.json"
    chosen = parts.chosen(parts.CHECK, ("decode", "swap"))
    runner = Runner("cpu", "dry run", tmp_path, time.monotonic() + 60)
    assert command._check(chosen, runner, path) == 1
    found = {part["name"]: part for part in json.loads(path.read_text())["parts"]}
    assert {name: (part["outcome"], len(part["figures"])) for name, part in found.items()} == {
        "limits": ("done", 1),
        "decode": ("interrupted", 1),
        "swap": ("left out", 0),
    }
    assert "the check ended before it began" in capsys.readouterr().out


def test_what_cannot_be_written_costs_no_part_and_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Runner, "run", lambda _, part: PartReport(name=part.name, outcome=Outcome.DONE))
    path = tmp_path / "found.json"
    fresh = tmp_path / "found.json.new"
    fresh.mkdir()
    runner = Runner("cpu", "dry run", tmp_path, time.monotonic() + 60)
    chosen = (Part("limits", 60), Part("decode", 60))
    assert command._check(chosen, runner, path) == 1
    told = capsys.readouterr()
    assert told.err.count(f"--json {path} cannot be written: Is a directory") == 2
    assert "limits" in told.out and "decode" in told.out
    fresh.rmdir()
    assert command._check(chosen, runner, path) == 0


def test_what_was_left_out_was_not_measured() -> None:
    late = PartReport(name="swap", outcome=Outcome.LEFT_OUT, reason="no time was left for it")
    assert Report(date="today", scale="full", machine={}, parts=(late,)).is_incomplete


def test_a_quick_check_is_told_from_a_whole_one() -> None:
    quick = Report(date="today", scale="quick", machine={}, parts=())
    assert "(quick: fewer sizes and repeats)" in table.title(quick)
    assert "quick" not in table.title(msgspec.structs.replace(quick, scale="full"))
