"""First steps of a runner, at load, so that compiling and first allocations are not a request's to wait for.

Runs on: step thread, once. Writes into the pool's first blocks, which are free and may hold anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.messages import SamplingParams
from engine.schedule import Executor, SampleSpec, ScheduledChunk, SchedulerOutput
from tiering.types import BlockCopy, BlockId

WARM_UP_TOKENS = 3  # positions that the shortest warm-up computes, be the window ever so short
SHORTEST_PROMPT = WARM_UP_TOKENS - 1


def warm_up(
    runner: Executor, block_size: int, num_blocks: int, prompt_lengths: Sequence[int] = (SHORTEST_PROMPT,)
) -> None:
    """Compute prompts of these lengths, one a step, and a decode after the shortest; copy a block."""
    for length in prompt_lengths:
        warm_up_prompt(runner, block_size, length)
    _compute(runner, block_size, SHORTEST_PROMPT, 1)
    if num_blocks > 1:
        runner.execute(SchedulerOutput((), (BlockCopy(BlockId(0), BlockId(1)),)))


def warm_up_prompt(runner: Executor, block_size: int, length: int) -> None:
    """Compute a prompt in one step."""
    _compute(runner, block_size, 0, length)


def _compute(runner: Executor, block_size: int, start: int, num_rows: int) -> None:
    stop = start + num_rows
    spec = SampleSpec(
        params=SamplingParams(max_tokens=1, seed=0, top_p=0.9),
        seeds=(0,),
        position=stop,
        prompt_token_ids=(0,),
        output_token_ids=(),
        banned_token_ids=(),
    )
    table = tuple(range(-(-stop // block_size)))
    runner.execute(SchedulerOutput((ScheduledChunk("warm-up", (0,) * num_rows, start, table, spec),)))
