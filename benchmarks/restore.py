"""How fast a conversation comes back from each tier: ``python -m benchmarks.restore``.

In every round one new conversation of about 1,500 tokens is computed, then comes back with a few new
words from the device, from host (after others pushed it off the device), from disk (after more pushed it
off host; the store bypasses the page cache), and from disk after the server was restarted. Bandwidths are
measured beside it, by copying and reading blocks as the server does. A returning turn should start within
1.25 x (its start on a device hit + bytes / bandwidth of its tier).
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.report import print_table, write_json
from benchmarks.servers import Answer, Server, serving

BLOCK_SIZE = 16
TIERS = ("device", "host", "disk", "restart")
_UP_TO = {"device": ("device",), "host": ("device", "host")}
_PAGE = 4096
_WORDS = ["river", "stone", "cloud", "paper", "window", "garden", "engine", "table", "music", "winter"]


def conversation(number: int, num_words: int) -> str:
    """Text that no other number shares a block with."""
    return f"Story number {number}. " + " ".join(
        _WORDS[(number * 7 + i * i) % len(_WORDS)] for i in range(num_words)
    )


def num_blocks(server: Server, tier: str) -> int:
    """Of a tier, in whatever state."""
    stats = server.kv()["tiers"][tier]
    return sum(value for name, value in stats.items() if name.startswith("blocks_"))


class Rounds:
    """Runs the rounds on one store and keeps what was measured, in seconds."""

    def __init__(self, num_words: int, directory: Path, block_bytes: int) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        self.bandwidth: dict[str, list[float]] = defaultdict(list)
        self.predicted: dict[str, list[float]] = defaultdict(list)
        self.measured: dict[str, list[float]] = defaultdict(list)
        self.paired: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.num_tokens = 0
        self._num_words = num_words
        self._directory = directory
        self._block_bytes = block_bytes
        self._number = 0

    def run(self, arguments: list[str], count: int) -> None:
        """``count`` rounds; each ends on a successor of the server on which it began."""
        kept: str | None = None
        for index in range(count + 1):
            with serving(arguments) as server:
                server.complete(self._next(), max_tokens=2)  # warm
                if kept is not None:
                    self._pair(server, kept, "restart", "disk")
                if index < count:
                    kept = self._one(server)
                self._probe_disk()

    def _one(self, server: Server) -> str:
        prompt = self._next()
        cold = server.complete(prompt)
        self.num_tokens = cold.prompt_tokens
        self.times["recompute"].append(cold.ttft_s)
        self._predict_recompute(server, cold)
        self._probe_memory()
        for tier, below in (("device", "host"), ("host", "disk")):
            self._push_off(server, tier)
            self._pair(server, prompt, below, below)
        return prompt

    def _pair(self, server: Server, prompt: str, row: str, tier: str) -> None:
        """The same conversation from below, and then from the device.

        The machine's speed changes from minute to minute, so only these two are compared.
        """
        from_below = self._returns(server, prompt, row, tier)
        from_device = self._returns(server, prompt, "device", "device")
        if from_below and from_device:
            self.paired[row].append((from_below, from_device))

    def _returns(self, server: Server, prompt: str, row: str, tier: str) -> float | None:
        server.wait_quiet()
        before = server.metrics()
        answer = server.complete(f"{prompt} And then number {len(self.times[row])}")
        after = server.metrics()
        name = f"tidegate_kv_hit_tokens_total{{tier={tier}}}"
        found = after[name] - before.get(name, 0)
        if found < 0.9 * answer.prompt_tokens:
            print(
                f"  ({row}: only {found:.0f} of {answer.prompt_tokens} tokens came from {tier}; not counted)"
            )
            return None
        self.times[row].append(answer.ttft_s)
        if tier != "device":
            took, predicted = (
                after[f"tidegate_restore{part}_seconds_total{{}}"]
                - before[f"tidegate_restore{part}_seconds_total{{}}"]
                for part in ("", "_predicted")
            )
            if predicted:
                self.predicted[row].append(predicted)
                self.measured[row].append(took)
        return answer.ttft_s

    def _push_off(self, server: Server, tier: str) -> None:
        """Compute other conversations until this tier, and those above it, hold nothing older."""
        capacity = sum(num_blocks(server, above) for above in _UP_TO[tier]) * BLOCK_SIZE
        done = 0.0
        while done < capacity * 1.05:
            done += server.complete(self._next(), max_tokens=1).prompt_tokens
        server.wait_quiet()

    def _predict_recompute(self, server: Server, cold: Answer) -> None:
        costs, tokens = server.kv()["costs"], cold.prompt_tokens
        steps, pairs = -(-tokens // 512), tokens * (tokens + 1) / 2
        predicted = steps * costs["step_s"] + tokens * costs["token_s"] + pairs * costs["pair_s"]
        self.predicted["recompute"].append(predicted)
        self.measured["recompute"].append(cold.ttft_s)

    def _probe_memory(self) -> None:
        """Copy as many blocks as a conversation has between two cold regions."""
        count = self.num_tokens // BLOCK_SIZE
        source = np.ones((4 * count, self._block_bytes), dtype=np.uint8)
        target = np.ones((4 * count, self._block_bytes), dtype=np.uint8)
        order = np.random.default_rng(0).permutation(4 * count)[:count]
        started = time.perf_counter()
        for index in order:
            np.copyto(target[index], source[index])
        self.bandwidth["host"].append(count * self._block_bytes / (time.perf_counter() - started))

    def _probe_disk(self) -> None:
        """Read as many records of the store as a conversation has, on four threads, past the page cache."""
        count = max(1, self.num_tokens // BLOCK_SIZE)
        record = _PAGE + -(-self._block_bytes // _PAGE) * _PAGE
        path = self._directory / "blocks.kv"
        order = np.random.default_rng(len(self.bandwidth["disk"])).permutation(path.stat().st_size // record)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)

        def read(slots: np.ndarray) -> None:
            with mmap.mmap(-1, record) as buffer:
                for slot in slots:
                    os.preadv(descriptor, [buffer], int(slot) * record)

        threads = [threading.Thread(target=read, args=(order[i:count:4],)) for i in range(4)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.bandwidth["disk"].append(count * self._block_bytes / (time.perf_counter() - started))
        os.close(descriptor)

    def _next(self) -> str:
        self._number += 1
        return conversation(self._number, self._num_words)


def report(rounds: Rounds, block_bytes: int) -> dict[str, object]:
    """Print the table; returns it for JSON."""
    median = {row: statistics.median(values) for row, values in rounds.times.items()}
    num_bytes = rounds.num_tokens // BLOCK_SIZE * block_bytes
    bandwidth = {tier: statistics.median(values) for tier, values in rounds.bandwidth.items()}
    bandwidth["restart"] = bandwidth["disk"]
    rows, results = [], {}
    for row in ("recompute", *TIERS):
        over_bound = [
            below / (device + num_bytes / bandwidth[row]) for below, device in rounds.paired.get(row, ())
        ]
        results[row] = {
            "ttft_ms": [round(value * 1e3, 2) for value in rounds.times[row]],
            "median_ms": median[row] * 1e3,
            "device_ms": [round(device * 1e3, 2) for _, device in rounds.paired.get(row, ())],
            "over_bound": [round(ratio, 3) for ratio in over_bound],
            "median_over_bound": statistics.median(over_bound) if over_bound else None,
            "recompute_over_this": median["recompute"] / median[row],
            "predicted_ms": [round(value * 1e3, 2) for value in rounds.predicted[row]],
            "measured_ms": [round(value * 1e3, 2) for value in rounds.measured[row]],
        }
        rows.append(
            (
                row,
                f"{len(rounds.times[row])}",
                f"{median[row] * 1e3:.1f}",
                "" if row not in bandwidth else f"{bandwidth[row] / 1e9:.2f}",
                "" if row not in bandwidth else f"{num_bytes / bandwidth[row] * 1e3:.1f}",
                "" if not over_bound else f"{statistics.median(over_bound):.2f}",
                f"{median['recompute'] / median[row]:.1f}",
                *_prediction(rounds, row),
            )
        )
    columns = (
        "from", "rounds", "TTFT ms", "GB/s", "copy ms", "TTFT / bound", "recompute / TTFT",
        "predicted ms", "measured ms", "error",
    )  # fmt: skip
    print_table(
        f"A conversation of {rounds.num_tokens} tokens ({num_bytes / 1e6:.1f} MB) returns", columns, rows
    )
    return {"num_tokens": rounds.num_tokens, "num_bytes": num_bytes, "bandwidth": bandwidth, "rows": results}


def _prediction(rounds: Rounds, row: str) -> tuple[str, str, str]:
    if not rounds.predicted[row]:
        return "", "", ""
    predicted = statistics.median(rounds.predicted[row])
    measured = statistics.median(rounds.measured[row])
    error = statistics.median(
        p / m - 1 for p, m in zip(rounds.predicted[row], rounds.measured[row], strict=True)
    )
    return f"{predicted * 1e3:.1f}", f"{measured * 1e3:.1f}", f"{error:+.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--words", type=int, default=1470, help="words in a conversation (about a token each)"
    )
    parser.add_argument("--restore", default="adaptive")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        directory = Path(scratch) / "kv"
        arguments = [
            "--max-model-len", "2048", "--device-kv", "100MiB", "--host-kv", "200MiB",
            "--disk-kv", f"{directory}:2GiB", "--restore", options.restore,
        ]  # fmt: skip
        with serving(arguments) as server:
            block_bytes = 100 * 2**20 // num_blocks(server, "device")
        block_bytes -= block_bytes % 512
        rounds = Rounds(options.words, directory, block_bytes)
        rounds.run(arguments, options.rounds)
        write_json(options.json, report(rounds, block_bytes))


if __name__ == "__main__":
    main()
