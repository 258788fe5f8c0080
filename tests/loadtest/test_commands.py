"""The commands as users type them: what they refuse, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from loadtest.cli import main
from loadtest.commands.running import _ONE_STOP_S, Found, carry_out, hand_over
from loadtest.commands.settings import Output, headers, take_load
from loadtest.measuring.bench import AskedLoad
from loadtest.measuring.progress import Display
from loadtest.results import Report
from loadtest.spec import WorkloadSpec
from loadtest.traces import read_trace
from tests.loadtest.test_describe import OFF, report

COMMANDS = ("run", "sweep", "compare", "serve-and-run", "sharing")
ANYWHERE = ("--base-url", "http://127.0.0.1:1")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- what is refused -------------------------------------------------------------------------------


def test_the_command_loads_nothing_heavy() -> None:
    statement = (
        "import loadtest.cli, sys;"
        "sys.exit(', '.join({'numpy', 'aiohttp', 'matplotlib', 'uvloop', 'torch'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", statement], check=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--rate", "2", "--concurrency", "2"), "exclude each other"),
        (("run", "--concurrency", "2", "--max-concurrency", "2"), "takes no --max-concurrency"),
        (("run", "--concurrency", "5", "--num-requests", "4"), "more users than they have to ask: 5, and 4"),
        (("run", "--rate", "0"), "--rate"),
        (("run", "--rate", "nan"), "--rate"),
        (("run", "--slo", "ttft=5"), "ttft=5"),
        (("run", "--trace", "no-such-trace"), "Traces that come with tideload"),
        (("run", "--transport", "ws"), "WebSocket"),
        (("run", "--header", "no colon"), "'NAME: VALUE'"),
        (("run", "--base-url", "here"), "http://127.0.0.1:8000"),
        (("run", "--n", "2", "--endpoint", "responses"), "a response is one answer"),
        (("run", "--extra-body", "[1]"), "must be a JSON object"),
        (("run", "--extra-body", '{"temperature": NaN}'), "must be a JSON object"),
        (("run", "--extra-body", '{"temperature": 1e999}'), "must be a JSON object"),
        (("run", "--extra-body", '{"model": "other"}'), "model is said by --model"),
        (("run", "--extra-body", '{"max_tokens": 5}'), "max_tokens is said by --output-len"),
        (("run", "--rate", "1e300", "--duration", "1e300"), "more than 10,000,000 requests"),
        (("run", "--num-requests", "1000000000000"), "end at 10,000,000"),
        (("run", "--input-len", "1e9"), "above 10,000,000"),
        (("run", "--think", "lognormal:1:5000"), "a SIGMA above 5"),
        (("run", "--json", "/none/out.json"), "/none/out.json cannot be written: No such file"),
        (("run", "--html", "/proc/out.html"), "/proc/out.html cannot be written"),
        (("run", "--png", "/proc/pictures"), "/proc/pictures cannot be written into"),
        (("sweep", "--rate", "1", "--concurrency", "1"), "exclude each other"),
        (("sweep", "--over", "concurrency", "--rate", "1"), "contradicts"),
        (("sweep", "--over", "concurrency", "--max-concurrency", "9"), "takes no --max-concurrency"),
        (("compare", "http://127.0.0.1:1"), "Missing argument 'B'"),
        (("compare", "http://127.0.0.1:1", "there"), "http://127.0.0.1:8000"),
        (("compare", "http://a", "http://b", "--rounds", "1"), "--rounds"),
        (("serve-and-run",), "Missing argument"),
        (("run", *ANYWHERE, "--input-len", "many"), "Prompt length: 'many' must be"),
        (("run", *ANYWHERE, "--turns", "0"), "Turns: '0' must be"),
        (("run", *ANYWHERE, "--think", "-1"), "Think time: '-1' must be"),
        (("run", *ANYWHERE, "--input-len", "trace"), "no trace to take it from"),
        (("run", *ANYWHERE, "--arrival", "poisson"), "that are poisson need a rate"),
        (("sweep", *ANYWHERE, "--return", "x"), "Return time: 'x' must be"),
        (("sweep", *ANYWHERE, "--over", "concurrency", "--return", "5"), "give a think time instead"),
        (("compare", "http://127.0.0.1:1", "http://127.0.0.1:1", "--output-len", "0"), "Answer length: '0'"),
        (("serve-and-run", "--output-len", "0", "--", "/none/server", "{port}"), "Answer length: '0'"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(arguments: tuple[str, ...], said: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())


def test_where_nothing_answers_it_says_so() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    for arguments in (("run", "--base-url", url), ("sweep", "--base-url", url), ("compare", url, url)):
        result = invoke(*arguments)
        assert result.exit_code == 1, result.output
        assert result.output.startswith("tideload: ")
        assert "connection refused" in result.output
        assert "Traceback" not in result.output
        assert "Errno" not in result.output


def test_a_server_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    log = ("--server-log", str(tmp_path / "log"))
    result = invoke("serve-and-run", *log, "--", sys.executable, "-c", "print('no model')", "{port}")
    assert result.exit_code == 1
    assert "The server ended with status 0" in result.output
    assert "no model" in result.output
    portless = invoke("serve-and-run", *log, "--", "server")
    assert (portless.exit_code, "{port}" in portless.output) == (2, True)


def test_a_key_comes_before_headers_that_say_otherwise() -> None:
    assert headers(["X-A: 1:2", "Authorization: mine"], None) == {"X-A": "1:2", "Authorization": "mine"}
    assert headers([], "key") == {"Authorization": "Bearer key"}


@pytest.mark.parametrize(
    ("settings", "given", "load"),
    [
        ({}, {}, AskedLoad(users=1)),
        ({"max_concurrency": 64}, {}, AskedLoad(users=64)),
        ({"max_concurrency": 64}, {"rate": 2.0}, AskedLoad(rate=2.0)),
        ({}, {"concurrency": 8}, AskedLoad(users=8)),
        ({"max_concurrency": 64, "trace": read_trace("azure-conv")}, {}, AskedLoad()),
    ],
)
def test_who_decides_when_a_request_is_sent(
    settings: dict[str, Any], given: dict[str, Any], load: AskedLoad
) -> None:
    """As in vLLM's bench, --max-concurrency without a rate is that many users, always at work."""
    spec = WorkloadSpec(**settings)
    found = take_load({"rate": None, "concurrency": None, **given}, spec)
    assert found == load
    assert found.of(spec).max_concurrency == settings.get("max_concurrency", found.users)


# ---- how it ends -----------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_was_measured() -> None:
    async def work(display: Display, stop: asyncio.Event) -> Report:
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        return report()

    before = signal.getsignal(signal.SIGINT)
    found = carry_out(work)
    assert found.was_stopped
    assert signal.getsignal(signal.SIGINT) is before
    assert found.status == 130


def test_a_second_ctrl_c_leaves_at_once() -> None:
    async def work(display: Display, stop: asyncio.Event) -> Report:
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        await asyncio.sleep(2 * _ONE_STOP_S)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
        return report()

    with pytest.raises(KeyboardInterrupt):
        carry_out(work)


def test_ctrl_c_has_one_exit_code_before_there_is_anything_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: dict[str, Any]) -> Output:
        raise KeyboardInterrupt

    monkeypatch.setattr("loadtest.commands.settings.take_output", interrupted)
    assert invoke("run", *ANYWHERE).exit_code == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_twice_at_once_is_one(number: signal.Signals) -> None:
    """As `timeout` sends it: to the process, and to the group that it is in."""

    async def work(display: Display, stop: asyncio.Event) -> Report:
        os.kill(os.getpid(), number)
        await stop.wait()
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.05)
        return report()

    assert carry_out(work).report == report()


def test_what_a_server_that_ended_by_itself_gave_is_not_to_be_trusted() -> None:
    found = Found(report(), was_stopped=False)
    assert found.status == 0
    ended = found.of_a_server_that_ended("It ended.")
    assert (ended.status, ended.report.notes) == (3, ["It ended."])


def test_the_report_is_written_before_the_server_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end takes up to half a minute, and who breaks that off keeps what was measured."""
    path, log = tmp_path / "out.json", tmp_path / "log"
    server = (
        "import http.server, os, signal, sys\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200), self.end_headers()\n"
        "def end(*_): print(os.path.getsize(sys.argv[2]) > 0, flush=True), os._exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()\n"
    )
    monkeypatch.setattr(
        "loadtest.commands.running.carry_out", lambda work: Found(report(), was_stopped=False)
    )
    command = (sys.executable, "-c", server, "{port}", str(path))
    result = invoke("serve-and-run", "--server-log", str(log), "--json", str(path), "--", *command)
    assert result.exit_code == 0, result.output
    assert log.read_text().endswith("True\n")


def test_what_cannot_be_written_takes_nothing_else_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full, page = Path("/dev/full"), tmp_path / "out.html"
    with pytest.raises(click.FileError, match="No space left"):
        hand_over(report(), Output(full, page, full / "pictures"))
    captured = capsys.readouterr()
    assert "Latency in ms" in captured.out
    assert "pictures" in captured.err
    assert page.stat().st_size > 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(closed: str) -> None:
    command = f"{sys.executable} -m loadtest.cli run --base-url http://127.0.0.1:{closed_port()} {closed}"
    assert subprocess.run(["sh", "-c", command]).returncode == 1


def test_who_reads_the_table_may_go_before_its_end(tmp_path: Path) -> None:
    """As `head` does."""
    statement = (
        "import pathlib, sys, time\n"
        "from loadtest.commands.running import Output, hand_over\n"
        "from tests.loadtest.test_describe import report\n"
        "sys.stdin.read()\n"
        "hand_over(report(), Output(None, pathlib.Path(sys.argv[1]), None))\n"
    )
    page = tmp_path / "out.html"
    command = [sys.executable, "-c", statement, str(page)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as p:
        assert p.stdout is not None
        p.stdout.close()
        p.stdout = None
        _, said = p.communicate()
    assert (p.returncode, said) == (0, b"")
    assert page.exists()


def test_trying_whether_a_file_can_be_written_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    assert (
        invoke("run", "--base-url", f"http://127.0.0.1:{closed_port()}", "--json", str(path)).exit_code == 1
    )
    assert not path.exists()
    path.write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "to-come")
    invoke("run", "--base-url", f"http://127.0.0.1:{closed_port()}", "--json", str(tmp_path / "link"))
    assert (path.read_text(), (tmp_path / "link").is_symlink()) == ("before", True)


def test_the_report_is_written_whatever_it_is_worth(tmp_path: Path) -> None:
    async def work(display: Display, stop: asyncio.Event) -> Report:
        return OFF

    path = tmp_path / "out.json"
    found = carry_out(work)
    hand_over(found.report, Output(path, None, None))
    assert found.status == 3
    written = json.loads(path.read_text())
    assert (written["kind"], written["schedule"]["on_schedule"]) == ("run", False)
