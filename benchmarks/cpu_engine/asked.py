"""What the servers are asked, and what is wanted of the figures. Values only."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "tidegate"
MOST_DRIFT = 1.3  # of a round's probes, above which it is made again


@dataclass(frozen=True, slots=True)
class Load:
    """So many users, each of whom asks again when he has his answer; ``num_requests`` in all.

    ``goal``: the least that is wanted of output tokens/s by the best peer's.
    """

    users: int
    num_requests: int
    input_len: int = 128
    output_len: int = 128
    goal: float | None = None

    @property
    def name(self) -> str:
        return f"{self.input_len:,} → {self.output_len:,} tokens, {self.users} at a time"


@dataclass(frozen=True, slots=True)
class Asked:
    """A whole measurement. ``prompt`` is the load whose time to first token is a row of its own."""

    loads: tuple[Load, ...]
    prompt: Load
    num_rounds: int
    num_starts: int

    @property
    def all_loads(self) -> tuple[Load, ...]:
        return (*self.loads, self.prompt)

    @property
    def most_users(self) -> int:
        return max(load.users for load in self.all_loads)

    @property
    def longest(self) -> int:
        """Tokens of prompt and answer."""
        return max(load.input_len + load.output_len for load in self.all_loads)


PROMPT = Load(users=1, num_requests=3, input_len=1024, output_len=4)
FULL = Asked(
    loads=(Load(1, 3, goal=0.5), Load(4, 8, goal=0.8), Load(16, 16, goal=1.0), Load(64, 64, goal=1.0)),
    prompt=PROMPT,
    num_rounds=6,
    num_starts=2,
)
QUICK = Asked(
    loads=(Load(1, 1, output_len=32, goal=0.5), Load(16, 16, output_len=32, goal=1.0)),
    prompt=Load(users=1, num_requests=1, input_len=1024, output_len=4),
    num_rounds=2,
    num_starts=1,
)
GOALS = {"ttft": 1.0, "start_s": 5.0, "memory_gb": 1.2, "floor": 0.8}
