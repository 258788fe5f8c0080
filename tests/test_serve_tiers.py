"""A real server with KV tiers, from outside: flags, hits by tier, pressure, a restart, and what it shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.kv_room import kv_mib
from tests.support.server import ADMIN_KEY, Server, running_server

MODEL = ("--device", "cpu", "--max-model-len", "512")
WORDS = "tide gate river harbour signal lantern quiet morning copper window".split()  # noqa: SIM905


def prompt(number: int, num_words: int = 280) -> str:
    """About ``num_words`` tokens that no other number begins with."""
    return f"Tale {number}: " + " ".join(WORDS[(number + i * i) % 10] for i in range(num_words))


def ask(server: Server, text: str, max_tokens: int = 4) -> tuple[str, int]:
    """The greedy answer, and how many tokens of the prompt were cached."""
    body = {"prompt": text, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=100) as response:
        reply = json.load(response)
    return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def metrics(server: Server) -> dict[str, float]:
    lines = re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", server.get("/metrics")[1].decode(), re.MULTILINE)
    return {name.replace('"', ""): float(value) for name, value in lines}


def hits(server: Server, tier: str) -> float:
    return metrics(server)[f"tidegate_kv_hit_tokens_total{{tier={tier}}}"]


def kv(server: Server) -> dict[str, Any]:
    status, body = server.get("/debug/kv", Authorization=f"Bearer {ADMIN_KEY}")
    assert status == 200
    report: dict[str, Any] = json.loads(body)
    return report


@pytest.mark.timeout(300)
def test_a_conversation_comes_back_from_every_tier_and_after_a_restart(tmp_path: Path) -> None:
    tiers = ("--device-kv", kv_mib(20), "--host-kv", kv_mib(32), "--disk-kv", f"{tmp_path}/kv:{kv_mib(256)}")
    with running_server(*MODEL, "--deterministic", "--kv-checksums", *tiers) as server:
        text, cached = ask(server, prompt(0))
        assert cached == 0
        assert ask(server, prompt(0)) == (text, pytest.approx(280, abs=30))
        for number in range(1, 4):
            ask(server, prompt(number))
        again, cached = ask(server, prompt(0))
        assert again == text
        assert cached >= hits(server, "host") > 200
        for number in range(4, 12):
            ask(server, prompt(number))
        before = hits(server, "disk")
        again, cached = ask(server, prompt(0))
        assert again == text
        assert cached >= hits(server, "disk") - before > 200
        assert server.wait_idle()["problems"] == []
        assert server.stop() == 0
    with running_server(*MODEL, "--deterministic", *tiers) as server:
        again, cached = ask(server, prompt(0))
        assert again == text
        assert hits(server, "disk") == cached > 200
        samples = metrics(server)
        assert samples["tidegate_kv_checksum_failures_total"] == 0
        assert samples["tidegate_kv_transfer_bytes_total{kind=promote}"] > 0
        assert samples["tidegate_kv_transfer_seconds_count{kind=swap_in}"] > 0
    # Not deterministic means computed in another way: nothing of it may be used.
    with running_server(*MODEL, *tiers) as server:
        assert ask(server, prompt(0))[1] == 0


@pytest.mark.timeout(300)
def test_under_pressure_sequences_are_swapped_and_nothing_is_lost() -> None:
    small = ("--device-kv", kv_mib(12), "--host-kv", kv_mib(200), "--restore", "swap", "--deterministic")

    def answers(server: Server) -> list[str]:
        with ThreadPoolExecutor(8) as clients:
            return list(clients.map(lambda number: ask(server, prompt(number, 60), 60)[0], range(8)))

    with running_server(*MODEL, "--device-kv", kv_mib(200), "--deterministic") as server:
        expected = answers(server)
    with running_server(*MODEL, *small) as server:
        assert answers(server) == expected
        samples = metrics(server)
        assert samples["tidegate_preemptions_total{cause=pressure,kind=swap}"] > 0
        assert samples["tidegate_preemptions_total{cause=pressure,kind=recompute}"] == 0
        report = server.wait_idle()
        assert report["problems"] == []
        assert report["stats"]["blocks_in_use"] == 0


@pytest.mark.timeout(300)
def test_debug_kv_says_where_the_blocks_of_each_request_are() -> None:
    small = ("--device-kv", kv_mib(12), "--host-kv", kv_mib(64), "--restore", "swap")
    with running_server(*MODEL, *small) as server:
        with ThreadPoolExecutor(6) as clients:
            running = [clients.submit(ask, server, prompt(number, 60), 150) for number in range(6)]
            seen: set[str] = set()
            while not all(future.done() for future in running):
                report = kv(server)
                for sequence in report["sequences"]:
                    seen.add(sequence["status"])
                    held = len(sequence["blocks"]) * 16
                    assert held >= sequence["num_computed_tokens"] or sequence["status"] == "waiting"
                    if sequence["status"] == "swapped":
                        assert set(sequence["blocks"]) == {"H"}
        assert {"running", "swapped"} <= seen
        assert kv(server)["tiers"].keys() == {"device", "host"}
        assert kv(server)["costs"]["block_s"]["swap_out"] > 0


@pytest.mark.timeout(120)
def test_a_store_in_use_is_refused_and_another_model_finds_nothing(tmp_path: Path) -> None:
    tiers = ("--device-kv", kv_mib(20), "--host-kv", kv_mib(32), "--disk-kv", f"{tmp_path}/kv:{kv_mib(64)}")
    with running_server(*MODEL, *tiers):
        command = [sys.executable, "-m", "gateway.cli", "serve", *MODEL, *tiers, "--port", "0"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert second.returncode == 2
    assert "in use by another server" in second.stderr
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--disk-kv", "/tmp/kv:1GiB"), "--host-kv"),
        (("--host-kv", "1GiB", "--disk-kv", "/proc/none:1GiB"), "/proc/none"),
        (("--host-kv", "64MiB", "--disk-kv", "/tmp/kv:lots"), "lots"),
        (("--host-kv", "64MiB", "--disk-kv", "/tmp/kv:100EiB"), "EiB"),
        (("--host-kv", "64MiB", "--disk-kv", "/tmp/kv:900TiB"), "free"),
        (("--host-kv", "900GiB"), "--host-kv"),
        (("--host-kv", "1KiB"), "--host-kv is too small"),
        (("--eviction", "clairvoyant"), "lru, fifo, lfu"),
        (("--write-policy", "json:loads"), "write policy"),
        (("--restore", "no.such.module:Class"), "no.such.module"),
        (
            ("--host-kv", "64MiB", "--disk-kv", "/tmp/kv:64MiB", "--no-enable-prefix-caching"),
            "prefix caching",
        ),
    ],
)
def test_wrong_tier_settings_end_with_one_sentence(arguments: tuple[str, ...], part: str) -> None:
    command = [sys.executable, "-m", "gateway.cli", "serve", *MODEL, "--device-kv", "64MiB", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 2, result.stderr
    assert part in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.timeout(120)
def test_doctor_looks_at_a_store_and_leaves_it_alone(tmp_path: Path) -> None:
    tiers = ("--device-kv", kv_mib(20), "--host-kv", kv_mib(32), "--disk-kv", f"{tmp_path}/kv:{kv_mib(64)}")

    def doctor(*more: str) -> str:
        command = [sys.executable, "-m", "gateway.cli", "doctor", *MODEL, *tiers, *more]
        result = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert result.returncode == 0, result.stderr
        return " ".join(result.stdout.split())

    assert "0 found there" in doctor()
    assert not (tmp_path / "kv").exists()
    with running_server(*MODEL, *tiers) as server:
        ask(server, prompt(0))
        assert "found there" in doctor(), "while a server uses it"
        assert server.stop() == 0
    before = {file.name: file.read_bytes() for file in (tmp_path / "kv").iterdir()}
    assert "would drop them" in doctor("--block-size", "32")
    found = re.search(r"(\d+) found there", doctor())
    assert found is not None and int(found[1]) > 10
    assert {file.name: file.read_bytes() for file in (tmp_path / "kv").iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--restore", "overlap"), "--restore overlap has no effect without --host-kv"),
        (("--host-kv", "4MiB"), "less than one full window"),
        (("--host-kv", "64MiB"), "as part of --device-kv"),
    ],
)
def test_doctor_warns_about_useless_settings(arguments: tuple[str, ...], part: str) -> None:
    command = [sys.executable, "-m", "gateway.cli", "doctor", *MODEL, "--device-kv", "64MiB", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert part in " ".join(result.stdout.split())
