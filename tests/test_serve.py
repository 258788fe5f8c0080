"""The ``tidegate`` command as a process: start, bad settings, drain, engine death, soak."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.server import Server, running_server

pytestmark = pytest.mark.timeout(300)
SMALL = ("--device-kv", "128MiB", "--max-model-len", "1024")


def tidegate(*arguments: str, stdin: str = "", timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "gateway.cli", *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def stream_body(**fields: object) -> dict[str, object]:
    body = {"prompt": "Once upon a time", "stream": True, "ignore_eos": True, "max_tokens": 900}
    return {**body, **fields}


def read_stream(server: Server, body: dict[str, object], on_first: threading.Event) -> list[str]:
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    lines = []
    with urllib.request.urlopen(request, timeout=120) as response:
        for raw in response:
            line = raw.decode().strip()
            if line.startswith("data:"):
                lines.append(line)
                on_first.set()
    return lines


class Background:
    """A stream read in a thread; ``lines`` once it has ended."""

    def __init__(self, server: Server, body: dict[str, object]) -> None:
        self.first = threading.Event()
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._run, args=(server, body))
        self._thread.start()

    def _run(self, server: Server, body: dict[str, object]) -> None:
        self.lines = read_stream(server, body, self.first)

    def join(self) -> list[str]:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.lines


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("serve", "/no/such/model"), "/no/such/model"),
        (("serve", "--device-kv", "5 parsecs"), "parsecs"),
        (("serve", "--device-kv", "1MiB"), "too few for one sequence"),
        (("serve", "--device-kv", "64MiB", "--max-model-len", "8192"), "8192"),
        (("serve", "--max-model-len", "100000"), "100000"),
        (("serve", "--max-num-seqs", "64", "--max-num-batched-tokens", "32"), "--max-num-batched-tokens"),
        (("serve", "--port", "99999"), "--port"),
        (("serve", "--threads", "100000"), "--threads"),
        (("serve", "--seed", "99999999999999999999999"), "--seed"),
        (("serve", "--stall-timeout", "nan"), "--stall-timeout"),
        (("serve", "--drain-timeout", "inf"), "--drain-timeout"),
        (("serve", "--device-kv", "9" * 400), "--device-kv"),
        (("serve", "--kv-quota", "101%"), "--kv-quota"),
        (("serve", "--api-key", ""), "--api-key"),
        (("serve", "--tool-call-parser", "nobody"), "nobody"),
        (("serve", "--reasoning-parser", "nobody"), "nobody"),
        (("serve", "--admin-key", ""), "--admin-key"),
        (("serve", "--api-key", "one", "--admin-key", "one"), "--admin-key"),
        (("serve", "/tmp/\udcff"), "UTF-8"),
        (("chat", "--url", "localhost:8000"), "http://"),
        (("chat", "--url", "http://127.0.0.1:1"), "127.0.0.1:1"),
        (("chat", "/no/such/model"), "/no/such/model"),
        (("doctor", "--json", "/no/dir/x.json"), "/no/dir"),
        (("doctor", "/no/such/[model]"), "/no/such/[model]"),
        (("serve", "--no-such-flag"), "--no-such-flag"),
        (("doctor", "/no/such/model"), "/no/such/model"),
    ],
)
def test_a_wrong_setting_ends_at_once_with_one_sentence(arguments: tuple[str, ...], part: str) -> None:
    result = tidegate(*arguments)
    assert result.returncode == 2, result.stderr
    assert part in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_an_unsupported_architecture_is_named(tmp_path: Path) -> None:
    config = {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = tidegate("serve", str(tmp_path))
    assert result.returncode == 2
    assert "Mamba2ForCausalLM" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_in_use_is_said_plainly() -> None:
    with running_server(*SMALL) as server:
        result = tidegate("serve", *SMALL, "--port", str(server.port))
    assert result.returncode == 2
    assert str(server.port) in result.stderr
    assert "Traceback" not in result.stderr


def test_doctor_reports_for_people_and_for_programs(tmp_path: Path) -> None:
    report = tmp_path / "doctor.json"
    result = tidegate("doctor", *SMALL, "--json", str(report))
    assert result.returncode == 0, result.stderr
    found = json.loads(report.read_text())
    assert found["engine"]["window"] == 1024
    assert found["engine"]["device KV"] == pytest.approx(128 * 2**20, rel=0.02)
    assert found["failure"] is None
    for word in ("model", "dtype", "device KV", "memory", "processor"):
        assert word in result.stdout


def test_help_names_every_command_and_flag() -> None:
    top = tidegate("--help").stdout
    assert all(command in top for command in ("serve", "chat", "doctor", "keys"))
    flags = tidegate("serve", "--help").stdout
    for flag in (
        "--tool-call-parser", "--reasoning-parser",
        "--host", "--port", "--dtype", "--max-model-len", "--block-size", "--max-num-seqs", "--seed",
        "--max-num-batched-tokens", "--api-key", "--served-model-name", "--load-format", "--device-kv",
        "--keys-file", "--max-waiting", "--max-waiting-tokens", "--kv-quota", "--engine-restarts",
    ):  # fmt: skip
        assert flag in flags


def test_terminal_chat_starts_its_own_server_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_API_KEY", "of-another-server")
    result = tidegate(
        "chat", *SMALL, "--temperature", "0", stdin="Name three primary colors.\n/reset\n/quit\n"
    )
    assert result.returncode == 0, result.stderr
    assert "red" in result.stdout.lower()


# ---- ends ----------------------------------------------------------------------------------------


@pytest.mark.case("E13")
def test_sigterm_lets_streams_finish_and_refuses_new_requests() -> None:
    with running_server(*SMALL, "--drain-timeout", "150") as server:
        stream = Background(server, stream_body(max_tokens=300))
        assert stream.first.wait(60)
        server.process.send_signal(signal.SIGTERM)
        while (status := server.get("/health")[0]) == 200:
            threading.Event().wait(0.01)
        assert status == 503
        assert server.post("/v1/completions", {"prompt": "too late"})[0] == 503
        lines = stream.join()
        assert server.process.wait(60) == 0
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2][6:])["choices"][0]["finish_reason"] == "length"


def test_a_second_signal_ends_the_drain_at_once() -> None:
    with running_server(*SMALL) as server:
        stream = Background(server, stream_body())
        assert stream.first.wait(60)
        server.process.send_signal(signal.SIGTERM)
        while server.get("/health")[0] == 200:
            threading.Event().wait(0.01)
        server.process.send_signal(signal.SIGTERM)  # so soon after the first it is the same one
        threading.Event().wait(1.5)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(15) == 128 + signal.SIGTERM
        lines = stream.join()
    assert lines[-1] == "data: [DONE]"
    assert "error" in json.loads(lines[-2][6:])


def test_a_signal_while_loading_ends_at_once() -> None:
    command = [sys.executable, "-P", "-m", "gateway.cli", "serve", *SMALL, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text():
        threading.Event().wait(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=15)
    assert process.returncode == 128 + signal.SIGTERM
    assert b"Traceback" not in errors


@pytest.mark.case("E13")
def test_a_drain_has_a_limit_and_ends_what_is_left_in_band() -> None:
    with running_server(*SMALL, "--drain-timeout", "0.5") as server:
        stream = Background(server, stream_body())
        assert stream.first.wait(60)
        assert server.stop() == 0
        lines = stream.join()
    assert lines[-1] == "data: [DONE]"
    assert "error" in json.loads(lines[-2][6:])


@pytest.mark.case("A12")
def test_engine_death_ends_every_stream_in_band_and_is_logged() -> None:
    """Without restarts; tests/test_engine_restart.py has them."""
    with running_server(*SMALL, "--engine-restarts", "0") as server:
        streams = [Background(server, stream_body()) for _ in range(3)]
        assert all(stream.first.wait(60) for stream in streams)
        os.kill(server.engine_pid, signal.SIGKILL)
        for stream in streams:
            lines = stream.join()
            assert lines[-1] == "data: [DONE]"
            assert "error" in json.loads(lines[-2][6:])
        assert server.process.wait(30) == 1
        assert "requests lost" in server.log
        assert server.log.count("The engine died: its process was killed by SIGKILL.") == 1


def test_the_engine_leaves_with_its_server() -> None:
    with running_server(*SMALL) as server:
        engine_pid = server.engine_pid
        server.process.kill()
        server.process.wait()
        for _ in range(200):
            if not Path(f"/proc/{engine_pid}").exists():
                return
            threading.Event().wait(0.05)
    raise AssertionError("the engine outlived its server")


@pytest.mark.case("E14")
def test_a_frozen_engine_shows_in_health_and_recovers() -> None:
    with running_server(*SMALL, "--stall-timeout", "1") as server:
        stream = Background(server, stream_body(max_tokens=300))
        assert stream.first.wait(60)
        os.kill(server.engine_pid, signal.SIGSTOP)
        try:
            statuses = [server.get("/health")[0]]
            while statuses[-1] == 200:
                threading.Event().wait(0.1)
                statuses.append(server.get("/health")[0])
                assert len(statuses) < 300
        finally:
            os.kill(server.engine_pid, signal.SIGCONT)
        assert statuses[-1] == 503
        assert stream.join()[-1] == "data: [DONE]"
        assert server.get("/health")[0] == 200


# ---- soak ----------------------------------------------------------------------------------------


async def _one(session: aiohttp.ClientSession, server: Server, index: int, rng: random.Random) -> str:
    drops = index % 3 == 0
    body: dict[str, Any] = {
        "prompt": f"Request {index}: {'word ' * rng.randrange(20)}",
        "max_tokens": rng.randrange(1, 12) if not drops else 64,
        "stream": bool(index % 2) or drops,
        "ignore_eos": True,
    }
    async with session.post(f"{server.url}/v1/completions", json=body) as response:
        assert response.status == 200
        if not drops:
            text = await response.text()
            return "whole" if "[DONE]" in text or '"finish_reason":"length"' in text else text
        await response.content.readline()
        response.close()
        return "dropped"


@pytest.mark.case("E4")
@pytest.mark.case("E9")
async def test_a_thousand_short_requests_a_third_dropped_leave_nothing_behind() -> None:
    with running_server(*SMALL, "--max-num-seqs", "32", "--max-waiting", "200") as server:
        before = server.integrity()["stats"]
        rng, gate = random.Random(5), asyncio.Semaphore(48)
        timeout = aiohttp.ClientTimeout(total=250)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

            async def limited(index: int) -> str:
                async with gate:
                    return await _one(session, server, index, rng)

            outcomes = await asyncio.gather(*(limited(i) for i in range(1000)))
        assert outcomes.count("dropped") == 334
        assert outcomes.count("whole") == 666
        report = server.wait_idle()
        assert report["problems"] == []
        assert report["stats"]["blocks_in_use"] == before["blocks_in_use"] == 0
        assert report["stats"]["num_paused"] == 0
        assert server.get("/health")[0] == 200
        assert server.stop() == 0
