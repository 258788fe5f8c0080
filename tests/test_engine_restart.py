"""A real server whose engine is killed under load: it ends the streams, and goes on with another."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server, running_server
from tests.test_kill9 import metric

pytestmark = [pytest.mark.alone, pytest.mark.timeout(240)]
NUM_STREAMS = 24
MODEL = ("--device", "cpu", "--deterministic", "--device-kv", "128MiB", "--max-model-len", "1024")
TIERS = ("--host-kv", "64MiB", "--write-policy", "through", "--restore", "swap")
STORY = "The keeper of the gate writes down each tide, its hour and its height. " * 14
CHAT = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 16, "temperature": 0}


def open_request(server: Server, path: str, body: dict[str, object]) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=120)


class Stream:
    """One stream without end, read in a thread. ``last`` is its last event, at ``ended_at``."""

    def __init__(self, server: Server, number: int) -> None:
        self.began = threading.Event()
        self.last: dict[str, Any] = {}
        self.ended_at = 0.0
        self.is_marked = False
        body = {"prompt": f"Tale {number}:", "stream": True, "ignore_eos": True, "max_tokens": 900}
        self._thread = threading.Thread(target=self._read, args=(server, body))
        self._thread.start()

    def _read(self, server: Server, body: dict[str, object]) -> None:
        with open_request(server, "/v1/completions", body) as response:
            for raw in response:
                line = raw.decode().strip()
                if line == "data: [DONE]":
                    self.is_marked = True
                elif line.startswith("data:"):
                    self.last = json.loads(line[5:])
                    self.ended_at = time.monotonic()
                    self.began.set()

    def join(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive()


def chat(server: Server) -> dict[str, Any]:
    with open_request(server, "/v1/chat/completions", CHAT) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def condition(server: Server) -> str:
    status, body = server.get("/health")
    word = str(json.loads(body)["status"])
    assert (status == 200) == (word == "ok")
    return word


def wait_for(server: Server, word: str) -> None:
    deadline = time.monotonic() + 60
    while (now := condition(server)) != word:
        assert time.monotonic() < deadline, now
        time.sleep(0.01)


@pytest.mark.case("A12")
def test_a_killed_engine_is_replaced_and_finds_what_was_on_disk(tmp_path: Path) -> None:
    disk = ("--disk-kv", f"{tmp_path / 'kv'}:128MiB", "--max-num-seqs", str(NUM_STREAMS))
    with running_server(*MODEL, *TIERS, *disk) as server:
        first = chat(server)
        num_full_blocks = first["usage"]["prompt_tokens"] // 16
        while metric(server, 'tidegate_kv_blocks{state="cached",tier="disk"}') < num_full_blocks:
            time.sleep(0.05)
        streams = [Stream(server, number) for number in range(NUM_STREAMS)]
        assert all(stream.began.wait(60) for stream in streams)
        killed, killed_at = server.engine_pid, time.monotonic()
        os.kill(killed, signal.SIGKILL)
        for stream in streams:
            stream.join()
            assert stream.last["error"]["code"] == "engine_dead" and stream.is_marked
            assert stream.ended_at - killed_at < 2  # what was promised
        assert condition(server) == "restarting"
        with pytest.raises(urllib.error.HTTPError) as refused:
            chat(server)
        with refused.value as answer:
            assert (answer.code, int(answer.headers["Retry-After"]) > 0) == (503, True)
        assert server.get("/debug/kv", Authorization="Bearer test-admin-key")[0] == 503
        wait_for(server, "ok")

        assert server.engine_pid != killed
        again = chat(server)
        assert again["choices"] == first["choices"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16 * (num_full_blocks - 1)
        assert metric(server, 'tidegate_kv_hit_tokens_total{tier="disk"}') > 0
        assert metric(server, "tidegate_engine_restarts_total") == 1
        assert server.wait_idle()["problems"] == []
        assert "Traceback" not in server.log

        os.kill(server.engine_pid, signal.SIGKILL)
        wait_for(server, "restarting")
        assert server.stop() == 0
