"""What beams of a real model share, beside what simulated ones do: ``python -m benchmarks.beam_sharing``.

Ten prompts, which the model itself has written, are searched at once with 2, 4 and 6 beams, by the built-in
model and in the simulation that ``tideload sharing`` runs. Saving = 1 - physical / logical blocks, averaged
over the steps. This is what the simulation's one fitted number was fitted to.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from benchmarks.report import print_table, write_json
from engine.config import EngineConfig, MemorySize
from engine.core import EngineCore
from engine.messages import AddRequest, BeamParams, SamplingParams
from engine.startup import build_core
from loadtest.lengths import Lengths
from loadtest.simulate import SharingSimulation

BLOCK_SIZE = 16
WIDTHS = (2, 4, 6)
PROMPTS = 10
_START = 504  # "The"


def written(core: EngineCore, count: int) -> list[tuple[int, ...]]:
    """Ten texts of ``count`` tokens."""
    texts: list[list[int]] = [[_START] for _ in range(PROMPTS)]
    for number in range(PROMPTS):
        sampling = SamplingParams(max_tokens=count - 1, seed=number, ignore_eos=True)
        core.add(AddRequest(request_id=str(number), prompt_token_ids=(_START,), sampling=sampling))
    while min(map(len, texts)) < count:
        report = core.step()
        for delta in () if report is None else report.deltas:
            texts[int(delta.request_id)] += delta.token_ids
    return [tuple(text) for text in texts]


def real_saving(core: EngineCore, width: int, prompts: list[tuple[int, ...]], output: int) -> float:
    """Of the real model's beams."""
    sampling = SamplingParams(
        max_tokens=output, seed=0, ignore_eos=True, n=width, beam=BeamParams(width, early_stopping="never")
    )
    for number, token_ids in enumerate(prompts):
        core.add(
            AddRequest(request_id=f"{width}.{output}.{number}", prompt_token_ids=token_ids, sampling=sampling)
        )
    savings = []
    core.step()
    while (kv := core.describe_kv(0, PROMPTS)).sequences:
        logical = sum(len(sequence.blocks) for sequence in kv.sequences)
        savings.append(1 - kv.stats.blocks_in_use / logical)
        core.step()
    return statistics.fmean(savings)


def simulated_saving(width: int, prompt: int, output: int) -> float:
    simulation = SharingSimulation(
        [Lengths(prompt, output)] * 8 * PROMPTS,
        width=width,
        use_beams=True,
        in_flight=PROMPTS,
        block_size=BLOCK_SIZE,
    )
    return statistics.fmean(use.saving for use in simulation.run(1) if use.logical_blocks)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompt", type=int, default=16, help="tokens of each prompt")
    parser.add_argument("--output", type=int, nargs="+", default=[58, 200], help="tokens of each answer")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = EngineConfig(
        model="",
        max_model_len=1024,
        device_kv=MemorySize(num_bytes=400 * 2**20),
        enable_prefix_caching=False,
    )
    core, _ = build_core(config, lambda *_: None, time.perf_counter, lambda: None)
    prompts = written(core, options.prompt)
    rows, cells = [], []
    for output in options.output:
        for width in WIDTHS:
            real = real_saving(core, width, prompts, output)
            simulated = simulated_saving(width, options.prompt, output)
            rows.append((str(output), str(width), f"{real:.1%}", f"{simulated:.1%}"))
            cells.append({"output": output, "width": width, "real": real, "simulated": simulated})
    title = f"Blocks saved by beams of prompts of {options.prompt} tokens"
    print_table(title, ("answer tokens", "beams", "real model", "simulated"), rows)
    write_json(options.json, {"prompt": options.prompt, "cells": cells})


if __name__ == "__main__":
    main()
