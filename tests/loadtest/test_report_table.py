"""What stands on a terminal."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from msgspec import structs
from rich.console import Console

from loadtest.report import ReportError, require_matplotlib
from loadtest.report.table import print_report
from loadtest.report.words import figure, number
from loadtest.results import Report, Steady
from tests.support.load_reports import Setting, compare_report, run_report, sweep_report


def printed(report: Report, width: int = 80) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def squeezed(text: str) -> str:
    """Without the line breaks of a narrow terminal."""
    return " ".join(text.split())


def test_a_terminal_needs_nothing_to_draw_with() -> None:
    heavy = "{'matplotlib', 'numpy', 'jinja2'} & set(sys.modules)"
    statement = f"import loadtest.report.table, sys; sys.exit(bool({heavy}))"
    subprocess.run([sys.executable, "-c", statement], check=True)


def test_without_matplotlib_it_is_said_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    require_matplotlib()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ReportError, match=r"pip install 'tidegate\[report\]'"):
        require_matplotlib()


def test_latency_is_there_with_its_intervals_schedule_based_first() -> None:
    report = run_report()
    text = printed(report)
    for distribution in (report.summary.ttft_ms, report.summary.e2e_ms, report.summary.itl_ms):
        assert distribution is not None
        interval = distribution.intervals["p99"]
        assert figure(distribution.p99) in text
        assert f"{figure(interval.low)}–{figure(interval.high)}" in text
    assert text.index("Time to first token ") < text.index("from send")


def test_faults_come_before_any_figure() -> None:
    report = run_report(lag_ms=8.0)
    text = printed(report)
    assert "NOT TO BE TRUSTED" in text
    assert text.index("NOT TO BE TRUSTED") < text.index("Latency in ms")
    assert squeezed(report.schedule.faults[0]) in squeezed(text)


def test_a_run_that_went_well_raises_no_alarm() -> None:
    assert "NOT TO BE TRUSTED" not in printed(run_report())


def test_rates_of_the_time_in_which_the_load_was_whole_stand_beside_those_of_the_run() -> None:
    report = run_report()
    summary = structs.replace(report.summary, steady=Steady(0.0, 9.0, 123.4, 5.0), slow=7)
    text = squeezed(printed(structs.replace(report, summary=summary)))
    assert "while the load was whole 123" in text
    assert figure(report.summary.output_tok_s) in text
    assert "read slowly 7" in text


def test_failures_are_there_by_reason() -> None:
    report = run_report(failing=0.3)
    text = printed(report)
    for reason, count in report.summary.failures.items():
        assert any(reason in line and f" {count} " in line for line in text.splitlines())


def test_nothing_that_completed_is_dashes_and_no_traceback() -> None:
    text = printed(run_report(failing=1.0, has_metrics=False, slo=False))
    assert "–" in text and "No request completed" in text


@pytest.mark.parametrize(
    "report", [run_report(), sweep_report(Setting(num_requests=40)), compare_report()], ids=type
)
def test_eighty_columns_are_enough(report: Report) -> None:
    text = printed(report)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_sweep_says_limit_and_knee_and_has_a_line_for_each_point() -> None:
    sweep = sweep_report(Setting(num_requests=60))
    text = printed(sweep, width=120)
    assert sweep.knee_note in squeezed(text)
    lines = text[text.index("tokens/s") :].splitlines()
    for point in sweep.points:
        (line,) = [line for line in lines if line.split()[:1] == [number(point.value)]]
        assert figure(point.run.summary.output_tok_s) in line
        assert ("knee" in line) == (point.value == sweep.knee)


def test_a_comparison_has_its_verdict_and_every_ratio() -> None:
    report = compare_report()
    text = squeezed(printed(report, width=140))
    assert report.verdict in text
    assert all(figure(ratio.ratio) in text and ratio.measure in text for ratio in report.ratios)


def test_what_a_server_says_is_text_and_no_markup() -> None:
    report = run_report(failing=0.3)
    summary = structs.replace(report.summary, failures={"[red]boo[/nothing]": 3})
    assert "[red]boo[/nothing]" in printed(structs.replace(report, summary=summary))
