"""What is generated in a check: random prompts, the same for us and for what we are compared with. Pure."""

from __future__ import annotations

import random

WARM_UP_SEED = 0  # of a run that is not timed
_MOST_RUNS = 16
_FIRST_TOKEN = 3  # below it are, in most vocabularies, tokens with a meaning of their own


def prompts(count: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """``count`` prompts of ``length`` tokens that have nothing in common, unless two seeds are equal."""
    numbers = random.Random(seed)
    return [[numbers.randrange(_FIRST_TOKEN, vocab_size) for _ in range(length)] for _ in range(count)]


def seeds(batch: int, runs: int) -> range:
    """Of the prompts of each run at this batch, that of ``WARM_UP_SEED`` apart."""
    return range(1 + batch * _MOST_RUNS, 1 + batch * _MOST_RUNS + runs)


def speed_name(batch: int) -> str:
    """Of the figure that others are compared with: tokens of whole runs, their prompts' time included."""
    return f"output tokens/s, batch {batch}"
