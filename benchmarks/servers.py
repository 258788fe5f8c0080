"""A real ``tidegate serve`` under measurement, and a client that times the first token.

Blocking and single-threaded on purpose: what is timed is the server, and nothing runs beside the client.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_START_TIMEOUT_S = 120
_ADMIN_KEY = "benchmark"
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$")


@dataclass(frozen=True, slots=True)
class Answer:
    """``ttft_s`` and ``total_s`` count from the moment before the request is sent."""

    ttft_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    text: str


class Server:
    """A running server on a port of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self._log = log

    def complete(self, prompt: str, max_tokens: int = 4, key: str = "none") -> Answer:
        """Stream a greedy completion, with an API key."""
        body = {
            "model": "served", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "ignore_eos": True,
        }  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        started = time.perf_counter()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {response.read()[:500]!r}")
        ttft_s, text = 0.0, ""
        usage: dict[str, Any] = {}
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("choices"):
                ttft_s = ttft_s or time.perf_counter() - started
                text += event["choices"][0]["text"]
            usage = event.get("usage") or usage
        total_s = time.perf_counter() - started
        connection.close()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Answer(ttft_s, total_s, usage["prompt_tokens"], cached, usage["completion_tokens"], text)

    def metrics(self) -> dict[str, float]:
        """All samples by name and labels, as ``name{a=b}``."""
        return parse_samples(self.get("/metrics").decode())

    def kv(self) -> dict[str, Any]:
        """What ``/debug/kv`` says."""
        report: dict[str, Any] = json.loads(self.get("/debug/kv"))
        return report

    def wait_quiet(self, timeout_s: float = 60) -> None:
        """Wait until no copy is under way."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            tiers = self.kv()["tiers"].values()
            if not any(tier["blocks_copying"] or tier["blocks_in_use"] for tier in tiers):
                return
            time.sleep(0.02)
        raise RuntimeError("copies do not end")

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path, headers={"Authorization": f"Bearer {_ADMIN_KEY}"})
        body = connection.getresponse().read()
        connection.close()
        return body

    def _is_up(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"the server did not start:\n{self._log.read_text()[-2000:]}")
        try:
            return bool(json.loads(self.get("/health"))["status"] == "ok")
        except (OSError, ValueError, http.client.HTTPException):
            return False


def parse_samples(text: str) -> dict[str, float]:
    """What ``/metrics`` answers, by name and labels."""
    samples = {}
    for line in text.splitlines():
        if found := _SAMPLE.match(line):
            labels = (found.group(2) or "").replace('"', "")
            samples[f"{found.group(1)}{{{labels}}}"] = float(found.group(3))
    return samples


@contextlib.contextmanager
def serving(arguments: Sequence[str]) -> Iterator[Server]:
    """Start ``tidegate serve`` with these arguments, wait until it is up, and end it by SIGTERM."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        command = [
            sys.executable, "-m", "gateway.cli", "serve", *arguments, "--port", str(port),
            "--admin-key", _ADMIN_KEY, "--served-model-name", "served",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=log, stderr=log)
        server = Server(process, port, Path(log.name))
        try:
            deadline = time.monotonic() + _START_TIMEOUT_S
            while not server._is_up():
                if time.monotonic() > deadline:
                    raise RuntimeError("the server does not get ready")
                time.sleep(0.1)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
