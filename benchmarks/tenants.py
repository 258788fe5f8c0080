"""Can one tenant tell from the time of an answer what another has asked? ``python -m benchmarks.tenants``.

Each round tenant A asks something new. Then come, in random order: A the same again, tenant B the same, and B
something that nobody has asked, all prompts equally long. Times to the first token are compared within
rounds: A must gain from its cache, and for B it must make no difference whether A has asked.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import secrets
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import bootstrap_bounds, print_table, write_json
from benchmarks.servers import Server, serving

_WORDS = ["tide", "gate", "stone", "river", "night", "lamp", "harbour", "letter", "winter", "garden"]


def prompt(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=num_words))


def one_round(server: Server, keys: dict[str, str], rng: random.Random, num_words: int) -> dict[str, float]:
    """Seconds to the first token of the three questions."""
    asked, unasked = prompt(rng, num_words), prompt(rng, num_words)
    server.complete(asked, key=keys["a"])
    questions = [("own", "a", asked), ("others", "b", asked), ("nobodys", "b", unasked)]
    rng.shuffle(questions)
    found = {}
    for name, tenant, text in questions:
        answer = server.complete(text, key=keys[tenant])
        if (answer.cached_tokens >= 16) != (name == "own"):
            raise RuntimeError(f"{answer.cached_tokens} tokens of {name} prompt were cached")
        found[name] = answer.ttft_s
    return found


def measure(rounds: int, num_words: int) -> dict[str, Any]:
    """Medians, and the ratios within rounds with their bounds."""
    rng = random.Random(1)
    keys = {name: secrets.token_urlsafe(32) for name in ("a", "b")}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        for name, key in keys.items():
            file.write(f'[tenants.{name}]\nkeys = ["{hashlib.sha256(key.encode()).hexdigest()}"]\n')
        file.flush()
        with serving(["--device-kv", "256MiB", "--keys-file", file.name]) as server:
            for _ in range(3):
                one_round(server, keys, rng, num_words)
            found = [one_round(server, keys, rng, num_words) for _ in range(rounds)]
    report: dict[str, Any] = {"rounds": rounds}
    for name in ("own", "others", "nobodys"):
        report[f"{name}_ttft_ms"] = statistics.median(one[name] for one in found) * 1000
    for name in ("own", "others"):
        ratios = [one[name] / one["nobodys"] for one in found]
        report[f"{name}_by_nobodys"] = statistics.median(ratios)
        report[f"{name}_by_nobodys_bounds"] = bootstrap_bounds(ratios)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--words", type=int, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = measure(options.rounds, options.words)
    rows = []
    for name, who in (
        ("own", "A, what A has asked"),
        ("others", "B, what A has asked"),
        ("nobodys", "B, what nobody has asked"),
    ):
        bounds = report.get(f"{name}_by_nobodys_bounds")
        rows.append(
            [
                who,
                f"{report[f'{name}_ttft_ms']:.1f}",
                f"{report[f'{name}_by_nobodys']:.3f}" if bounds else "1",
                f"{bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else "",
            ]
        )
    print_table("Time to the first token", ["who asks", "median ms", "by the last", "95 % bounds"], rows)
    write_json(options.json, report)


if __name__ == "__main__":
    main()
