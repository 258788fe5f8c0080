"""A real server with a disk tier, killed with SIGKILL while it writes there, and started again.

Whatever was lost: every start serves, says the same words, and takes the same room.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import random
import re
import signal
import struct
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.server import Server, running_server

ROUNDS = 50 if os.environ.get("TIDEGATE_SLOW") == "1" else 2
DISK_BYTES = 48 * 2**20  # so little that the rounds overwrite what earlier ones have written
TABLE_HEADER = struct.Struct("<8sI4x16sQQQ8x")
ENTRY_BYTES = 32
PATIENCE_S = 60
VICTIMS = (("engine", "gateway"), ("engine",), ("gateway",), ("gateway", "engine"))
FIXED_PROMPT = "The tide comes in twice a day, and twice a day the gate is shut against it. " * 9

MODEL = ("--device", "cpu", "--deterministic", "--max-model-len", "1024")
TIERS = ("--host-kv", "32MiB", "--write-policy", "through", "--restore", "swap", "--kv-checksums")

pytestmark = pytest.mark.timeout(180 + 60 * ROUNDS)


def serve(*arguments: str, scratch: Path) -> contextlib.AbstractContextManager[Server]:
    arguments = ("--device-kv", "64MiB", "--engine-restarts", "0", *arguments)
    return running_server(*MODEL, *arguments, env={"TMPDIR": str(scratch)})


def ask(server: Server, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        text: str = json.load(response)["choices"][0]["text"]
        return text


def metric(server: Server, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", server.get("/metrics")[1].decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


class Writers:
    """Ask new prompts in each thread until the server is gone. ``answers`` is what came, None: nothing."""

    def __init__(self, server: Server, round_: int, num_threads: int = 3) -> None:
        self.answers: dict[str, str | None] = {}
        self._server = server
        self._threads = [
            threading.Thread(target=self._run, args=(f"Round {round_}, clerk {i},",))
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, name: str) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            for number in range(1000):
                prompt = f"{name} case {number}: " + f"it is noted under {number} that the sea is calm. " * 12
                self.answers[prompt] = None
                self.answers[prompt] = ask(self._server, prompt)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)
            assert not thread.is_alive()


def await_writes(table: Path, count: int) -> None:
    """Return just after the table was written to for the ``count``-th time from now."""
    deadline = time.monotonic() + PATIENCE_S
    for _ in range(count):
        before = table.stat().st_mtime_ns
        while table.stat().st_mtime_ns == before:
            assert time.monotonic() < deadline, "nothing is written to disk"


def await_unlocked(path: Path) -> None:
    """Wait until nobody holds the store; a killed process does until all its threads are gone."""
    deadline = time.monotonic() + PATIENCE_S
    with path.open("rb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                assert time.monotonic() < deadline, "the lock outlived its owner"
                time.sleep(0.01)


def check_directory(directory: Path) -> None:
    assert {path.name for path in directory.iterdir()} == {"lock", "secret", "table.kv", "blocks.kv"}
    *_, block_bytes, record_bytes, num_slots = TABLE_HEADER.unpack_from((directory / "table.kv").read_bytes())
    assert record_bytes == 4096 + -(-block_bytes // 4096) * 4096
    table, blocks = (directory / "table.kv").stat(), (directory / "blocks.kv").stat()
    assert table.st_size == TABLE_HEADER.size + num_slots * ENTRY_BYTES
    assert blocks.st_size == num_slots * record_bytes
    assert DISK_BYTES - record_bytes - ENTRY_BYTES < table.st_size + blocks.st_size <= DISK_BYTES


def ask_again(server: Server, answers: dict[str, str | None]) -> dict[str, str]:
    """All the answers there are now; those that there were before must not have changed."""
    again = {prompt: ask(server, prompt) for prompt in answers}
    before = {prompt: text for prompt, text in answers.items() if text is not None}
    assert {prompt: again[prompt] for prompt in before} == before
    assert server.wait_idle()["problems"] == []
    assert "Traceback" not in server.log
    return again


def test_a_server_killed_while_it_writes_to_disk_always_comes_back(tmp_path: Path) -> None:
    directory, scratch = tmp_path / "kv", tmp_path / "scratch"
    scratch.mkdir()
    rng = random.Random(9)
    answers: dict[str, str | None] = {FIXED_PROMPT: None}  # of the last round, and the fixed one
    all_answers: dict[str, str] = {}
    hit_tokens = num_corrupt = 0.0
    secret = b""
    for round_ in range(ROUNDS + 1):
        with serve(*TIERS, "--disk-kv", f"{directory}:{DISK_BYTES}", scratch=scratch) as server:
            all_answers |= ask_again(server, answers)
            hit_tokens += metric(server, 'tidegate_kv_hit_tokens_total{tier="disk"}')
            num_corrupt += metric(server, "tidegate_kv_checksum_failures_total")
            if round_ == ROUNDS:
                assert server.stop() == 0
                break
            victims = VICTIMS[round_] if round_ < len(VICTIMS) else rng.choice(VICTIMS)
            pids = {"engine": server.engine_pid, "gateway": server.process.pid}
            writers = Writers(server, round_)
            await_writes(directory / "table.kv", rng.randint(1, 25))
            time.sleep(rng.random() * 0.005)
            for victim in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[victim], signal.SIGKILL)
            status = server.process.wait(PATIENCE_S)
            assert status == (-signal.SIGKILL if "gateway" in victims else 1)
            writers.join()
        check_directory(directory)
        if "engine" in victims:  # else it may still be saving, and the next server has to wait for it
            await_unlocked(directory / "lock")
        secret = secret or (directory / "secret").read_bytes()
        assert (directory / "secret").read_bytes() == secret
        answers = {FIXED_PROMPT: all_answers[FIXED_PROMPT], **writers.answers}
    await_unlocked(directory / "lock")
    check_directory(directory)
    assert hit_tokens >= 16 * ROUNDS
    with serve(scratch=scratch) as server:  # without tiers, and from cold
        assert ask_again(server, dict(all_answers)) == all_answers
    assert list(scratch.iterdir()) == []
    print(
        f"{ROUNDS} kills: {hit_tokens:.0f} tokens from disk, {num_corrupt:.0f} blocks not what they should be"
    )
