"""``make bench`` as a whole: its parts, its table, and the page that is made of what it kept."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench, performance_doc
from benchmarks.bench import PARTS, Part, run_part
from benchmarks.bench_rows import COLUMNS, Row, Section, cells, compared
from benchmarks.bench_sections import gateway_sections, step_sections
from benchmarks.cpu_engine import profile, steps
from benchmarks.cpu_engine.asked import Load
from benchmarks.cpu_engine.floor import Constants
from benchmarks.cpu_engine.peers import write_hf_directory
from benchmarks.cpu_engine.profile import Batch
from benchmarks.cpu_engine.steps import PARTS as STEP_PARTS
from benchmarks.cpu_engine.steps import Profile, Stage, appended
from benchmarks.cpu_engine.stopwatch import Stopwatch, Timed, standing_in
from benchmarks.gateway.carrying import Carried
from benchmarks.gateway.crowds import Memory, Ramp
from benchmarks.gateway.latency import Latency
from engine.execution.hardware import default_threads
from loadtest.results import Interval
from tests.support.tiny_checkpoint import tiny_checkpoint

ROOT = Path(__file__).parent.parent


# ---- rows ----------------------------------------------------------------------------------------


def test_a_row_is_held_to_the_best_of_what_stands_beside_it() -> None:
    others = {"slow": [1.0, 1.0, 1.0] * 2, "fast": [2.0, 4.0, 3.0] * 2}
    more = compared(Row(name="rate", goal=0.5), [2.0, 2.0, 1.0] * 2, others)
    assert (more.held_to, more.value, more.ratio) == ("fast", 2.0, pytest.approx(2 / 3))
    less = compared(Row(name="time", is_ceiling=True, goal=0.5), [2.0, 2.0, 1.0] * 2, others)
    assert (less.held_to, less.ratio) == ("slow", 2.0)
    assert (more.is_met, less.is_met) == (True, False)
    assert more.interval is not None and more.interval.low <= 2 / 3 <= more.interval.high
    few = compared(Row(name="rate"), [2.0] * 5, {"peer": [1.0] * 5})
    assert (few.ratio, few.interval) == (2.0, None)


def test_a_ratio_is_of_the_medians_of_whole_rounds() -> None:
    """What a round does to both cancels out: both are twice as fast in every second one."""
    pairs = {"peer": [1.0, 2.0] * 4}
    row = compared(Row(name="rate"), [1.5, 3.0] * 4, pairs)
    assert row.ratio == pytest.approx(1.5) and row.interval is not None
    assert (row.interval.low, row.interval.high) == (pytest.approx(1.5), pytest.approx(1.5))


def test_the_table_says_what_was_met_missed_and_not_measured() -> None:
    rows = [
        Row(name="a", unit="s", value=4.5, goal=5, is_ceiling=True, judges_value=True),
        Row(name="b", value=1234.5, beside={"peer": 0.5}, held_to="peer", ratio=0.4, goal=0.5),
        Row(name="c", note="not installed"),
        Row(name="d", value=2.0),
    ]
    assert list(cells([Section(name="all", rows=rows), Section(name="facts only", rows=[])])) == [
        ("all", "", "", "", "", ""),
        ("a", "4.5 s", "", "", "≤ 5 s", "met"),
        ("b", "1,234", "peer 0.5", "0.40", "≥ 0.5", "MISSED"),
        ("c", "not measured", "", "", "", "not installed"),
        ("d", "2", "", "", "", ""),
    ]


# ---- parts ---------------------------------------------------------------------------------------


def sections_of(found: dict[str, Any]) -> list[Section]:
    return [Section(name=found["name"], rows=[])]


def write_part(directory: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Part:
    (directory / "a_part.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{directory}:{ROOT}")
    return Part("a", "A part", ("a_part",), (), sections_of)


def test_a_part_is_a_process_that_writes_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "import sys, pathlib\npathlib.Path(sys.argv[-1]).write_text('{\"name\": \"' + sys.argv[1] + '\"}')\n"
    )
    part = write_part(tmp_path, monkeypatch, text)
    assert run_part(part, ["given"]) == [Section(name="given", rows=[])]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import sys\nprint('once', file=sys.stderr)\nsys.exit('there is no such thing')", "no such thing"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import module_that_is_not_there", "module_that_is_not_there"),
        ("pass", "exit code 0"),
    ],
)
def test_a_part_that_cannot_be_measured_is_a_row_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    (section,) = run_part(write_part(tmp_path, monkeypatch, text), [])
    (row,) = section.rows
    assert section.name == "A part" and row.value is None and reason in row.note


@pytest.mark.parametrize("has_figures", [True, False])
def test_ctrl_c_keeps_what_was_measured_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_figures: bool
) -> None:
    """One part tells what it has, or dies of it; the parts after it are not begun, and stay as they are."""
    told = 'pathlib.Path(sys.argv[-1]).write_text(\'{"name": "found"}\')' if has_figures else "sys.exit(1)"
    text = (
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        f"{told}\n"
    )
    part = write_part(tmp_path, monkeypatch, text)
    monkeypatch.setattr(bench, "PARTS", {"a": part, "never": None})
    options = argparse.Namespace(quick=False, llama_server=None)
    expected = {"a": [Section(name="found", rows=[])]} if has_figures else {}
    assert bench.measured(["a", "never"], options) == (expected, "a")


def test_what_was_kept_stays_if_nothing_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(part: Part, arguments: list[str]) -> list[Section]:
        raise bench.PartInterruptedError(None)

    monkeypatch.setattr(bench, "run_part", interrupted)
    path = tmp_path / "bench.json"
    kept = (performance_doc.REPORTS / "bench.json").read_text()
    of_another = kept.replace('"processor": "', '"processor": "Another ')
    for before in (None, of_another):
        if before is not None:
            path.write_text(before)
        monkeypatch.setattr(sys, "argv", ["bench", "--only", "step", "--json", str(path)])
        with pytest.raises(SystemExit) as ended:
            bench.main()
        assert ended.value.code == 130
        assert (path.read_text() if path.exists() else None) == before
        assert "nothing was measured" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--markdown"], ["--only", "step"]])
@pytest.mark.parametrize("content", ["no JSON", "{}", '{"parts": {"cpu": 1}}', '{"parts": {}}', None])
def test_a_file_that_is_no_report_ends_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], content: str | None
) -> None:
    path = tmp_path / "absent" / "found.json"
    if content is not None:
        path.parent.mkdir()
        path.write_text(content)
    monkeypatch.setattr(bench, "run_part", lambda part, arguments: pytest.fail("it was begun"))
    monkeypatch.setattr(sys, "argv", ["bench", *arguments, "--json", str(path)])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    assert content is None or path.read_text() == content


def test_the_part_ends_with_the_benchmark(tmp_path: Path) -> None:
    (tmp_path / "benchmarks_part.py").write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    program = (
        "import sys\nfrom dataclasses import replace\nfrom benchmarks import bench\n"
        "bench.PARTS['step'] = replace(bench.PARTS['step'], command=('benchmarks_part',))\n"
        "sys.argv = ['bench', '--only', 'step']\nbench.main()\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as process:
        until = time.monotonic() + 60
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        process.terminate()
        assert process.wait(60) == 143
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_the_engine_step_is_judged_at_256_sequences() -> None:
    first = {
        "running": 256, "context": 256, "waiting": 0, "total_s": 0.0004,
        "ratio": 1.0, "ratio_low": 1.0, "ratio_high": 1.0,
    }  # fmt: skip
    second = {**first, "waiting": 100_000, "total_s": 0.0006, "ratio": 1.5, "ratio_high": 1.7}
    (section,) = step_sections({"goal_s": 0.0005, "shapes": [first, second, {**first, "running": 16}]})
    assert [row.is_met for row in section.rows] == [True, False, None]
    slow = section.rows[1]
    assert slow.value == pytest.approx(0.6) and "100,000 waiting" in slow.name
    assert slow.beside[slow.held_to] == pytest.approx(0.4) and slow.ratio == 1.5
    assert slow.interval is not None and slow.interval.high == 1.7


def test_the_gateway_is_held_to_the_bare_loop_and_to_its_goals() -> None:
    """With the values that its measurement gives, so that their names agree."""
    carried = Carried(
        kind="sse", num_streams=256, us_per_token=11.0, floor_us=5.0, ratio=2.2, ratio_low=2.1,
        ratio_high=2.3, tokens_per_s=12_800.0, tokens_per_s_of_a_core=91_000.0, tokens_per_event=1.0,
        num_lagging=0,
    )  # fmt: skip
    latency = Latency(
        num_streams=2000, events_per_s=40_000.0, phases=1, p50_ms=3.0, p99_ms=25.0, max_ms=30.0,
        gateway_share=0.5, engine_share=0.1, sink_share=0.1,
    )  # fmt: skip
    ramp = Ramp(
        num_streams=10_000, reached_s=5.0, tokens_per_s=9990.0, tokens_share=0.999, gateway_share=0.2,
        num_ended=0, open_files=10_040,
    )  # fmt: skip
    found = {
        "goals": {"ratio": 2.0, "tokens_per_s_of_a_core": 80_000, "p99_ms": 20.0},
        "carried": [asdict(carried)],
        "latencies": [asdict(latency)],
        "memory": asdict(Memory(num_streams=2000, idle_bytes=2048.0, active_bytes=4096.0)),
        "ramp": asdict(ramp),
        "stages": {"ipc_decode_us": 0.5, "stop_check_us": 1.0},
        "rest_us": 4.0,
    }
    first, stages = gateway_sections(found)
    assert [(row.value, row.is_met) for row in first.rows] == [
        (11.0, False), (91_000.0, True), (25.0, False), (2.0, None), (4.0, None), (0, True),
    ]  # fmt: skip
    assert first.rows[0].ratio == 2.2 and first.rows[0].interval == Interval(2.1, 2.3)
    assert [(row.name, row.value) for row in stages.rows] == [
        ("ipc decode", 0.5), ("stop check", 1.0), ("event loop and all else", 4.0),
    ]  # fmt: skip
    nothing = {**found, "carried": [], "latencies": [], "memory": None, "ramp": None, "stages": None}
    assert [section.rows for section in gateway_sections(nothing)] == [[]]


def test_a_report_keeps_the_parts_that_are_not_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {name: [Section(name=name, rows=[Row(name="x", value=1.0)])] for name in PARTS}
    monkeypatch.setattr(bench, "run_part", lambda part, arguments: found[part.name])
    path = tmp_path / "bench.json"

    def run(*arguments: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["bench", *arguments, "--json", str(path)])
        bench.main()
        return {name: part["is_quick"] for name, part in json.loads(path.read_text())["parts"].items()}

    assert run("--only", "step", "--quick") == {"step": True}
    assert run("--only", "cpu") == {"cpu": False, "step": True}
    monkeypatch.setattr(bench, "processor", lambda: "another one")
    assert run("--only", "gateway") == {"gateway": False}


# ---- the page ------------------------------------------------------------------------------------


def test_the_page_is_made_of_what_was_kept() -> None:
    page = performance_doc.PAGE.read_text()
    assert page == performance_doc.rewritten(page, performance_doc.places())


def test_tables_stand_in_their_places_and_nothing_else_changes(tmp_path: Path) -> None:
    found, stages = tmp_path / "bench.json", tmp_path / "cpu_engine_steps.json"
    places = [place for place in performance_doc.places(tmp_path) if place.name in ("bench", "steps")]
    row = {"name": "rate", "value": 2.0, "note": "a|b"}
    section = {"name": "An engine", "rows": [row], "facts": {"threads": "2"}}
    machine = {"processor": "A processor", "system": "A system", "python": "3.11"}
    part = {"date": "2026-01-01", "is_quick": False, "sections": [section]}
    report = {"machine": machine, "parts": {"cpu": part}}
    found.write_text(json.dumps(report))
    profile_of = Profile(
        batch=16, context=256, step=60.0, parts={"products": 19.0}, floor_products=19.0, floor_kv=1.0,
        weights="bf16",
    )  # fmt: skip
    steps.write_stages(stages, [Stage(after="packing", machine="A processor", profiles=[profile_of])])
    page = "x\n<!-- bench -->\nold\n<!-- end of bench -->\ny\n<!-- steps --><!-- end of steps -->\n"
    with pytest.raises(AssertionError, match="no place for steps"):
        performance_doc.rewritten(page, places)
    page = page.replace("<!-- steps -->", "<!-- steps -->\n")
    written = performance_doc.rewritten(page, places)
    assert "old" not in written and written.startswith("x\n<!-- bench -->\n\n2026-01-01, A processor")
    assert f"| {' | '.join(COLUMNS)} |" in written and "| **An engine** |" in written
    assert "| rate | 2 |  |  |  | a·b |" in written and "- threads: 2" in written
    assert "| packing | 16 × 256 | 60 | 19 |" in written and "| 19 (bf16) | 1 | 3.00 |" in written
    assert performance_doc.rewritten(written, places) == written


def test_a_step_of_work_that_is_measured_again_keeps_its_place() -> None:
    one, two = (Stage(after=name, machine="m", profiles=[]) for name in "ab")
    again = Stage(after="a", machine="another", profiles=[])
    assert appended(appended([one], two), again) == [again, two]


# ---- the profile ---------------------------------------------------------------------------------


def test_what_is_timed_within_another_part_counts_once() -> None:
    now = [0.0]
    watch = Stopwatch(lambda: now[0])

    def passing(seconds: float, then: Callable[[], Any] = lambda: None) -> Callable[[], Any]:
        def work() -> Any:
            now[0] += seconds
            return then()

        return work

    inner = watch.timed("inner", passing(2.0))
    outer = watch.timed("outer", passing(3.0, lambda: (inner(), inner())))
    outer()
    inner()
    assert watch.take() == {"outer": 3.0, "inner": 6.0}
    assert watch.take() == {}


def test_a_timed_object_is_the_object_in_all_else() -> None:
    class Norm:
        eps = 0.5

        def __call__(self, value: int) -> int:
            return value + 1

        def after(self, value: int) -> int:
            return value + 2

    watch = Stopwatch()
    timed = Timed(Norm(), watch, "norm", "after")
    assert (timed(1), timed.after(1), timed.eps) == (2, 3, 0.5)
    assert watch.take().keys() == {"norm"}
    with standing_in(Norm, "eps", lambda: None):
        assert callable(Norm.eps)
    assert Norm.eps == 0.5


class FakeRates:
    def constants(self, load: Load) -> Constants:
        return Constants(
            prefill_tokens_s=1.0, products_s={"int4": 0.001}, copied_bytes_s=1e9, kv_token_bytes=1000
        )


def test_a_profile_of_an_engine_has_every_part(tmp_path: Path) -> None:
    model = write_hf_directory(tiny_checkpoint(tmp_path / "source"), tmp_path / "model")
    (found,) = profile.measure([Batch(2, 40)], default_threads(), 2, FakeRates(), str(model))
    assert found.parts.keys() == set(STEP_PARTS) and all(ms > 0 for ms in found.parts.values())
    assert found.gap == pytest.approx(found.step / (1 + 1000 * 2 * 40 * 1000 / 1e9))
    by_prompt = [profile.Batch(1, 40), profile.Prompt(100)]
    _, found = profile.measure(by_prompt, default_threads(), 2, FakeRates(), str(model))
    assert found.parts.keys() == set(STEP_PARTS) and all(ms > 0 for ms in found.parts.values())
    assert found.gap == pytest.approx(found.step / (100 * 1000))
