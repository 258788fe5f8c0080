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

import pytest
from click.testing import CliRunner, Result

from loadtest.cli import main
from loadtest.commands.running import carry_out, leave
from loadtest.commands.settings import Output, headers
from loadtest.progress import Display
from loadtest.results import Report
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
        (("run", "--rate", "0"), "--rate"),
        (("run", "--rate", "nan"), "--rate"),
        (("run", "--slo", "ttft=5"), "ttft=5"),
        (("run", "--trace", "no-such-trace"), "Traces that come with tideload"),
        (("run", "--transport", "ws"), "WebSocket"),
        (("run", "--header", "no colon"), "'NAME: VALUE'"),
        (("run", "--base-url", "here"), "http://127.0.0.1:8000"),
        (("run", "--n", "2", "--endpoint", "responses"), "a response is one answer"),
        (("run", "--extra-body", "[1]"), "must be a JSON object"),
        (("run", "--json", "/none/out.json"), "/none is no directory"),
        (("sweep", "--rate", "1", "--concurrency", "1"), "exclude each other"),
        (("sweep", "--over", "concurrency", "--rate", "1"), "contradicts"),
        (("sweep", "--over", "concurrency", "--max-concurrency", "9"), "takes no --max-concurrency"),
        (("compare", "http://127.0.0.1:1"), "Missing argument 'B'"),
        (("compare", "http://127.0.0.1:1", "there"), "http://127.0.0.1:8000"),
        (("compare", "http://a", "http://b", "--rounds", "1"), "--rounds"),
        (("serve-and-run",), "Missing argument"),
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
        assert "Traceback" not in result.output


def test_a_server_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    log = ("--server-log", str(tmp_path / "log"))
    result = invoke("serve-and-run", *log, "--", sys.executable, "-c", "print('no model')", "{port}")
    assert result.exit_code == 1
    assert "The server ended with status 0" in result.output
    assert "no model" in result.output
    assert "{port}" in invoke("serve-and-run", *log, "--", "server").output


def test_a_key_comes_before_headers_that_say_otherwise() -> None:
    assert headers(["X-A: 1:2", "Authorization: mine"], None) == {"X-A": "1:2", "Authorization": "mine"}
    assert headers([], "key") == {"Authorization": "Bearer key"}


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
    with pytest.raises(SystemExit) as left:
        leave(found, Output(None, None, None))
    assert left.value.code == 130


def test_a_second_ctrl_c_leaves_at_once() -> None:
    async def work(display: Display, stop: asyncio.Event) -> Report:
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
        return report()

    with pytest.raises(KeyboardInterrupt):
        carry_out(work)


def test_the_report_is_written_whatever_it_is_worth(tmp_path: Path) -> None:
    async def work(display: Display, stop: asyncio.Event) -> Report:
        return OFF

    path = tmp_path / "out.json"
    with pytest.raises(SystemExit) as left:
        leave(carry_out(work), Output(path, None, None))
    assert left.value.code == 3
    written = json.loads(path.read_text())
    assert (written["kind"], written["schedule"]["on_schedule"]) == ("run", False)
