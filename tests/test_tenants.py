"""Tenants of a real server with the real model: caches apart, keys rotated, SIGHUP."""

from __future__ import annotations

import json
import signal
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.tenants import hash_key
from tests.support.server import Server, running_server
from tests.test_serve import tidegate

pytestmark = pytest.mark.timeout(300)
SMALL = ("--device-kv", "128MiB", "--max-model-len", "1024")
PROMPT = "The sea was calm that day, and the old lighthouse keeper wrote in his book. " * 6


def table(name: str, key: str, fields: str = "") -> str:
    return f'[tenants.{name}]\nkeys = ["{hash_key(key)}"]\n{fields}\n'


FILE = (
    table("a", "a-key")
    + table("b", "b-key")
    + "".join(table(name, f"{name}-key", 'cache_group = "friends"') for name in ("c", "d"))
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.touch(0o600)
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Server]:
    with running_server(*SMALL, "--keys-file", str(path), "--api-key", "single-key") as server:
        yield server


def cached_tokens(server: Server, key: str, prompt: str) -> int:
    """Of one answer: how many of the prompt's tokens were found."""
    body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{server.url}/v1/completions", body, headers)
    ) as reply:
        return int(json.load(reply)["usage"]["prompt_tokens_details"]["cached_tokens"])


def hit_tokens(server: Server) -> float:
    """What the engine itself has counted."""
    for line in server.get("/metrics")[1].decode().splitlines():
        if line.startswith('tidegate_kv_hit_tokens_total{tier="device"}'):
            return float(line.split()[-1])
    raise AssertionError("the counter is not there")


def reload(server: Server) -> None:
    """SIGHUP, and the one line that it is answered with."""
    before = server.log.count("reloaded")
    server.process.send_signal(signal.SIGHUP)
    while server.log.count("reloaded") == before:
        assert server.process.poll() is None
        threading.Event().wait(0.01)


def test_two_tenants_never_find_each_others_blocks(server: Server) -> None:
    start = hit_tokens(server)
    for key in ("a-key", "b-key", "c-key", "single-key"):
        assert cached_tokens(server, key, PROMPT) == 0
    assert hit_tokens(server) == start
    for key in ("a-key", "b-key", "c-key", "single-key"):
        own = cached_tokens(server, key, PROMPT)
        assert own >= 64
    assert hit_tokens(server) == start + 4 * own


def test_tenants_of_one_group_find_each_others_blocks(server: Server) -> None:
    prompt = "Friends share what they read. " + PROMPT
    assert cached_tokens(server, "c-key", prompt) == 0
    assert cached_tokens(server, "d-key", prompt) >= 64
    assert cached_tokens(server, "a-key", prompt) == 0


def test_a_reload_takes_a_new_key_and_keeps_the_cache(server: Server, path: Path) -> None:
    prompt = "Keys come and go. " + PROMPT
    assert cached_tokens(server, "a-key", prompt) == 0
    path.write_text(FILE + "[tenants.e]\nkeys = 3\n")
    reload(server)
    assert "was not reloaded" in server.log and "tenant 'e'" in server.log
    assert cached_tokens(server, "a-key", prompt) >= 64
    path.write_text(FILE.replace(hash_key("a-key"), hash_key("next-key")))
    reload(server)
    assert server.get("/v1/models", Authorization="Bearer a-key")[0] == 401
    assert cached_tokens(server, "next-key", prompt) >= 64
    assert server.process.poll() is None
    assert not any(key in server.log for key in ("a-key", "next-key", "single-key"))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[tenants.a]\nkeys = ['x']", "key 1"),
        ("", "tenants"),
        (table("a", "double"), "same key"),
        (None, "No such"),
    ],
)
def test_a_file_that_cannot_be_used_ends_at_once(tmp_path: Path, text: str | None, part: str) -> None:
    path = tmp_path / "keys.toml"
    if text is not None:
        path.write_text(text)
    result = tidegate("serve", *SMALL, "--port", "0", "--keys-file", str(path), "--api-key", "double")
    assert result.returncode == 2
    assert part in result.stderr and "Traceback" not in result.stderr
    assert "double" not in result.stderr
