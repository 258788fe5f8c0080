"""Servers that the load test starts: ready, gone, and what is said when they do not start."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.commands.running import carry_out
from loadtest.measuring.progress import Display
from loadtest.measuring.server_process import Launch, ServerProcessError, serving
from loadtest.results import Report

SERVER = """
import http.server, subprocess, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(503 if Handler.asked <= {refusals} else {status})
        self.end_headers()
        self.wfile.write(b"{{}}")
    def log_message(self, *arguments): pass
print("the server says hello", flush=True)
{more}
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def launch(
    folder: Path, more: str = "", *, refusals: int = 0, status: int = 200, **settings: float
) -> Launch:
    script = SERVER.format(refusals=refusals, status=status, more=more)
    return Launch((sys.executable, "-c", script, "{port}"), folder / "server.log", **settings)  # type: ignore[arg-type]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_answers_at_the_port_that_was_filled_in_and_is_gone_afterwards(tmp_path: Path) -> None:
    given = launch(tmp_path)
    with serving(given) as server:
        assert server.base_url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{server.base_url}/health", timeout=5) as answer:
            assert answer.status == 200
        assert server.exit_status is None
    assert not is_alive(server.process.pid)
    assert server.exit_status == -signal.SIGTERM
    assert "hello" in given.log.read_text()


def test_one_that_is_not_ready_yet_is_waited_for(tmp_path: Path) -> None:
    with serving(launch(tmp_path, refusals=4)) as server:
        assert server.exit_status is None


@pytest.mark.parametrize("status", [401, 404])
def test_one_that_wants_a_key_or_knows_no_such_path_is_ready(tmp_path: Path, status: int) -> None:
    with serving(launch(tmp_path, status=status)):
        pass


def test_what_it_started_ends_with_it_even_if_neither_wants_to(tmp_path: Path) -> None:
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    more = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "print('child', child.pid, flush=True)"
    )
    given = launch(tmp_path, more, end_timeout_s=0.3)
    with serving(given) as server:
        pid = int(given.log.read_text().partition("child ")[2].split()[0])
        assert is_alive(pid)
    assert server.exit_status == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_ends_when_what_it_is_for_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), serving(launch(tmp_path)) as server:
        raise ZeroDivisionError
    assert not is_alive(server.process.pid)


def test_it_ends_when_the_load_test_is_told_to(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left, serving(launch(tmp_path)) as server:
        signal.raise_signal(signal.SIGTERM)
    assert left.value.code == 128 + signal.SIGTERM
    assert not is_alive(server.process.pid)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_second_signal_ends_the_server_too(tmp_path: Path) -> None:
    """The first one ends the measurement; the second one must not end the load test alone."""
    pids = list[int]()

    async def work(display: Display, stop: asyncio.Event) -> Report:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        await asyncio.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)
        raise AssertionError("it went on")

    def measure() -> None:
        with serving(launch(tmp_path)) as server:
            pids.append(server.process.pid)
            carry_out(work)

    with pytest.raises(SystemExit) as left:
        measure()
    assert left.value.code == 128 + signal.SIGTERM
    assert not is_alive(pids[0])


def test_what_answers_there_before_is_not_taken_for_it(tmp_path: Path) -> None:
    with serving(launch(tmp_path)) as other:
        given = replace(launch(tmp_path), base_url=f"{other.base_url}/v1", log=tmp_path / "second.log")
        with pytest.raises(ServerProcessError, match=f"answers at {other.base_url} already"), serving(given):
            pass
        assert other.exit_status is None
    assert not given.log.exists(), "it was not even started"


def test_one_that_was_ready_and_is_gone_is_not_ready(tmp_path: Path) -> None:
    """What answers is the child that it left behind."""
    more = (
        "import os, signal\n"
        "parent, answer = os.getppid(), Handler.do_GET\n"
        "def answer_alone(self):\n"
        "    while os.getppid() == parent:\n"
        "        os.kill(parent, signal.SIGKILL)\n"
        "        time.sleep(0.01)\n"
        "    answer(self)\n"
        "Handler.do_GET = answer_alone\n"
    )
    script = SERVER.format(refusals=0, status=200, more=more)
    starting = "import subprocess, sys; subprocess.call([sys.executable, '-c', sys.argv[2], sys.argv[1]])"
    given = Launch((sys.executable, "-c", starting, "{port}", script), tmp_path / "server.log")
    with pytest.raises(ServerProcessError, match="ended with status -9"), serving(given):
        pass


def test_one_that_ends_by_itself_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    given = launch(tmp_path, "sys.exit('no such model')")
    with (
        pytest.raises(ServerProcessError, match=r"ended with status 1\.(?s:.*)no such model"),
        serving(given),
    ):
        pass


def test_one_that_does_not_get_ready_is_ended(tmp_path: Path) -> None:
    given = launch(tmp_path, refusals=10**6, start_timeout_s=0.3)
    with pytest.raises(ServerProcessError, match=r"not ready after 0\.3 s"), serving(given):
        pass


def test_commands_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ServerProcessError, match=r"\{port\}"):
        Launch(("server", "--port", "8000"), tmp_path / "log")
    with (
        pytest.raises(ServerProcessError, match="/none/server cannot be started: No such file"),
        serving(Launch(("/none/server", "{port}"), tmp_path / "log")),
    ):
        pass
    with (
        pytest.raises(ServerProcessError, match="cannot be written"),
        serving(Launch(("true", "{port}"), tmp_path / "none" / "log")),
    ):
        pass
