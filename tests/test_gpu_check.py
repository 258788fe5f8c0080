"""The check of a GPU, as far as it goes without one: every part in tiny sizes, and the frame around them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from benchmarks.gpu_check import parts, running, table
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.figures import (
    Failure,
    Figure,
    Outcome,
    PartReport,
    Report,
    Verdict,
    as_json,
    held_against_the_larger,
    limits_of,
)
from benchmarks.gpu_check.floors import StepFloor, decode_bytes, extend_operations
from benchmarks.gpu_check.gpu_tests import marked_files
from benchmarks.gpu_check.parts import Part, Settings
from benchmarks.gpu_check.running import Ended, Runner, read_lines, report_of, run_bounded, set_environment
from benchmarks.gpu_check.scales import FULL
from benchmarks.gpu_check.workload import prompts

ROOT = Path(__file__).parent.parent


# ---- the whole, in tiny sizes ------------------------------------------------------------------------


@pytest.mark.timeout(150)
def test_every_part_runs_to_its_end_without_a_gpu(tmp_path: Path) -> None:
    """In tiny sizes, and with other code where there has to be a card: docs/gpu.md says which."""
    path = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--json", str(path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(path.read_text())
    assert {part["name"]: part["outcome"] for part in report["parts"]} == {
        part.name: "done" for part in parts.CHECK
    }, ended.stderr
    assert report["is_dry_run"] and report["machine"]["torch"]
    for part in report["parts"]:
        assert part["figures"], part["name"]
        assert all(figure["met"] is None for figure in part["figures"]), "a dry run is judged"
    judged = [figure["name"] for part in report["parts"] for figure in part["figures"] if figure["target"]]
    assert len(judged) == 10, judged  # the targets that docs/gpu.md names
    for figure in (figure for part in report["parts"] for figure in part["figures"] if figure["beside"]):
        assert figure["limit"] is not None, f"{figure['name']} has nothing beside it"
        assert figure["name"] in ended.stdout.replace("\n", " "), "it is not in the table"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_sweeps_run_to_their_end_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_check",
        "--device",
        "cpu",
        "--sweep",
        "--json",
        str(path),
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = {part["name"]: len(part["figures"]) for part in json.loads(path.read_text())["parts"]}
    assert found == {"limits": 6, "sweep_decode": 3, "sweep_extend": 3, "sweep_layout": 4}


# ---- figures -----------------------------------------------------------------------------------------


def figure(value: float, **rest: object) -> Figure:
    return Figure(name="f", value=value, unit="GB/s", **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (figure(8.0), None),
        (figure(8.0, beside="copy", limit=10.0, target=0.8), Verdict.MET),
        (figure(7.9, beside="copy", limit=10.0, target=0.8), Verdict.MISSED),
        (figure(8.0, beside="copy", limit=None, target=0.8), Verdict.UNKNOWN),
        (figure(1.0, target=1.0, is_ceiling=True), Verdict.MET),
        (figure(1.1, target=1.0, is_ceiling=True), Verdict.MISSED),
        (figure(0.9, target=1.0), Verdict.MISSED),
    ],
)
def test_verdicts(found: Figure, verdict: Verdict | None) -> None:
    assert found.verdict is verdict


def report(*of_parts: PartReport, scale: str = "full") -> Report:
    machine = {"card": "A card", "memory": "1 GiB", "torch": "2"}
    return Report(date="today", scale=scale, machine=machine, parts=of_parts)


def test_the_table_shows_what_was_missed_and_why_something_is_not_there() -> None:
    decode = PartReport(
        name="decode",
        outcome=Outcome.FAILED,
        reason="OutOfMemoryError: too much",
        figures=(figure(7.0, beside="copy", limit=10.0, target=0.8, spread=0.02),),
        failures=(Failure(name="decode 256", reason="OutOfMemoryError: too much"),),
    )
    late = PartReport(name="swap", outcome=Outcome.OUT_OF_TIME, reason="not done after 60 s", seconds=60)
    rows = table.rows(report(decode, late))
    assert rows == [
        ("decode (0 s)", "", "", "", "", "", "failed"),
        ("  f", "7 GB/s", "2 %", "10", "0.7", "≥ 0.8", "MISSED"),
        ("  decode 256: OutOfMemoryError: too much", "", "", "", "", "", "failed"),
        ("swap (60 s)", "", "", "", "", "", "out of time"),
        ("  not done after 60 s", "", "", "", "", "", ""),
    ]
    assert "A card, 1 GiB; torch 2" in table.title(report())


def test_the_json_tells_whether_targets_were_met() -> None:
    part = PartReport(
        name="p",
        outcome=Outcome.DONE,
        figures=(
            figure(9.0, beside="copy", limit=10.0, target=0.8),
            figure(7.0, beside="copy", limit=10.0, target=0.8),
            figure(7.0, beside="copy", target=0.8),
            figure(7.0),
        ),
    )
    assert [found["met"] for found in as_json(report(part))["parts"][0]["figures"]] == [  # type: ignore[index]
        True, False, None, None,
    ]  # fmt: skip
    json.dumps(as_json(report(part)))
    assert not report(part).is_incomplete


def test_a_limit_that_was_larger_later_is_the_limit() -> None:
    """Of a card that had not raised its clocks, and not the other way round."""

    def named(name: str, value: float, **rest: object) -> Figure:
        return msgspec.structs.replace(figure(value, **rest), name=name)

    first = (named("copy", 10.0), named("read", 20.0))
    later = (named("copy, again", 12.0, beside="copy", limit=10.0), named("read, again", 19.0))
    judged = (named("a", 9.0, beside="copy", limit=10.0), named("b", 9.0, beside="read", limit=20.0))
    parts_of = [PartReport(name="p", outcome=Outcome.DONE, figures=(*first, *judged, *later))]
    figures = {found.name: found for part in held_against_the_larger(parts_of) for found in part.figures}
    assert (figures["a"].limit, figures["b"].limit) == (12.0, 20.0)
    assert figures["copy, again"].limit == 10.0
    known = limits_of((*first, *later))
    assert (known["copy"], known["read"]) == (12.0, 20.0)


# ---- processes ---------------------------------------------------------------------------------------


def hang_with_a_child() -> int:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(child.pid, flush=True)
    time.sleep(60)
    return 0


def die() -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_how_a_part_ended(tmp_path: Path) -> None:
    told = b'{"type":"Figure","name":"f","value":1.0,"unit":"s"}\n{"type":"Fail'
    lines = read_lines(told)
    assert lines == (Figure(name="f", value=1.0, unit="s"),), "half a line counts"

    def judged(status: int | None, log: str = "") -> tuple[Outcome, str]:
        made = report_of("p", Ended(status, lines, log), 3.0, 60.0)
        assert made.figures == lines, "what was found is lost"
        return made.outcome, made.reason

    assert judged(0) == (Outcome.DONE, "")
    assert judged(None) == (Outcome.OUT_OF_TIME, "not done after 60 s")
    assert judged(-9) == (Outcome.FAILED, "ended by SIGKILL")
    assert judged(1, "Traceback\n\nImportError: no\n\n") == (Outcome.FAILED, "ImportError: no")
    assert run_bounded(die, (), tmp_path / "log", 60.0) == -signal.SIGSEGV


def test_a_part_that_cannot_be_imported_is_a_row_with_the_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = Runner("cpu", "dry run", tmp_path, time.monotonic() + 60).run(Part("none_such", 60))
    assert made.outcome is Outcome.FAILED
    assert made.reason.startswith("ModuleNotFoundError: No module named 'benchmarks.gpu_check.none_such'")
    assert "Traceback" in capfd.readouterr().err


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    log, budget_s, told = tmp_path / "log", 0.5, ""
    while "in hang_with_a_child" not in told:  # where it hung; with too little time it does not come to that
        budget_s *= 2
        assert budget_s < 40, told
        log.write_bytes(b"")
        started = time.monotonic()
        assert run_bounded(hang_with_a_child, (), log, budget_s) is None
        assert time.monotonic() - started < budget_s + 10
        told = log.read_text()
    deadline = time.monotonic() + 10
    while is_alive(int(told.split()[0])):
        assert time.monotonic() < deadline, "what it started goes on"
        time.sleep(0.02)


def test_a_part_knows_when_it_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that is the same everywhere, so that what its process took to come up counts."""
    told: list[Settings] = []

    def run(_: object, arguments: tuple[str, Settings, Path], log: Path, budget_s: float) -> int:
        told.append(arguments[1])
        return 0

    monkeypatch.setattr(running, "run_bounded", run)
    started = time.monotonic()
    Runner("cpu", "dry run", tmp_path, started + 100).run(Part("limits", 60))
    assert started + 60 <= told[0].deadline <= time.monotonic() + 60
    settings = Settings(device="cpu", scale="dry run", deadline=time.monotonic() + 50)
    assert 45 < Context(settings, lambda _: None).left_s <= 50


def test_no_part_begins_without_time_for_it(tmp_path: Path) -> None:
    made = Runner("cpu", "dry run", tmp_path, time.monotonic() + 1).run(Part("limits", 60))
    assert made.outcome is Outcome.LEFT_OUT


def test_kernels_are_interpreted_only_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    set_environment("cuda")
    assert "TRITON_INTERPRET" not in os.environ
    set_environment("cpu")
    assert os.environ["TRITON_INTERPRET"] == "1"


def test_parts_are_chosen_by_name() -> None:
    assert [part.name for part in parts.chosen(parts.CHECK, ("decode",))] == ["limits", "decode"]
    assert parts.chosen(parts.CHECK, ()) == parts.CHECK
    with pytest.raises(ValueError, match="there is no part speed; the parts are limits"):
        parts.chosen(parts.CHECK, ("speed",))


def test_all_parts_are_modules_and_fit_their_time() -> None:
    for part in (*parts.CHECK, *parts.SWEEP):
        assert (ROOT / "benchmarks" / "gpu_check" / f"{part.name}.py").exists(), part.name
    assert parts.TOTAL_S < 8 * 60


def test_files_with_gpu_tests_are_found(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_a.py").write_text("pytestmark = pytest.mark.gpu\n")
    (tests / "test_b.py").write_text("pytestmark = pytest.mark.slow\n")
    (tests / "gpu").mkdir()
    (tests / "gpu" / "test_c.py").write_text("@ON_ANY_DEVICE\n")
    assert marked_files(tmp_path) == ["tests/gpu/test_c.py", "tests/test_a.py"]
    assert "tests/engine/test_gpu.py" in marked_files(ROOT)


# ---- one command -------------------------------------------------------------------------------------


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``make`` as a user calls it: a ``make`` that runs these tests leaves it no flags and no level."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_a_plain_image_needs_no_environment(tmp_path: Path, has_gpu: bool) -> None:
    """A python that sees a GPU runs the check itself; any other is asked for an environment first."""
    python, asked = tmp_path / "python", tmp_path / "asked"
    python.write_text(
        f"""#!/bin/sh
echo "$@" >> {asked}
case "$1 $2" in
  -c*) exit {int(not has_gpu)} ;;
  "-m venv") exit 7 ;;
esac
"""
    )
    python.chmod(0o755)
    ended = make("gpu-check", f"PYTHON={python}", f"VENV={tmp_path / 'none'}", "ARGS=--quick")
    last = asked.read_text().splitlines()[-1]
    if has_gpu:
        assert ended.returncode == 0, ended.stderr
        assert last == "-m benchmarks.gpu_check --json docs/benchmarks/gpu_check.json --quick"
    else:
        assert ended.returncode != 0 and last == f"-m venv {tmp_path / 'none'}"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("", "gpu_check"),
        ("--quick decode", "gpu_check"),
        ("--device cpu", "gpu_check_dry_run"),
        ("--device=cpu --sweep", "gpu_check_dry_run_sweep"),
        ("--sweep", "gpu_check_sweep"),
    ],
)
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_neither_dry_runs_nor_sweeps_replace_the_figures_of_a_card(arguments: str, name: str) -> None:
    shown = make("--dry-run", "gpu-check", "PYTHON=false", f"ARGS={arguments}")
    assert shown.returncode == 0, shown.stderr
    assert f" --json docs/benchmarks/{name}.json" in shown.stdout.splitlines()[-1]


# ---- floors ------------------------------------------------------------------------------------------


def test_operations_of_attention_are_those_of_the_pairs_that_are_seen() -> None:
    for num_new, context in ((1, 0), (1, 7), (5, 0), (6, 3)):
        seen = sum(1 for row in range(num_new) for key in range(context + num_new) if key <= context + row)
        multiplied_and_added = 2 * seen * 2 * 16  # QK and PV, 16 dimensions
        assert extend_operations(num_new, context, 1, 16) == multiplied_and_added
    assert extend_operations(6, 3, 4, 16) == 4 * extend_operations(6, 3, 1, 16)


def test_bytes_of_a_decode_are_those_of_keys_and_values() -> None:
    model = FULL.model
    of_a_layer = decode_bytes(10, model.num_kv_heads, model.head_dim, 2)
    assert of_a_layer * model.num_layers == 10 * FULL.layout(2).token_bytes
    assert of_a_layer == 10 * 2 * 8 * 128 * 2


def test_a_step_can_be_no_faster_than_its_weights_its_kv_and_its_products() -> None:
    floor = StepFloor.of(FULL.model, 2)
    assert floor.num_weights == pytest.approx(8.03e9 - 128_256 * 4096, rel=0.001)
    weights_s = floor.num_weights * 2 / 4e12
    assert floor.seconds(1, 0, 4e12, 8e14) == pytest.approx(weights_s)
    kv_s = 64 * 1000 * 131_072 / 4e12
    assert floor.seconds(64, 1000, 4e12, 8e14) == pytest.approx(weights_s + kv_s)
    products_s = 2 * 1024 * floor.num_weights / 8e14
    assert products_s > weights_s
    assert floor.seconds(1024, 0, 4e12, 8e14) == pytest.approx(products_s)


def test_prompts_have_nothing_in_common() -> None:
    first, second = prompts(3, 20, 1000, seed=1), prompts(3, 20, 1000, seed=2)
    assert first == prompts(3, 20, 1000, seed=1)
    assert len({tuple(prompt[:4]) for prompt in first + second}) == 6
