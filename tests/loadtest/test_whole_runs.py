"""The commands from end to end: against servers that answer as they are told to, and against tidegate."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.scripted_openai import Reply, Script, ScriptedServer, scripted_openai
from loadtest.cli import main
from loadtest.describe import exit_status, faults_of_point
from loadtest.results import CompareReport, Repeat, Report, RunReport, SweepReport

pytestmark = pytest.mark.alone  # what shares the processors with others says so, and is not trusted
SMALL = ("--input-len", "40", "--output-len", "8", "--warmup", "2", "--repeats", "1")
QUICK = Reply(first_s=0.004, gap_s=0.001)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    with scripted_openai() as one, scripted_openai() as other:
        yield one, other


@pytest.fixture
def server(servers: tuple[ScriptedServer, ScriptedServer]) -> ScriptedServer:
    servers[0].rewrite(Script(replies=[QUICK]))
    return servers[0]


class Ended:
    """A command that is over. ``report`` is what it wrote."""

    def __init__(self, status: int, output: str, path: Path) -> None:
        self.status = status
        self.output = output
        self.text = path.read_text() if path.exists() else ""

    @property
    def report(self) -> Report:
        return msgspec.json.decode(self.text, type=Report)


def tideload(folder: Path, command: str, *arguments: str) -> Ended:
    path = folder / "out.json"
    words = [command, "--json", str(path), *arguments]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tideload", *words])
        result = CliRunner().invoke(main, words)
    return Ended(result.exit_code, result.output, path)


def run(folder: Path, server: ScriptedServer, *arguments: str) -> tuple[Ended, RunReport]:
    ended = tideload(folder, "run", "--base-url", server.url, *SMALL, *arguments)
    assert ended.text, ended.output
    report = ended.report
    assert isinstance(report, RunReport)
    return ended, report


@pytest.mark.parametrize(
    ("endpoint", "transport"),
    [("chat", "sse"), ("completions", "sse"), ("responses", "sse"), ("responses", "ws")],
)
def test_a_run_asks_what_it_was_told_to_and_writes_what_it_found(
    tmp_path: Path, server: ScriptedServer, endpoint: str, transport: str
) -> None:
    way = ("--endpoint", endpoint, "--transport", transport)
    ended, report = run(tmp_path, server, "--rate", "40", "--num-requests", "12", *way)
    assert ended.status == (0 if report.schedule.on_schedule else 3), ended.output
    assert (report.summary.completed, report.summary.failed) == (12, 0)
    assert report.summary.completion_tokens == 96
    assert report.usage.within
    assert report.schedule.asked_rate == 40
    assert report.warmup_requests == 2
    asked = {name: report.workload[name] for name in ("rate", "endpoint", "transport", "input_len", "seed")}
    assert asked == {"rate": 40.0, "endpoint": endpoint, "transport": transport, "input_len": "40", "seed": 0}
    assert report.label in ended.output


def test_repeats_have_words_of_their_own_unless_the_cache_is_to_be_kept(
    tmp_path: Path, server: ScriptedServer
) -> None:
    def prompts(*arguments: str) -> list[list[str]]:
        server.rewrite(Script(replies=[QUICK]))
        run(tmp_path, server, "--num-requests", "3", "--repeats", "2", "--warmup", "0", *arguments)
        asked = [record.prompt for record in server.records()][-6:]
        return [asked[:3], asked[3:]]

    first, second = prompts()
    assert not set(first) & set(second)
    assert [len(prompt.split()) for prompt in first] == [len(prompt.split()) for prompt in second]
    kept, again = prompts("--keep-cache", "--input-len", "uniform:30:60")
    assert kept == again


def test_repeats_are_samples_of_their_own(tmp_path: Path, server: ScriptedServer) -> None:
    """And one of them alone is had again by its seed."""
    drawn = ("--rate", "100", "--num-requests", "5", "--input-len", "uniform:30:60")

    def asked(repeat: Repeat) -> list[tuple[int, float]]:
        first_ms = repeat.requests[0].intended_ms
        return [(row.input_len, round(row.intended_ms - first_ms, 1)) for row in repeat.requests]

    _, report = run(tmp_path, server, *drawn, "--repeats", "2")
    first, second = report.repeats
    assert first.seed == 0
    assert asked(first) != asked(second)
    _, again = run(tmp_path, server, *drawn, "--seed", str(second.seed))
    assert asked(again.repeats[0]) == asked(second)


def test_both_servers_of_a_comparison_are_asked_the_same(
    tmp_path: Path, servers: tuple[ScriptedServer, ScriptedServer]
) -> None:
    for server in servers:
        server.rewrite(Script(replies=[QUICK]))
    a, b = (server.url for server in servers)
    drawn = ("--concurrency", "2", "--num-requests", "4", "--rounds", "2", "--output-len", "uniform:4:9")
    ended = tideload(tmp_path, "compare", a, b, "--input-len", "40", "--warmup", "0", *drawn)
    report = ended.report
    assert isinstance(report, CompareReport)
    of_a, of_b = (
        [[row.output_len for row in repeat.requests] for repeat in side.repeats]
        for side in (report.a, report.b)
    )
    assert of_a == of_b
    assert of_a[0] != of_a[1]


def test_users_ask_more_than_once_where_nobody_says_how_often(tmp_path: Path, server: ScriptedServer) -> None:
    _, report = run(tmp_path, server, "--concurrency", "30")
    assert (report.summary.completed, report.schedule.peak_concurrency) == (120, 30)
    few = ("--concurrency", "30", "--num-requests", "20")
    refused = tideload(tmp_path, "run", "--base-url", server.url, *SMALL, *few)
    assert (refused.status, "more users than they have to ask" in refused.output) == (2, True)


def test_a_warm_up_that_failed_is_none(tmp_path: Path, server: ScriptedServer) -> None:
    server.rewrite(Script(replies=[QUICK]))
    _, report = run(tmp_path, server, "--num-requests", "2")
    looked = len(server.records()) - 2 - 2
    assert report.warmup_requests == 2
    refusals = [Reply(status=503, code="busy")] * 2
    server.rewrite(Script(replies=[*[QUICK] * looked, *refusals, *[QUICK] * 2]))
    _, report = run(tmp_path, server, "--num-requests", "2")
    assert (report.warmup_requests, report.summary.completed) == (0, 2)


def test_no_secret_gets_into_a_report(tmp_path: Path, server: ScriptedServer) -> None:
    server.rewrite(Script(replies=[QUICK], key="s3cret"))
    secret = ("--api-key", "s3cret", "--header", "X-Other: s3cret-too", "--extra-body", '{"my_key":"s3cret"}')
    ended, report = run(tmp_path, server, "--num-requests", "2", *secret)
    assert report.summary.completed == 2
    assert report.tool.arguments[-6:] == [
        "--api-key", "***", "--header", "X-Other: ***", "--extra-body", '{"my_key":"***"}',
    ]  # fmt: skip
    assert "s3cret" not in ended.text + ended.output


def test_as_in_vllm_a_cap_without_a_rate_is_so_many_users(tmp_path: Path, server: ScriptedServer) -> None:
    _, report = run(tmp_path, server, "--max-concurrency", "4", "--num-requests", "12")
    assert report.schedule.peak_concurrency == 4
    assert report.label.startswith("4 users; ")


def test_users_send_until_their_time_is_over(tmp_path: Path, server: ScriptedServer) -> None:
    _, report = run(tmp_path, server, "--concurrency", "2", "--duration", "0.5")
    rows = report.repeats[0].requests
    assert max(row.ended_ms or 0 for row in rows) > 490
    assert max(row.intended_ms for row in rows) < 500
    assert {row.outcome for row in rows} == {"completed"}
    assert (report.workload["duration_s"], report.workload["num_requests"]) == (0.5, None)
    assert not any("before their time" in note for note in report.notes)


@pytest.mark.case("G7")
def test_a_load_that_was_not_there_ends_with_code_3(tmp_path: Path, server: ScriptedServer) -> None:
    server.rewrite(Script(replies=[Reply(first_s=0.03)]))
    ended, report = run(tmp_path, server, "--rate", "40", "--num-requests", "12", "--max-concurrency", "1")
    assert ended.status == 3
    assert report.schedule.achieved_rate is not None
    assert report.schedule.achieved_rate < 0.99 * 40
    assert report.schedule.faults[0] in " ".join(ended.output.split())


def test_a_server_that_counts_other_tokens_ends_with_code_3(tmp_path: Path, server: ScriptedServer) -> None:
    server.rewrite(Script(replies=[Reply(num_tokens=16)]))  # as many as the survey asks for
    ended, report = run(tmp_path, server, "--num-requests", "4")
    assert ended.status == 3
    assert not report.usage.within


def test_where_nothing_is_answered_it_ends_with_code_1(tmp_path: Path, server: ScriptedServer) -> None:
    server.rewrite(Script(replies=[Reply(status=503, code="busy")]))
    refused = tideload(tmp_path, "run", "--base-url", server.url, *SMALL)
    assert refused.status == 1
    assert "busy" in refused.output


@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_a_stop_keeps_what_was_done(
    tmp_path: Path, server: ScriptedServer, numbers: list[signal.Signals]
) -> None:
    """The last as `timeout` does it, which tells a process and then its group."""
    path = tmp_path / "out.json"
    command = [
        sys.executable,
        "-m",
        "loadtest.cli",
        "run",
        "--base-url",
        server.url,
        "--json",
        str(path),
        *SMALL,
    ]
    command += ["--rate", "50", "--num-requests", "2000", "--api-key", "s3cret"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while sum(record.ended_at is not None for record in server.records()) < 40:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for number in numbers:
            process.send_signal(number)
        assert process.wait(60) == 130
    report = msgspec.json.decode(path.read_bytes(), type=Report)
    assert isinstance(report, RunReport)
    assert report.interrupted
    assert report.tool.arguments[:3] == ["run", "--base-url", server.url]
    assert report.tool.arguments[-2:] == ["--api-key", "***"]
    assert report.summary.completed > 0


def test_a_sweep_finds_where_the_server_is_full(tmp_path: Path, server: ScriptedServer) -> None:
    server.rewrite(Script(replies=[Reply(first_s=0.01)], max_running=2))
    sweep = ("sweep", "--base-url", server.url, "--over", "concurrency", "--num-requests", "16")
    ended = tideload(tmp_path, *sweep, *SMALL, "--slo", "ttft=10s", "--points", "5")
    report = ended.report
    assert isinstance(report, SweepReport)
    assert [point.value for point in report.points] == [1, 2, 4, 8, 16]
    assert [len(point.run.repeats[0].requests) for point in report.points] == [16, 16, 16, 32, 64]
    assert report.knee in (2, 4)
    is_there = not faults_of_point(report.points[-1].run)
    assert (report.highest_within_slo == 16) is is_there
    assert ended.status == exit_status(report)


def test_a_load_that_the_cap_holds_back_is_beyond_the_limit(tmp_path: Path, server: ScriptedServer) -> None:
    server.rewrite(Script(replies=[Reply(first_s=0.01)]))
    loads = ("--rate", "20", "--rate", "400", "--points", "2", "--duration", "0.2", "--num-requests", "20")
    cap = ("--max-concurrency", "1", "--arrival", "constant", "--slo", "ttft=10s", "--attainment", "0.8")
    ended = tideload(tmp_path, "sweep", "--base-url", server.url, *SMALL, *loads, *cap)
    report = ended.report
    assert isinstance(report, SweepReport)
    low, high = report.points
    assert high.run.summary.slo_attainment == 1
    assert high.run.schedule.capped > 0
    assert not high.sustained
    late = [bool(faults_of_point(point.run)) for point in (low, high)]
    assert low.meets_slo is (None if late[0] else True)
    assert high.meets_slo is (None if late[1] else False)
    assert ended.status == (3 if any(late) else 0)


def test_servers_with_other_windows_are_asked_the_same(
    tmp_path: Path, servers: tuple[ScriptedServer, ScriptedServer]
) -> None:
    for server, window, cost in zip(servers, (4096, 100), (10, 4), strict=True):
        server.rewrite(Script(replies=[QUICK], window=window, first_cost=cost))
    few = ("--rounds", "2", "--num-requests", "6", "--warmup", "0", "--output-len", "8")
    a, b = (server.url for server in servers)
    report = tideload(tmp_path, "compare", a, b, *few, "--input-len", "uniform:20:300").report
    assert isinstance(report, CompareReport)
    asked = [
        [(row.input_len, row.output_len) for row in repeat.requests]
        for run in (report.a, report.b)
        for repeat in run.repeats[:1]
    ]
    assert asked[0] == asked[1]
    assert max(length for length, _ in asked[0]) <= 92
    assert report.a.usage.within and report.b.usage.within


def test_a_comparison_sees_which_server_is_slower(
    tmp_path: Path, servers: tuple[ScriptedServer, ScriptedServer]
) -> None:
    for server, gap_s in zip(servers, (0.001, 0.005), strict=True):
        server.rewrite(Script(replies=[Reply(gap_s=gap_s)]))
    a, b = (server.url for server in servers)
    ended = tideload(tmp_path, "compare", a, b, "--concurrency", "2", "--num-requests", "4", *SMALL[:-2])
    report = ended.report
    assert isinstance(report, CompareReport)
    assert "".join(report.order) == "ABBAABBAABBA"
    tpot = next(ratio for ratio in report.ratios if ratio.measure == "tpot_ms p50")
    assert tpot.interval.low > 1
    assert "worse" in report.verdict
    assert report.verdict in " ".join(ended.output.split())


def test_tidegate_is_started_measured_and_ended(tmp_path: Path) -> None:
    """Its prompts are as long as planned, and its tiers are in the report."""
    log, page = tmp_path / "server.log", tmp_path / "report.html"
    serve = (sys.executable, "-m", "gateway.cli", "serve", "--port", "{port}", "--host-kv", "64MiB")
    ended = tideload(
        tmp_path, "serve-and-run", *SMALL, "--concurrency", "2", "--num-requests", "4",
        "--server-log", str(log), "--html", str(page), "--png", str(tmp_path / "png"), "--", *serve,
    )  # fmt: skip
    assert ended.text, ended.output
    report = ended.report
    assert isinstance(report, RunReport)
    assert (report.server.kind, report.summary.completed, report.usage.within) == ("tidegate", 4, True)
    assert report.usage.counted_prompt_tokens == report.usage.planned_prompt_tokens
    assert report.server.words_verified
    assert {"running", "kv_blocks host"} <= {series.name for series in report.repeats[0].server}
    assert ended.status == exit_status(report)
    assert "<svg" in page.read_text()
    assert list((tmp_path / "png").glob("*.png"))
    assert json.loads(ended.text)["kind"] == "run"
    assert f"on {report.server.base_url}" in log.read_text()
    assert "stopping; 0 requests" in log.read_text(), "it was let end by itself"
