"""Log probabilities of likely next tokens, as a real model gives them: ``python -m benchmarks.next_tokens``.

The built-in model continues some openings at temperature 1; of each position the log probabilities of the
16 likeliest tokens are kept, sorted. The load test draws from these rows where it needs beams that behave
like a language model's and has none.
"""

from __future__ import annotations

import argparse
import gzip
import io
from pathlib import Path

from engine.config import EngineConfig, MemorySize
from engine.execution.runner import load_runner
from engine.messages import SamplingParams
from engine.schedule import SampleSpec, ScheduledChunk, SchedulerOutput

COUNT = 16
BLOCK_SIZE = 16
OPENINGS = 32


def rows(num_openings: int, num_tokens: int) -> list[list[float]]:
    """One row a position, best first."""
    config = EngineConfig(
        model="", device="cpu", max_model_len=512, device_kv=MemorySize(num_bytes=64 * 2**20)
    )
    runner = load_runner(config, lambda *_: None).runner
    found = []
    for opening in range(num_openings):
        token_ids = [1, *(1000 + (opening * 37 + i * 101) % 8000 for i in range(3))]
        params = SamplingParams(max_tokens=num_tokens, seed=opening, logprobs=COUNT)
        start = 0
        for _ in range(num_tokens):
            table = range(-(-len(token_ids) // BLOCK_SIZE))
            spec = SampleSpec(params, (opening,), len(token_ids), tuple(token_ids), (), ())
            chunk = ScheduledChunk("r", tuple(token_ids[start:]), start, table, spec)
            (sample,) = runner.execute(SchedulerOutput((chunk,))).samples
            start = len(token_ids)
            token_ids.append(sample.tokens[0].token_id)
            logprobs = sample.tokens[0].logprobs
            assert logprobs is not None
            found.append([value for _, value in logprobs.top])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--openings", type=int, default=OPENINGS)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, default=Path("loadtest/data/next_tokens.csv.gz"))
    options = parser.parse_args()
    text = "\n".join(
        ",".join(f"{value:.3f}" for value in row) for row in rows(options.openings, options.tokens)
    )
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, filename="") as packed:
        packed.write(text.encode() + b"\n")
    options.out.write_bytes(buffer.getvalue())


if __name__ == "__main__":
    main()
