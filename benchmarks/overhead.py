"""What the tiers cost where they bring nothing: ``python -m benchmarks.overhead``.

Two servers with the same small device pool, one with host and disk below it, get the same kind of load
in turn: distinct prompts, so no hit is possible, and enough of them that every block is pushed out of the
device, and on one server copied to host, and on to disk. The idle one of the two takes no processor time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.report import bootstrap_bounds, print_table, write_json
from benchmarks.restore import conversation
from benchmarks.servers import Answer, Server, serving


class Load:
    """Closed-loop load of ``num_clients`` clients, never the same prompt twice."""

    def __init__(self, num_clients: int, num_requests: int, words: int, max_tokens: int) -> None:
        self._num_clients = num_clients
        self._num_requests = num_requests
        self._words = words
        self._max_tokens = max_tokens
        self._number = 0

    def tokens_per_s(self, server: Server) -> float:
        """Prompt and answer tokens over the time until the last answer has ended."""
        first, self._number = self._number, self._number + self._num_requests
        waiting = iter(range(first, self._number))
        lock, answers = threading.Lock(), list[Answer]()

        def client() -> None:
            while True:
                with lock:
                    number = next(waiting, None)
                if number is None:
                    return
                answers.append(server.complete(conversation(number, self._words), self._max_tokens))

        clients = [threading.Thread(target=client) for _ in range(self._num_clients)]
        started = time.perf_counter()
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        elapsed = time.perf_counter() - started
        assert len(answers) == self._num_requests, "a request failed"
        assert not any(answer.cached_tokens > 16 for answer in answers), "a prompt was hit"
        return sum(answer.prompt_tokens + answer.completion_tokens for answer in answers) / elapsed


def moved(server: Server) -> dict[str, float]:
    """Running totals of the moves, of stalls, and of the copy threads' processor time."""
    samples = server.metrics()
    found = {
        kind: samples[f"tidegate_kv_transfer_bytes_total{{kind={kind}}}"] for kind in ("swap_out", "demote")
    }
    found["cpu_s"] = sum(
        value for name, value in samples.items() if name.startswith("tidegate_kv_transfer_cpu_seconds_total")
    )
    found["stalls"] = samples["tidegate_stalls_total{}"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--requests", type=int, default=16, help="requests in a run")
    parser.add_argument("--words", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = Load(options.clients, options.requests, options.words, options.tokens)
    pairs: list[tuple[float, float]] = []
    small = ["--max-model-len", "2048", "--device-kv", "100MiB"]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        below = ["--host-kv", "200MiB", "--disk-kv", f"{scratch}/kv:1GiB"]
        with serving(small) as off, serving([*small, *below]) as on:
            for server in (off, on):
                load.tokens_per_s(server)  # warm, and fills the device
            before, busy_s = moved(on), 0.0
            for index in range(options.pairs):
                rates = {}
                for server in (off, on) if index % 2 else (on, off):
                    started = time.perf_counter()
                    rates[id(server)] = load.tokens_per_s(server)
                    busy_s += (time.perf_counter() - started) * (server is on)
                pairs.append((rates[id(off)], rates[id(on)]))
            after = moved(on)
    report(pairs, {name: after[name] - before[name] for name in after}, busy_s, options.json)


def report(
    pairs: list[tuple[float, float]], spent: dict[str, float], busy_s: float, path: Path | None
) -> None:
    ratios = [on / off for off, on in pairs]
    lower, upper = bootstrap_bounds(ratios)
    cpu_share = spent["cpu_s"] / (busy_s * (os.cpu_count() or 1))
    rows = [
        ("tiers off, tokens/s (median)", f"{statistics.median(off for off, _ in pairs):.0f}"),
        ("tiers on, tokens/s (median)", f"{statistics.median(on for _, on in pairs):.0f}"),
        (f"on / off, median of {len(pairs)} pairs", f"{statistics.median(ratios):.3f}"),
        ("lower 95 % bound", f"{lower:.3f}"),
        ("upper 95 % bound", f"{upper:.3f}"),
        ("copied to host", f"{spent['swap_out'] / 1e6:.0f} MB"),
        ("copied to disk", f"{spent['demote'] / 1e6:.0f} MB"),
        ("copy threads, share of all processors", f"{cpu_share:.2%}"),
        ("times that all work waited for copies", f"{spent['stalls']:.0f}"),
    ]
    print_table("Tiers on against tiers off, without a single hit", ("", ""), rows)
    write_json(
        path,
        {
            "pairs": [{"off": off, "on": on} for off, on in pairs],
            "ratio": {"median": statistics.median(ratios), "lower_95": lower, "upper_95": upper},
            "copy_cpu_share": cpu_share,
            **spent,
        },
    )


if __name__ == "__main__":
    main()
