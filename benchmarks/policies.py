"""Swap, recompute, adaptive and overlap over context length and copy bandwidth, in simulated time.

``python -m benchmarks.policies``. Each cell is the time to the first token of a conversation that is on
host, under the engine's own scheduler and policies (``benchmarks/virtual.py``). ``x copy`` is the time to
copy the conversation as a multiple of the time to compute it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.report import print_table, write_json
from benchmarks.virtual import BLOCK_SIZE, Machine, returning_ttft_s

POLICIES = ("swap", "recompute", "adaptive", "overlap")
CONTEXTS = (256, 1024, 4096, 16384)
COPY_TO_COMPUTE = (0.05, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 20.0)
MACHINE = Machine(step_s=0.004, token_s=30e-6, pair_s=1e-9, block_s=0.0, step_tokens=512)


def compute_s(machine: Machine, context: int) -> float:
    """What computing ``context`` tokens takes on an idle machine."""
    steps, pairs = -(-context // machine.step_tokens), context * (context + 1) / 2
    return steps * machine.step_s + context * machine.token_s + pairs * machine.pair_s


def cell(context: int, ratio: float) -> dict[str, float]:
    """Seconds to the first token by policy, where copying takes ``ratio`` times as long as computing."""
    block_s = ratio * compute_s(MACHINE, context) / (context // BLOCK_SIZE)
    machine = replace(MACHINE, block_s=block_s)
    return {policy: returning_ttft_s(machine, context, policy) for policy in POLICIES}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, results = [], []
    for context in CONTEXTS:
        for ratio in COPY_TO_COMPUTE:
            times = cell(context, ratio)
            best = min(times["swap"], times["recompute"])
            results.append({"context": context, "copy_to_compute": ratio, "ttft_s": times})
            rows.append(
                (
                    f"{context}",
                    f"{ratio:g}",
                    *(f"{times[policy] * 1e3:.1f}" for policy in POLICIES),
                    f"{times['adaptive'] / best:.2f}",
                    f"{times['overlap'] / times['adaptive']:.2f}",
                )
            )
    columns = (
        "context",
        "x copy",
        *(f"{policy} ms" for policy in POLICIES),
        "adaptive/best",
        "overlap/adaptive",
    )
    print_table("Time to first token of a returning conversation, simulated", columns, rows)
    write_json(options.json, {"cells": results})


if __name__ == "__main__":
    main()
